"""The parts of a forecast add up to it, for every kind of member, and every member has a name."""

from copy import deepcopy

import numpy as np
import pytest

from norewind.learners import expert_weights
from norewind.learners.explanation import ForecastPart, parts_of_experts
from norewind.learners.linear import Linear
from norewind.learners.mixture import Member
from norewind.learners.number_mixture import NumberMixture, _forecast
from norewind.learners.outlook import OutlookLearner
from norewind.learners.outlook_shape import OutlookShape
from norewind.learners.series_models import MODELS, MODELS_FOR_MANY_OUTPUTS, linear_models
from norewind.training.auto import classes, series
from norewind.training.open_stream import StreamShape

INPUTS, TARGETS, ROWS = 3, 2, 140
# With fewer lags, so that tests are quick; otherwise all the kinds of the default method, and one with few others.
KINDS = list(dict.fromkeys(model._replace(lags=4, others=2) for model in (*MODELS, *MODELS_FOR_MANY_OUTPUTS)))
KINDS.append(Linear(3, 0.99, others=1))


def trained(steps, models=KINDS, known=(0, 2), rows=ROWS):
    """Return a mixture that has learned from two seasonal targets and another column, and the rows."""
    rng = np.random.default_rng(0)
    day = np.sin(np.arange(rows) * 2 * np.pi / 12)
    xs = np.stack([day, rng.normal(size=rows), 2 * day**2], 1) + 0.1 * rng.normal(size=(rows, INPUTS))
    xs = xs.astype(np.float32)
    targets = np.tile(xs[:, [0, 2]], len(steps))
    learner = NumberMixture(INPUTS, TARGETS, steps=steps, models=models, known=known, periods=(6, 12))
    run, _, outputs = learner.scan(learner.init(), xs, targets)
    return learner, run, xs, outputs


@pytest.mark.parametrize("steps", [(1,), (1, 2, 15)])
def test_parts_add_up_to_the_forecast_of_each_member(steps):
    """Of simple rules and least squares of every kind, also on changes, up to the rounding of float64."""
    learner, run, xs, _ = trained(steps)
    plan, state, row = learner.plan, deepcopy(run.mixture), ROWS - 1
    forecasts = np.full((learner.experts, learner.outputs), np.nan)
    _forecast(plan, state, row, xs[-1], np.full(learner.outputs, np.nan), forecasts)
    parts_of = dict(parts_of_experts(plan, run.mixture, row))
    assert sorted(parts_of) == list(range(learner.experts))
    awake = 0
    for expert in range(1, learner.experts):
        name, parts = learner.member_names[expert], parts_of[expert]
        if not np.isnan(forecasts[expert]).any():
            awake += 1
            np.testing.assert_allclose(sum(parts.values()), forecasts[expert], rtol=0, atol=1e-13, err_msg=name)
    # All but the rule of 168 rows.
    assert awake == learner.experts - 2


@pytest.mark.parametrize("steps", [(1,), (1, 2, 15)])
def test_parts_add_up_to_the_forecast_of_the_mixture(steps):
    learner, run, _, outputs = trained(steps)
    found = learner.explain(run)
    assert found.names == learner.member_names
    np.testing.assert_allclose(found.weights.sum(axis=0), 1, rtol=1e-12)
    total = sum(found.parts.values())
    # The forecast is stored in single precision.
    np.testing.assert_allclose(total, outputs.made[-1], rtol=2e-7, atol=2e-7)
    mean, variance, weights = np.empty((3, *total.shape))[0], np.empty(total.shape), np.empty(found.weights.shape)
    made = run.mixture.waiting[(ROWS - 1) % len(run.mixture.waiting)][: learner.experts].astype(float)
    expert_weights.mix_densities(run.mixture.performance, made, mean, variance, weights)
    np.testing.assert_allclose(weights, found.weights, rtol=1e-12)


@pytest.mark.parametrize("follows", [False, True])
def test_parts_are_in_the_units_of_the_latest_row_also_while_a_regret_is_too_large(follows):
    """Though the experts learn in units of their own, and when the forecast follows two of them."""
    rng, steps, rows = np.random.default_rng(2), (1, 3), np.arange(ROWS)
    values = 50 + 7 * np.sin(rows[:, None] * np.pi / np.array([6, 12])) + rng.normal(size=(ROWS, TARGETS))
    means = np.float32(40 + rows[:, None] / 50 + np.zeros(TARGETS))
    deviations = np.float32(3 + rows[:, None] / 300 + np.zeros(TARGETS))
    scales = np.stack([means, 0 * means, deviations], 2).reshape(ROWS, -1)
    # One column is not a target.
    xs = np.hstack([(values - means) / deviations, rng.normal(size=(ROWS, 1)), scales]).astype(np.float32)
    targets = np.full((ROWS, 2 * TARGETS), np.nan, np.float32)
    for place, step in enumerate(steps):
        ahead = (values[step:] - means[:-step]) / deviations[:-step]
        targets[step:, TARGETS * place : TARGETS * (place + 1)] = ahead
    outlook = OutlookLearner(INPUTS, TARGETS, steps, (0, 1), OutlookShape((), 1))
    member = Member(outlook, outlook.init(), outlook.names)
    learner = NumberMixture(
        INPUTS, TARGETS, steps=steps, models=KINDS, members=[member], known=(0, 1), periods=(12, 24), scales=6
    )
    xs = np.hstack([xs, rng.normal(size=(ROWS, 1 + len(steps)))]).astype(np.float32)
    run, _, _ = learner.scan(learner.init(), xs[:-1], targets[:-1])
    assert not np.array_equal(run.mixture.past.scales[:2], run.mixture.past.scales[2:])
    if follows:
        run.mixture.regrets.totals[[2, 12]] = 1e9
    run, _, outputs = learner.scan(run, xs[-1:], targets[-1:])
    found = learner.explain(run)
    np.testing.assert_allclose(sum(found.parts.values()), outputs.made[-1], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.weights.mean(axis=1), outputs.weights[-1], rtol=1e-9, atol=1e-12)
    assert (found.weights[12].min() > 0.4) == follows
    # So do the parts of each expert, in its own units.
    made = run.mixture.waiting[(ROWS - 1) % len(run.mixture.waiting)]
    for expert, parts in parts_of_experts(learner.plan, run.mixture, ROWS - 1):
        if not np.isnan(made[expert]).any():
            total = sum(parts.values())
            np.testing.assert_allclose(total, made[expert], rtol=1e-6, atol=1e-6)


