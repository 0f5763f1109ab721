"""`NumberMixture` equals plain loops, and no forecast uses later rows."""

from itertools import pairwise

import numpy as np
import pytest

from norewind import Forecaster
from norewind.core.losses import known_gaussian
from norewind.learners import expert_weights
from norewind.learners.learner import Forecasts, Learner
from norewind.learners.least_squares import LeastSquares
from norewind.learners.linear import Linear, init_linear
from norewind.learners.mixture import Member
from norewind.learners.number_mixture import ERROR_LIMIT, FIRST_WEIGHT, RULES, NumberMixture
from norewind.learners.past_values import FIRST_ROWS
from norewind.learners.regrets import allowed_after, huber_loss
from norewind.learners.rescaling import MOST_GROWTH
from norewind.learners.seasons import init_seasons, observe_row
from norewind.learners.series_models import FEW_OTHERS, linear_models
from norewind.streams.table.column_statistics import MIN_VALUES
from norewind.testing import check_learner

STEPS = (1, 6, 30)
MODELS = [
    Linear(4, 0.99, others=4),
    Linear(2, 1.0, spread=10, others=2),
    Linear(3, 0.999, differences=True),
    Linear(2, 0.999, season=1),
    Linear(2, 0.999, season=1, differences=True),
]


def waves(rows, seed=0):
    rng = np.random.default_rng(seed)
    day = np.sin(np.arange(rows) * 2 * np.pi / 24)
    return np.stack([day + 0.1 * rng.normal(size=rows), rng.normal(size=rows).cumsum() / 10], 1).astype(np.float32)


def targets_of(xs, steps=STEPS):
    """Return the targets of each row for every step; some are unknown."""
    targets = np.tile(xs, len(steps))
    targets[40, ::2] = np.nan
    targets[77] = np.nan
    return targets


class Given(Learner):
    """A member with given forecasts, two side by side."""

    def __init__(self, steps):
        self.steps = steps
        self.outputs = np.random.default_rng(9).normal(size=(1_000, 2 * 2 * len(steps))).astype(np.float32)

    def scan(self, run, xs, targets, *, count=None, outputs=False):
        assert outputs
        return run + (len(xs) if count is None else count), None, self._shown(run, xs)

    def forward(self, run, xs, *, count=None):
        return run + (len(xs) if count is None else count), self._shown(run, xs)

    def _shown(self, run, xs):
        made = self.outputs[int(run[0]) : int(run[0]) + len(xs)]
        return Forecasts(made, None)

    def reset(self, run):
        return 0 * run


def learner(steps=STEPS, *, gaussian=False, member=True, known=(0, 1)):
    members = [Member(Given(steps), np.zeros(1, int), ("first", "second"))] if member else []
    return NumberMixture(2, 2, steps=steps, models=MODELS, members=members, known=known, gaussian=gaussian)


