"""Forecasts of numbers by least squares, networks and simple rules, mixed by their recent performance."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners import expert_weights
from norewind.learners.explanation import Explanation, ForecastParts, explain_numbers
from norewind.learners.horizon import PERIODS, exchange, upcoming_forecasts
from norewind.learners.learner import Forecasts, empty_forecasts
from norewind.learners.linear import (
    Linear,
    LinearPlan,
    LinearRun,
    init_linear,
    linear_plan,
    linear_row,
    model_at,
    reset_linear,
    restart_model,
)
from norewind.learners.mixture import Member, MixtureRun, RowMixture, join_forecasts, unique_names
from norewind.learners.outlook import OutlookLearner
from norewind.learners.past_values import (
    FIRST_ROWS,
    PastValues,
    changed,
    clip_to_past,
    init_past,
    limited_row,
    remember_row,
    rule_name,
    write_errors,
    write_rule,
)
from norewind.learners.regrets import Regrets, follow_regrets, init_regrets, update_regrets
from norewind.learners.rescaling import choose_units, convert, convert_back, rescale, write_values
from norewind.learners.seasons import LONGEST_PERIOD, Seasons, init_seasons, observe_row
from norewind.learners.smoothing import (
    Smoothing,
    SmoothingRun,
    init_smoothing,
    smooth_row,
    smoothing_table,
    write_smoothed,
)

# Simple rules: the period, where -1 and -2 are the seasons of the series and 0 is the last value, and whether they add
# the change since a period ago.
RULES = ((0, 0), *((period, 0) for period in PERIODS), (-1, 0), (-2, 0), (-1, 1))
# The logarithm of the first weight of the last value, relative to that of any other expert.
FIRST_WEIGHT = 3.0
# The largest error that a linear model learns from, in standard deviations of its earlier errors.
ERROR_LIMIT = 5.0


class NumberMixturePlan(NamedTuple):
    """The constants of a `NumberMixture`.

    Attributes:
        steps: the steps, in rows ahead.
        sizes: the sizes of the linear models; see `LinearPlan`.
        rates: their forgetting and limits; see `LinearPlan`.
        groups: 1, since all targets share a covariance; see `LinearPlan`.
        own: the number of inputs that are the latest targets; see `LinearPlan`.
        inputs: the number of inputs.
        rules: the period of each rule in rows, or minus the number of a season, and whether it adds the change since a
            period ago (rules, 2).
        bases: for each linear model, the rule whose errors it forecasts; -1 if it forecasts the targets.
        known: which inputs are the latest targets.
        others: the other inputs.
        smoothings: the settings of exponential smoothing, as numbers; see `smoothing_table`.
    """

    steps: np.ndarray
    sizes: np.ndarray
    rates: np.ndarray
    groups: int
    own: int
    inputs: int
    rules: np.ndarray
    bases: np.ndarray
    known: np.ndarray
    others: np.ndarray
    smoothings: np.ndarray


class NumberMixtureRun(NamedTuple):
    """The state of the mixture, without its members.

    Attributes:
        linear: the linear models.
        past: the latest targets.
        seasons: the periods of the series.
        waiting: a ring of the experts' forecasts that are waiting for their targets.
        performance: the experts' variances and records.
        regrets: how much less every expert, and their average, has lost than the mixture.
        smoothing: the exponential smoothings.
        outputs: a ring of the mixture's forecasts.
    """

    linear: LinearRun
    past: PastValues
    seasons: Seasons
    waiting: np.ndarray
    performance: expert_weights.Performance
    regrets: Regrets
    smoothing: SmoothingRun
    outputs: np.ndarray


class NumberMixture(RowMixture):
    """Forecasts rows of numbers, all steps of a horizon, by experts weighted by their recent performance.

    The experts are the running mean, linear models, `members`, and, where the past of the targets is known,
    persistence and the value one period ago, for some common periods and for those that are found in the series; for
    steps longer than a period, the latest value that is a whole number of periods older. An expert without enough rows
    does not count yet, and the mixture starts from the last value. Every step and target has its own weights.

    Targets are (rows, steps × targets), and losses are squared errors, or nats if `gaussian`.

    Args:
        inputs: the number of inputs. Any that follow them are seen by the members only.
        targets: the number of targets.
        steps: the steps to forecast, in rows ahead, in increasing order; `(0,)` if targets belong to the row itself.
        models: the linear models.
        smoothings: exponential smoothings, if the past of the targets is known.
        members: other learners of the same steps.
        known: which of the inputs are the latest known targets; empty if they are not among them.
        gaussian: whether to forecast variances as well, as `losses.known_gaussian` expects them.
        periods: at most two periods of the series in rows, if they are known in advance.
        scales: how many columns follow the inputs. They are the mean of each known target in two parts and its
            deviation, by which the input is standardised, or there are none.
    """

    def __init__(
        self,
        inputs: int,
        targets: int,
        *,
        steps: Sequence[int] = (1,),
        models: Sequence[Linear] = (),
        smoothings: Sequence[Smoothing] = (),
        members: Sequence[Member] = (),
        known: Sequence[int] = (),
        gaussian: bool = False,
        periods: Sequence[int] = (),
        scales: int = 0,
    ):
        super().__init__(members, steps)
        self.scales = scales
        self.inputs = inputs
        self.targets = targets
        self.gaussian = gaussian
        self.periods = tuple(periods)
        own, rules = len(known), RULES if len(known) else ()
        self.smoothings = tuple(smoothings) if own else ()
        # Without the past of the targets, there is nothing to take differences of.
        self.models = [model for model in models if own or (model.season, model.differences) == (0, False)]
        linear = linear_plan(self.models, inputs, targets, steps, ERROR_LIMIT, own=own)
        bases = [_rule_of(model) for model in self.models]
        others = [i for i in range(inputs) if i not in known]
        arrays = (np.array(values, np.int64) for values in (bases, known, others))
        self.plan = NumberMixturePlan(*linear, np.array(rules, np.int64).reshape(-1, 2), *arrays, smoothing_table(self.smoothings))
        self.outputs = len(self.steps) * targets
        self.member_names = unique_names(
            ["mean so far", *(rule_name(*rule) for rule in rules), *(one.name for one in (*self.models, *self.smoothings))],
            members,
        )
        self.experts = len(self.member_names)
        # Numba takes several times as long for named or nested tuples.
        self._plan = tuple(self.plan)
        self._no_targets = np.empty((0, self.outputs), np.float32)

    def _inputs_of(self, xs: np.ndarray) -> np.ndarray:
        own, others = xs[:, : self.inputs], xs[:, self.inputs + self.scales :]
        return np.concatenate([own, others], axis=1) if self.scales else xs

    def start(self) -> NumberMixtureRun:
        known = len(self.plan.known)
        performance = expert_weights.init_performance(self.experts, self.outputs)
        if known:
            performance.recent_losses[1] = -2 * FIRST_WEIGHT
        return NumberMixtureRun(
            init_linear(LinearPlan(*self.plan[:6]), self.models, self.inputs, self.targets),
            init_past(known, self.horizon),
            init_seasons(known, self.periods),
            np.zeros((max(1, self.horizon), self.experts + 2, self.outputs), np.float32),
            performance,
            init_regrets(self.experts + 1, self.outputs),
            init_smoothing(self.smoothings, known, LONGEST_PERIOD),
            np.zeros((self.horizon, 1 + self.gaussian, self.outputs), np.float32),
        )

    def copy_of(self, mixture: NumberMixtureRun) -> NumberMixtureRun:
        linear, past, seasons, waiting, performance, regrets, smoothing, outputs = mixture
        features, factors, weights, spreads, variances, rows = linear  # `_replace` takes a microsecond
        linear = LinearRun(features.copy(), factors, weights, spreads, variances, rows.copy())
        past = PastValues(past.values.copy(), past.ends.copy(), past.scales.copy())
        smoothing = SmoothingRun(*(part.copy() for part in smoothing))
        return NumberMixtureRun(linear, past, seasons, waiting, performance, regrets, smoothing, outputs.copy())

    def mix(
        self, mixture: NumberMixtureRun, others: list[Forecasts], xs: np.ndarray, targets: np.ndarray | None, count: int
    ) -> tuple[np.ndarray, Forecasts]:
        xs = np.ascontiguousarray(xs[:, : self.inputs + self.scales], np.float32)  # what follows is for members
        targets = self._no_targets if targets is None else np.ascontiguousarray(targets, np.float32)
        rows = len(xs)
        joined = join_forecasts(others, rows, self.outputs)
        losses = np.zeros(rows, np.float32)
        made, due = forecasts = empty_forecasts(self.horizon, (rows, (1 + self.gaussian) * self.outputs))
        linear, past, seasons, waiting, performance, regrets, smoothing, rings = mixture
        run = *linear, *past, *seasons, waiting, *performance, *regrets, *smoothing, rings
        weights = forecasts.weights = np.zeros((rows, self.experts))
        _mix_rows(self._plan, run, xs if count == rows else xs[:count], targets, joined, losses, made, due, weights)
        return losses, forecasts

    def explain(self, run: MixtureRun) -> Explanation | None:
        parts: list[ForecastParts] = []
        for learner, own, count in zip(self.members, run.members, self.forecasts, strict=True):
            parts += learner.forecast_parts(own) or count * [{}]
        return explain_numbers(self, run.mixture, parts)

    def upcoming(self, run: MixtureRun) -> np.ndarray:
        return upcoming_forecasts(run.mixture.outputs, self.steps, run.mixture.linear.rows[0])

    def replan(self, run: MixtureRun, x: np.ndarray) -> tuple[MixtureRun, np.ndarray]:
        mixture, members, changes = run.mixture, list(run.members), np.zeros((self.experts, self.outputs))
        expert, seen = self.experts - sum(self.forecasts), self._inputs_of(x[None])[0]
        for place, (learner, count) in enumerate(zip(self.members, self.forecasts, strict=True)):
            if isinstance(learner, OutlookLearner):
                members[place], changes[expert : expert + count] = learner.replan(members[place], seen)
            expert += count
        place = (int(mixture.linear.rows[0]) - 1) % len(mixture.waiting)
        forecasts = mixture.waiting[place].astype(np.float64)
        scales = mixture.past.scales
        if len(self.plan.known):  # members forecast in the units of the row
            changes *= np.tile(scales[1] / scales[3], len(self.steps))
        forecasts[: self.experts] += changes
        rings, moments = mixture.outputs.copy(), np.zeros((2, self.outputs))
        _limit(self.plan, mixture, forecasts)
        _mix(self.plan, mixture, forecasts, np.zeros_like(changes), moments)
        if self.gaussian:
            expert_weights.encode_variances(moments[1])
        rings[place] = moments[: 1 + self.gaussian]
        return MixtureRun(tuple(members), mixture._replace(outputs=rings)), rings[place].reshape(-1)

    def forget_rows(self, mixture: NumberMixtureRun) -> None:
        reset_linear(mixture.linear)
        mixture.past.ends[:] = init_past(len(self.plan.known), self.horizon).ends
        for part in (mixture.past.values, mixture.seasons.seen, mixture.outputs):
            part[:] = 0


@kernel
def _mix_rows(plan, run, xs, targets, others, losses, made, due, shares):
    """Learn from each row's targets, then forecast from it. For forecasts of the row itself, forecast first.

    Args:
        plan: the fields of a `NumberMixturePlan`.
        run: the arrays of a `NumberMixtureRun`, changed in place.
        xs: inputs.
        targets: targets; NaN means unknown. Without any rows of targets, nothing is learned.
        others: the members' forecasts (rows, forecasts, outputs).
        losses: where to write the losses.
        made: where to write the forecasts made at the rows.
        due: where to write the earlier forecasts of the rows.
        shares: where to write the mean weights of the experts (rows, experts).
    """
    plan = NumberMixturePlan(*plan)
    past, seasons, performance = PastValues(*run[6:9]), Seasons(*run[9:14]), expert_weights.Performance(*run[15:18])
    regrets, smoothing = Regrets(*run[18:20]), SmoothingRun(*run[20:24])
    run = NumberMixtureRun(LinearRun(*run[:6]), past, seasons, run[14], performance, regrets, smoothing, run[24])
    steps = plan.steps
    outputs = targets.shape[1]
    learns = len(targets) > 0
    experts, per_step = len(run.performance.recent_losses), outputs // len(steps)
    # After the experts' forecasts come their average, and the forecasts to make.
    forecasts, before = np.zeros((experts + 2, outputs)), np.zeros((experts + 2, outputs))
    weights = np.zeros((experts, outputs))
    shown, moments, came = np.zeros((run.outputs.shape[1], outputs)), np.zeros((2, outputs)), np.zeros(outputs)
    learned = np.zeros(outputs)
    for t in range(len(xs)):
        row = run.linear.rows[0]
        for i in range(outputs):
            came[i] = targets[t, i] if learns and row >= steps[i // per_step] else np.nan
        learned[:] = came
        if len(plan.known) > 0:
            _remember(plan, run, row, xs[t], learns)
            if xs.shape[1] > plan.inputs:
                write_values(run.past.scales, xs[t], plan.known, learned)
        _forecast(plan, run, row, xs[t], learned, forecasts)
        for i in range(others.shape[1]):
            forecasts[experts - others.shape[1] + i] = others[t, i]
            if len(plan.known) > 0:
                convert(forecasts[experts - others.shape[1] + i], run.past.scales)
        _limit(plan, run, forecasts)
        if learns and steps[0] > 0:
            exchange(run.waiting, steps, row, forecasts, before)
            _learn_weights(run, before, learned)
        _mix(plan, run, forecasts, weights, moments)
        expert_weights.average_weights(weights, shares[t])
        if learns and steps[0] > 0:
            run.waiting[row % len(run.waiting), experts:] = forecasts[experts:]
        if learns and steps[0] == 0:
            run.waiting[0] = forecasts
            _learn_weights(run, forecasts, learned)
        if len(shown) == 2:
            expert_weights.encode_variances(moments[1])
        shown[:] = moments[: len(shown)]
        made[t] = shown.reshape(-1)
        if steps[0] > 0:
            exchange(run.outputs, steps, row, shown, shown)
        due[t] = shown.reshape(-1)
        losses[t] = expert_weights.known_loss(shown, came)
        run.linear.rows[0] += 1


@kernel
def _remember(plan, run, row, x, learns):
    """Add a row to the past of the targets, and find their periods. A change of a period restarts its experts."""
    remember_row(run.past, row, x, plan.known, plan.inputs)
    factors, summands = np.empty(len(plan.known)), np.empty(len(plan.known))
    if learns and choose_units(run.past, factors, summands):
        rescale(plan, run, factors, summands)
    # Outliers among the first rows are known, and cut, when a stream has units.
    for first in range(row if learns and row == FIRST_ROWS - 1 else 0):
        observe_row(run.seasons, run.past.values[first])
    found = learns and row >= FIRST_ROWS - 1 and observe_row(run.seasons, limited_row(run.past, row))
    smooth_row(plan.smoothings, run.smoothing, run.past.values, row, run.seasons.periods)
    if not found:
        return
    rules = len(plan.rules)
    for rule in range(rules):
        season = -plan.rules[rule, 0]
        if season > 0 and run.seasons.changed[season - 1] == run.seasons.seen[0]:
            run.waiting[:, 1 + rule] = np.nan
            for i in range(len(plan.bases)):
                if plan.bases[i] == rule:
                    run.waiting[:, 1 + rules + i] = np.nan
                    restart_model(plan, i, model_at(plan, run.linear, i))


@kernel
def _forecast(plan, run, row, x, targets, forecasts):
    """Write the forecasts of the rules and the linear models. The models also learn from the targets.

    An expert without enough rows forecasts NaN.
    """
    steps, rules, own = plan.steps, plan.rules, len(plan.known)
    for rule in range(len(rules)):
        period = rules[rule, 0]
        if period < 0:
            period = run.seasons.periods[-period - 1]
            period = period if period > 0 else row + 1
        write_rule(run.past, row, steps, period, rules[rule, 1] > 0, forecasts[1 + rule])
        # Models forecast the errors of these, which are therefore those of the clipped ones.
        clip_to_past(run.past, forecasts[1 + rule])
    values, _, scales = run.past
    for i in range(len(targets) if own > 0 else 0):
        forecasts[0, i] = (scales[0, i % own] - scales[2, i % own]) / scales[3, i % own]
    inputs, errors, first = np.empty(plan.inputs), np.empty(len(targets)), 1 + len(rules)
    for i in range(len(plan.others)):
        inputs[own + i] = x[plan.others[i]]
    for i in range(len(plan.sizes)):
        model, made, base = model_at(plan, run.linear, i), forecasts[first + i], plan.bases[i]
        if base < 0:
            for k in range(own):
                inputs[k] = (values[row % len(values), k] - scales[2, k]) / scales[3, k]
            linear_row(plan, i, model, row, inputs, targets, made)
            continue
        season, differences = -rules[base, 0], rules[base, 1] > 0
        period = run.seasons.periods[season - 1] if season > 0 else 0
        for k in range(own):
            inputs[k] = changed(run.past, row, period, differences, k) if season == 0 or period > 0 else 0.0
        write_errors(steps, run.waiting[:, 1 + base], row, targets, forecasts[1 + base], errors)
        linear_row(plan, i, model, row, inputs, errors, made)
        for k in range(len(made)):
            made[k] += forecasts[1 + base, k]
    first += len(plan.sizes)
    for i in range(len(plan.smoothings)):
        write_smoothed(plan.smoothings[i], run.smoothing, i, row, steps, run.past.ends[0], forecasts[first + i])
        for k in range(len(targets)):
            forecasts[first + i, k] = (forecasts[first + i, k] - scales[2, k % own]) / scales[3, k % own]


@kernel
def _limit(plan, run, forecasts):
    """Clip the forecasts of the experts."""
    for e in range(len(run.performance.recent_losses)):
        expert_weights.clip_forecasts(forecasts[e], e > 0)
        if len(plan.known) > 0:
            clip_to_past(run.past, forecasts[e])


@kernel
def _mix(plan, run, forecasts, weights, moments):
    """Write the average of the experts, the forecasts to make, and their means and variances in units of the rows."""
    experts = len(weights)
    expert_weights.mix_densities(run.performance, forecasts[:experts], forecasts[experts], moments[1], weights)
    follow_regrets(run.regrets, plan.steps, forecasts, weights)
    moments[0] = forecasts[experts + 1]
    moments[1] += (forecasts[experts + 1] - forecasts[experts]) ** 2
    if len(plan.known) > 0:
        convert_back(moments, run.past.scales)


@kernel
def _learn_weights(run, due, targets):
    """Update what decides how much every expert counts."""
    update_regrets(run.regrets, due, targets, run.performance.variances[0])
    expert_weights.update_performance(run.performance, due[: len(run.performance.known)], targets)


def _rule_of(model: Linear) -> int:
    """Return the rule whose errors a model forecasts; -1 if it forecasts the targets."""
    if not (model.season or model.differences):
        return -1
    return RULES.index((-model.season, int(model.differences and model.season > 0)))