def test_the_calendar_is_a_part_of_the_forecasts_of_its_member():
    """Its forecasts are what the calendar says, and least squares on the errors of that."""
    rng, hours, steps = np.random.default_rng(0), np.arange(300), (1, 3)
    target = np.sin(hours * np.pi / 12) + 0.1 * rng.normal(size=300)
    outlook = [np.stack([(hours + ahead) % 24, (hours + ahead) // 24 % 7], 1) for ahead in (0, *steps)]
    xs = np.concatenate([target[:, None], rng.normal(size=(300, 1)), *outlook], axis=1).astype(np.float32)
    shape = StreamShape(2, 1, False, 1, steps, (0,), outlook=OutlookShape(("hour", "weekday")))
    learner, run = series(shape, False, 20, 0)
    run, _, outputs = learner.scan(run, xs, np.tile(xs[:, :1], len(steps)))
    (calendar,), (own,) = learner.members, run.members
    parts_of_members = calendar.forecast_parts(own)
    made = run.mixture.waiting[(300 - 1) % steps[-1]][: learner.experts][-len(parts_of_members) :]
    assert len(parts_of_members) == len(calendar.names) == 2
    for parts, forecast, name in zip(parts_of_members, made, calendar.names, strict=True):
        # The forecasts of members are stored in single precision.
        np.testing.assert_allclose(sum(parts.values()), forecast, rtol=2e-7, atol=2e-7, err_msg=name)
    found = learner.explain(run).parts
    np.testing.assert_allclose(sum(found.values()), outputs.made[-1], rtol=2e-7, atol=2e-7)
    assert ForecastPart(member="the calendar of that row") in found


def test_a_forecast_of_a_single_value_comes_from_that_value():
    """Least squares finds that the target is twice the other column, three rows ago."""
    rng = np.random.default_rng(1)
    xs = rng.normal(size=(2_000, 2)).astype(np.float32)
    xs[3:, 0] = 2 * xs[:-3, 1]
    learner = NumberMixture(2, 1, models=[Linear(4, 0.9998, others=4)], known=(0,))
    run, _, _ = learner.scan(learner.init(), xs, xs[:, :1])
    parts = learner.explain(run).parts
    largest = max(parts, key=lambda part: abs(parts[part][0]))
    # The row to forecast is one after the latest.
    assert largest == ForecastPart(1, 2)
    assert parts[largest][0] == pytest.approx(2 * xs[-3, 1], rel=0.05)


def test_forecasts_of_the_same_row_and_without_past_values_can_be_explained():
    for known in ((), (0, 2)):
        learner, run, _, _ = trained((0,), known=known)
        found = learner.explain(run)
        assert all(np.isfinite(values).all() for values in found.parts.values())
    assert learner.explain(learner.init()) is None


def test_weights_of_every_row_add_up_to_one_however_rows_are_divided():
    learner, run, xs, outputs = trained((1, 2, 15))
    np.testing.assert_allclose(outputs.weights.sum(axis=1), 1, rtol=1e-12)
    again, targets, found = learner.init(), np.tile(xs[:, [0, 2]], 3), []
    for start in range(0, ROWS, 7):
        again, _, made = learner.scan(again, xs[start : start + 7], targets[start : start + 7])
        found.append(made.weights)
    np.testing.assert_array_equal(np.concatenate(found), outputs.weights)
    np.testing.assert_allclose(learner.explain(run).weights.mean(axis=1), outputs.weights[-1], rtol=1e-12)


def test_every_member_of_the_default_method_has_its_own_name():
    for inputs, targets, steps in ((1, 1, (1,)), (7, 7, (1, 2, 3)), (9, 2, tuple(range(1, 201))), (3, 1, (0,))):
        known = tuple(range(targets)) if steps != (0,) else ()
        learner, _ = series(StreamShape(inputs, targets, False, targets, steps, known), False, 50, 0)
        names = learner.member_names
        assert len(set(names)) == len(names) == learner.experts
        assert not any("(2)" in name for name in names), names
    learner, run = classes(StreamShape(4, 17, False, 1, (1,), previous=0), 50, 0)
    assert len(set(learner.member_names)) == learner.experts
    assert run.mixture.log_weights.shape[1] == learner.experts
    assert any(name.startswith("neighbours") for name in learner.member_names)


def test_the_names_of_linear_models_differ_when_their_settings_do():
    for inputs, outputs, own in ((1, 1, 1), (7, 168, 7), (30, 24, 1), (2, 2, 0)):
        names = [model.name for model in linear_models(inputs, outputs, own)]
        assert len(set(names)) == len(names), names