def plain_loop(xs, targets, steps):
    """Compute the forecast that `NumberMixture` makes at each row, by plain loops: (rows, steps × targets)."""
    others, past = Given(steps).outputs.reshape(1_000, 2, -1), past_of(xs)
    periods = periods_of(past)
    rules = [plain_rule(past, steps, period_of(rule, periods), rule[1]) for rule in RULES]
    rules = [clipped_to_past(rule[:, None], past)[:, 0] for rule in rules]
    experts = [np.zeros_like(rules[0]), *rules]
    for model in MODELS:
        if model.season or model.differences:
            rule = (-model.season, int(model.differences and model.season > 0))
            base = rules[RULES.index(rule)]
            experts.append(plain_changes(past, targets, steps, model, period_of(rule, periods), base))
        else:
            experts.append(plain_linear(model, xs, targets, steps))
    experts += [others[: len(xs), 0], others[: len(xs), 1]]
    forecasts = clipped_to_past(np.stack(experts, axis=1), past).astype(np.float32)
    mixed = [
        plain_mixture(forecasts[:, :, column], targets[:, column], steps[column // 2])
        for column in range(targets.shape[1])
    ]
    return np.stack(mixed, axis=1)


def past_of(xs):
    """Return the past at every row, (rows, rows, 2), where isolated outliers are cut to the limits of forecasts."""
    past, seen = [], []
    for t, row in enumerate(xs.astype(float)):
        past.append(row.copy())
        for column, before in enumerate(np.transpose(past[:-2]) if t >= FIRST_ROWS else ()):
            lowest, highest = limits_of(before)
            if lowest <= row[column] <= highest:
                past[-2][column] = np.clip(past[-2][column], lowest, highest)
        seen.append(np.array(past))
    return seen


def limits_of(before):
    """Return three times the range of a column."""
    margin = max(np.ptp(before), 1)
    return before.min() - margin, before.max() + margin


def clipped_to_past(forecasts, past):
    """Clip forecasts (rows, experts, steps × 2) to three times the range so far."""
    ends = np.array([[limits_of(column) for column in rows.T] for rows in past])
    return np.clip(forecasts, *(np.tile(ends[:, None, :, end], forecasts.shape[2] // 2) for end in (0, 1)))


def periods_of(past):
    """Return the periods that are known after each row."""
    found, seen = init_seasons(2), []
    for t, rows in enumerate(past):
        ends = [limits_of(column) for column in rows[:-1].T] if t >= FIRST_ROWS else [(-np.inf, np.inf)] * 2
        observe_row(found, np.clip(rows[-1], *np.transpose(ends)))
        seen.append(found.periods.copy())
    return np.array(seen)


def period_of(rule, periods):
    """Return the period of a rule at every row; -1 where there is none yet."""
    if rule[0] >= 0:
        return np.full(len(periods), rule[0])
    found = periods[:, -rule[0] - 1]
    return np.where(found > 0, found, -1)


def plain_rule(past, steps, periods, adds_change):
    made = np.full((len(past), 2 * len(steps)), np.nan)
    for t, (period, xs) in enumerate(zip(periods, past, strict=True)):
        for place, step in enumerate(steps):
            block, ahead = slice(2 * place, 2 * place + 2), max(step, 1)
            seasons = -(-ahead // period) * period if period > 0 else 0
            if period == 0:
                made[t, block] = xs[t]
            elif 0 < period <= t:
                made[t, block] = xs[t + ahead - seasons]
                if adds_change:
                    made[t, block] += seasons // period * (xs[t] - xs[t - period])
    return made


def plain_linear(model, xs, targets, steps):
    learner = LeastSquares(
        2, 2, steps=steps, lags=model.lags, forgetting=model.forgetting, limit=ERROR_LIMIT, together=True
    )
    spread = init_linear(learner.plan, [model], 2, 2)
    run = learner.init()
    run.model.factors[:] = spread.factors
    return learner.scan(run, xs, targets, outputs=True)[2].made


def plain_changes(past, targets, steps, model, periods, base):
    """Forecast the errors of a rule from changes, from the row on since which it has its last period."""
    made = np.full_like(base, np.nan)
    starts = [0, *(1 + np.flatnonzero(np.diff(periods))), len(past)]
    for first, end in pairwise(starts):
        changes, errors = np.zeros((len(past), 2)), np.full_like(targets, np.nan)
        for t in range(first, end):
            changes[t] = plain_change(past[t], t, periods[t], model.differences)
            for place, step in enumerate(steps):
                block = slice(2 * place, 2 * place + 2)
                if t - step >= first:
                    errors[t, block] = targets[t, block] - base[t - step, block]
        part = slice(first, end)
        made[part] = base[part] + plain_linear(model, changes[part], errors[part], steps)
    return made


def plain_change(values, t, period, differences):
    if period == 0:
        return values[t] - values[t - 1] if t > 0 else 0
    if period < 0 or t <= period:
        return 0
    return values[t] - values[t - period] - (values[t - 1] - values[t - period - 1] if differences else 0)


def plain_mixture(forecasts, targets, step):
    """Mix the experts' forecasts of one step and target, (rows, experts); NaN means that there is none."""
    spread, record, count = np.ones(forecasts.shape[1]), np.zeros(forecasts.shape[1]), np.zeros(forecasts.shape[1])
    totals, squares = np.zeros(forecasts.shape[1] + 1), np.zeros(forecasts.shape[1] + 1)
    record[1] = -2 * FIRST_WEIGHT
    arms, mixed = [], []
    for t, target in enumerate(targets):
        # Forecasts of the row itself come first.
        for moment in ("learn", "forecast") if step else ("forecast", "learn"):
            if moment == "forecast":
                weights = np.where(np.isnan(forecasts[t]), 0, np.exp(-(record - np.nanmin(record)) / 2))
                average = weights @ np.nan_to_num(forecasts[t]) / weights.sum()
                arms.append(np.append(forecasts[t], average))
                over = np.where(np.isnan(arms[t]), 0, totals - allowed_after(step) * np.sqrt(squares)).clip(0)
                mixed.append(over @ np.nan_to_num(arms[t]) / over.sum() if over.any() else average)
            elif t >= step:
                due = forecasts[t - step]
                if not np.isnan(target):
                    largest = 5 * np.sqrt(spread[0])
                    losses = [huber_loss(one - target, largest) for one in (*arms[t - step], mixed[t - step])]
                    regrets = np.nan_to_num(losses[-1] - np.array(losses[:-1]))
                    totals, squares = totals + regrets, squares + regrets**2
                    count = count + 1
                    errors = np.minimum((due - target) ** 2, expert_weights.MAX_ERROR**2 * spread)
                    spread = spread + np.maximum(1 / (count + 1), 0.01) * (errors - spread)
                    record = 0.99 * record + 0.1 * (errors / spread + np.log(spread))
                absent = np.isnan(due)
                spread, record = np.where(absent, spread[0], spread), np.where(absent, record[0], record)
                count = np.where(absent, 0, count)
    return mixed


@pytest.mark.parametrize("steps", [(0,), (1,), STEPS])
def test_the_mixture_is_that_of_a_plain_loop(steps):
    xs = waves(300)
    xs[150] += 10  # an outlier, whose error is limited
    targets = targets_of(xs, steps)
    series = learner(steps)
    _, losses, outputs = series.scan(series.init(), xs, targets, outputs=True)
    made, due = outputs
    np.testing.assert_allclose(made, plain_loop(xs, targets, steps), atol=1e-5)
    expected = np.zeros(len(xs))
    for place, step in enumerate(steps):
        block = slice(2 * place, 2 * place + 2)
        np.testing.assert_array_equal(due[step:, block], made[: len(xs) - step, block])
        assert not due[:step, block].any()
        expected[step:] += 0.5 * np.nansum((due - targets)[step:, block] ** 2, axis=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("known", [(), (0, 1)])
@pytest.mark.parametrize("steps", [(0,), STEPS])
def test_it_is_a_learner(steps, known):
    xs = waves(120)
    series = learner(steps, gaussian=len(known) > 0, known=known)
    check_learner(series, series.init(), xs, targets_of(xs, steps))


def test_all_steps_together_equal_separate_mixtures():
    xs = waves(300)
    together = learner(member=False)
    _, _, (made, _) = together.scan(together.init(), xs, np.tile(xs, 3), outputs=True)
    for place, step in enumerate(STEPS):
        alone = learner((step,), member=False)
        _, _, (own, _) = alone.scan(alone.init(), xs, xs, outputs=True)
        np.testing.assert_array_equal(made[:, 2 * place : 2 * place + 2], own)


def scaled(values, steps, means, deviations):
    """Return inputs and targets standardised by the given scales of each row, with these as the last inputs."""
    means, deviations = means.astype(np.float32), deviations.astype(np.float32)
    xs = np.concatenate(
        [
            (values - means) / deviations,
            *(np.stack([means, 0 * means, deviations], 2).reshape(-1, 2, 3).transpose(1, 0, 2)),
        ],
        1,
    )
    targets = np.full((len(values), 2 * len(steps)), np.nan)
    for place, step in enumerate(steps):
        targets[step:, 2 * place : 2 * place + 2] = (values[step:] - means[:-step]) / deviations[:-step]
    return xs.astype(np.float32), targets.astype(np.float32)


@pytest.mark.parametrize("largest", [1.2, 30])
def test_how_rows_are_standardised_changes_no_forecast(largest):
    rng, made = np.random.default_rng(3), []
    values, means = waves(200).astype(float) + 2, rng.uniform(-0.2, 0.2, (200, 2))
    for factor in (1, largest):
        # The second time, the deviation grows after the experts have learned.
        deviations = np.where(np.arange(200)[:, None] < 60, 1, factor) * np.ones(2)
        mixture = NumberMixture(2, 2, steps=STEPS, models=MODELS, known=(0, 1), scales=6)
        xs, targets = scaled(values, STEPS, means, deviations)
        _, _, (forecasts, _) = mixture.scan(mixture.init(), xs, targets, outputs=True)
        made.append(forecasts * np.tile(deviations, len(STEPS)) + np.tile(means, len(STEPS)))
    np.testing.assert_allclose(made[0][:60], made[1][:60], atol=1e-5)
    if largest < MOST_GROWTH:
        np.testing.assert_allclose(made[0], made[1], atol=1e-4)
    # Other units change which inputs and errors are cut, and rounding, but hardly the forecasts.
    errors = [np.abs(one[100:-1, :2] - values[101:]).mean() for one in made]
    assert max(errors) < 1.02 * min(errors)


@pytest.mark.parametrize("at", [0, 3, 100])
def test_an_outlier_hides_no_period(at):
    values = np.tile(np.random.default_rng(0).normal(size=12), 20)
    values[at] = 1e6
    model = Forecaster("x", budget=1.0)
    model.fit([{"x": value} for value in values])
    assert FIRST_ROWS == MIN_VALUES
    assert 12 in model.explain()["periods"]


def test_no_target_is_read_before_it_is_due():
    xs, later = waves(120), waves(120, seed=1)
    series = learner()

    def made(targets):
        return series.scan(series.init(), xs, targets, outputs=True)[2][0]

    expected = made(np.tile(xs, 3))
    for t in (31, 60, 119):
        targets = np.tile(xs, 3)
        targets[t:] = np.tile(later[t:], 3)
        changed = made(targets)
        np.testing.assert_array_equal(changed[:t], expected[:t])
        assert not np.array_equal(changed[t], expected[t])


def test_a_failing_expert_does_not_affect_the_others():
    xs = waves(400)
    series = learner()
    series.members[0].outputs[:, :6] = np.nan
    series.members[0].outputs[:, 6:] = np.inf
    _, losses, (made, _) = series.scan(series.init(), xs, targets_of(xs), outputs=True)
    assert np.isfinite(made).all()
    alone = learner(member=False)
    _, expected, _ = alone.scan(alone.init(), xs, targets_of(xs))
    assert np.mean(losses[200:]) < 1.1 * np.mean(expected[200:])
    xs[100:110] = np.nan
    xs[150] = np.inf
    _, losses, (made, _) = alone.scan(alone.init(), xs, np.tile(waves(400), 3), outputs=True)
    assert np.isfinite(made).all()
    assert np.isfinite(losses).all()


def test_the_variance_it_forecasts_is_that_of_its_errors():
    xs = waves(3_000)
    options = {"steps": (6,), "models": linear_models(2, 2, 2), "known": (0, 1)}
    series = NumberMixture(2, 2, **options, gaussian=True)
    _, losses, (_, due) = series.scan(series.init(), xs, xs, outputs=True)
    variance = np.exp(10 * np.tanh(due[1_000:, 2:] / 10))
    errors = (due[1_000:, :2] - xs[1_000:]) ** 2
    assert np.mean(errors / variance, axis=0) == pytest.approx([1, 1], abs=0.3)
    for t in (1_000, 2_345):
        assert losses[t] == pytest.approx(float(known_gaussian(due[t], xs[t])), abs=1e-4)
    plain = NumberMixture(2, 2, **options)
    _, _, (_, means) = plain.scan(plain.init(), xs, xs, outputs=True)
    np.testing.assert_array_equal(due[:, :2], means)


def test_variances_are_coded_as_losses_expect():
    variances = np.array([1e-9, 0.01, 1.0, 250.0, 1e9])
    coded = variances.copy()
    expert_weights.encode_variances(coded)
    logarithms = np.clip(np.log(np.maximum(variances, expert_weights.MIN_VARIANCE)), -9.9, 9.9)
    np.testing.assert_allclose(10 * np.tanh(coded / 10), logarithms, rtol=1e-12, atol=1e-14)


def test_without_learning_the_weights_stay_and_a_new_sequence_begins_empty():
    xs = waves(150)
    series = learner(member=False)
    run, _, _ = series.scan(series.init(), xs[:100], targets_of(xs)[:100])
    after, (made, due) = series.forward(run, xs[100:])
    np.testing.assert_array_equal(after.mixture.performance.recent_losses, run.mixture.performance.recent_losses)
    np.testing.assert_array_equal(due[6:, 2:4], made[:-6, 2:4])
    # A row without a target counts as one whose target is unknown.
    _, _, (unknown, _) = series.scan(run, xs[100:], np.full((50, 6), np.nan), outputs=True)
    np.testing.assert_array_equal(unknown, made)
    run = series.reset(after)
    _, losses, (_, due) = series.scan(run, xs[:1], targets_of(xs)[:1], outputs=True)
    assert losses[0] == 0
    assert not due.any()


def test_models_of_many_columns_have_fewer_lags():
    assert [model.lags for model in linear_models(1, 200, 1)][:4] == [8, 32, 168, 168]
    assert [model.lags for model in linear_models(7, 7, 7)][:4] == [1, 4, 24, 24]
    assert [model.lags for model in linear_models(7, 7 * 48, 7)] == [4, 4, 24, 4, 4]
    # The past of the targets comes first, whatever other inputs there are.
    assert [(model.lags, model.others) for model in linear_models(20, 1, 1)][:4] == [
        (8, 1),
        (32, 1),
        (168, 8),
        (168, 8),
    ]
    assert {(model.lags, model.others) for model in linear_models(200, 1, 0)} == {(0, 1), (0, 0)}


def test_a_small_budget_limits_the_rows_of_other_inputs_but_not_of_the_targets():
    chosen, few = linear_models(2, 1, 1), linear_models(2, 1, 1, few=True)
    assert [model.lags for model in few] == [model.lags for model in chosen]
    assert max(model.others for model in chosen) == 84
    assert max(model.others for model in few) == FEW_OTHERS
    assert linear_models(2, 2, 2, few=True) == linear_models(2, 2, 2)  # all inputs are targets
    assert linear_models(2, 1, 0, few=True) == linear_models(2, 1, 0)  # there is nothing but other inputs


@pytest.mark.parametrize("scale", [1, 10_000])
def test_the_variance_of_a_mixture_includes_how_far_its_means_are_apart(scale):
    """Also after much larger errors of some experts, whose weights are then nearly zero."""
    rng = np.random.default_rng(0)
    variances, records = rng.uniform(0.5, 2, (3, 2)), scale * rng.normal(size=(3, 2))
    forecasts = rng.normal(size=(3, 2))
    shares = np.exp((records.min(axis=0) - records) / 2)
    weights = shares / shares.sum(axis=0)
    mean, variance = np.empty(2), np.empty(2)
    performance = expert_weights.Performance(variances, records, np.zeros((3, 2)))
    expert_weights.mix_densities(performance, forecasts, mean, variance, np.empty((3, 2)))
    expected = (weights * forecasts).sum(axis=0)
    np.testing.assert_allclose(mean, expected, rtol=1e-12)
    np.testing.assert_allclose(variance, (weights * (variances + (forecasts - expected) ** 2)).sum(axis=0), rtol=1e-12)
