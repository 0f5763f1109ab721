"""Forecasts of the numbers of a key, which has few rows: simple rules and least squares, weighted by their errors."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners import expert_weights
from norewind.learners.horizon import check_same_length, check_steps, exchange, upcoming_forecasts
from norewind.learners.keyed.keyed_program import KeyedProgram
from norewind.learners.learner import Forecasts, RowLearner, empty_forecasts
from norewind.learners.linear import Linear, LinearModel, LinearPlan, init_linear, linear_plan, linear_row

# The logarithm of the first weight of the last value, relative to that of any other expert.
FIRST_WEIGHT = 3.0
# The weight of a row in the records of the experts. With few rows, each has to count.
ROW_WEIGHT = 1.0


class KeyMixturePlan(NamedTuple):
    """The constants of a `KeyMixture`.

    Attributes:
        linear: those of least squares.
        known: which inputs are the latest targets.
        periods: the periods of the rules in rows; 0 for the last value.
    """

    linear: LinearPlan
    known: np.ndarray
    periods: np.ndarray


class KeyMixtureRun(NamedTuple):
    """The state of mixtures, with one entry per slot along the leading axis.

    Attributes:
        features: the features and gains of least squares; see `LinearModel`.
        factors: its factors of the covariance.
        weights: its weights.
        spreads: the variances of its errors.
        variance: the mean variances of its weights.
        rows: the number of rows so far.
        values: a ring of the latest values of the targets (slots, rows, targets): row t is at t modulo its length.
        scales: the mean and the deviation of each target that the values are expressed in; NaN if not known.
        waiting: a ring of the experts' forecasts that are waiting for their targets.
        variances: the variances of the experts' errors; see `expert_weights.Performance`.
        recent_losses: their recent log-loss.
        known: how many known targets they had forecast.
        outputs: a ring of the forecasts.
    """

    features: np.ndarray
    factors: np.ndarray
    weights: np.ndarray
    spreads: np.ndarray
    variance: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    scales: np.ndarray
    waiting: np.ndarray
    variances: np.ndarray
    recent_losses: np.ndarray
    known: np.ndarray
    outputs: np.ndarray


class KeyMixture(RowLearner):
    """Forecasts numbers by simple rules and least squares, weighted by their recent performance.

    The experts are the running mean, the last value, the value one period ago, for each of `periods`, and least
    squares on the latest rows. It starts from the last value. Every step and target has its own weights.

    Targets are (rows, steps × targets), and losses are squared errors.

    Args:
        inputs: the number of inputs.
        targets: the number of targets.
        steps: the steps to forecast, in rows ahead, in increasing order; `(0,)` if targets belong to the row itself.
        model: least squares.
        limit: the largest error that least squares learns from, in standard deviations of its earlier errors.
        known: which of the inputs are the latest known targets; empty if they are not among them. Then there are no
            rules.
        periods: the periods in rows.

    >>> week = np.tile(np.arange(7), 20)[:, None] / 7
    >>> learner = KeyMixture(1, 1, steps=(1, 2), known=[0], periods=[7])
    >>> run, _, _ = learner.scan(learner.init(), week, np.tile(week, 2))
    >>> [round(float(forecast), 2) for forecast in learner.upcoming(run).ravel()]
    [0.0, 0.14]
    """

    def __init__(
        self,
        inputs: int,
        targets: int,
        *,
        steps: Sequence[int] = (1,),
        model: Linear = Linear(8),  # noqa: B008 (immutable)
        limit: float = np.inf,
        known: Sequence[int] = (),
        periods: Sequence[int] = (),
    ):
        self.inputs, self.targets, self.model = inputs, targets, model
        self.steps = check_steps(type(self).__name__, steps)
        self.outputs = len(self.steps) * targets
        rules = [0, *periods] if len(known) else []
        linear = linear_plan([model], inputs, targets, steps, limit)
        self.plan = KeyMixturePlan(linear, np.array(known, np.int64), np.array(rules, np.int64))

    def init(self) -> KeyMixtureRun:
        """Start a run, with one slot."""
        linear = init_linear(self.plan.linear, [self.model], self.inputs, self.targets)
        width, rules = self.plan.linear.sizes[0, 1], len(self.plan.periods)
        performance = expert_weights.init_performance(2 + rules, self.outputs)
        if rules:
            performance.recent_losses[1] = -2 * FIRST_WEIGHT
        known = len(self.plan.known)
        ring = max([1, *self.plan.periods.tolist()])
        return KeyMixtureRun(
            linear.past.reshape(1, -1, 1 + self.plan.linear.groups, width),
            linear.factors[None],
            linear.weights.reshape(1, -1, width),
            linear.spreads,
            linear.variances,
            np.zeros(1, np.int64),
            np.zeros((1, ring, known)),
            np.full((1, known, 2), np.nan),
            np.zeros((1, max(1, self.horizon), 2 + rules, self.outputs), np.float32),
            performance.variances[None],
            performance.recent_losses[None],
            performance.known[None],
            np.zeros((1, self.horizon, 1, self.outputs), np.float32),
        )

    def scan(
        self, run: KeyMixtureRun, xs: Any, targets: Any, *, count: int | None = None, outputs: bool = False
    ) -> tuple[KeyMixtureRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`. Outputs are always returned: they cost nothing extra."""
        check_same_length(xs, targets)
        slots = np.zeros(len(xs) if count is None else count, np.int64)
        return run, *self.learn(run, slots, xs, targets)

    def forward(self, run: KeyMixtureRun, xs: Any, *, count: int | None = None) -> tuple[KeyMixtureRun, Forecasts]:
        run = KeyMixtureRun(*(part.copy() for part in run))
        run, _, forecasts = self.scan(run, xs, np.full((len(xs), self.outputs), np.nan, np.float32), count=count)
        return run, forecasts

    def learn(
        self, run: KeyMixtureRun, slots: np.ndarray, xs: Any, targets: Any, scales: np.ndarray | None = None
    ) -> tuple[np.ndarray, Forecasts]:
        """Learn from rows of any slots, in order.

        Args:
            run: the state of all slots, changed in place.
            slots: the slot of each row; rows after these are ignored.
            xs: inputs.
            targets: their targets.
            scales: the scale of the inputs of each row, as in `KeyedProgram.learn`.

        Returns:
            The losses and the forecasts.
        """
        xs, targets = np.ascontiguousarray(xs, np.float32), np.ascontiguousarray(targets, np.float32)
        losses = np.zeros(len(xs), np.float32)
        forecasts = empty_forecasts(self.horizon, targets.shape)
        scales = np.empty((0, 0, 2)) if scales is None else scales
        _learn_rows(self.plan, tuple(run), slots, xs, targets, scales, (losses, *forecasts))
        return losses, forecasts

    def for_keys(self, run: KeyMixtureRun, *, share: bool = False) -> KeyedProgram:
        from norewind.learners.keyed.keyed_mixture import KeyedMixture

        return super().for_keys(run, share=True) if share else KeyedMixture(self, run)

    def upcoming(self, run: KeyMixtureRun) -> np.ndarray:
        return upcoming_forecasts(run.outputs[0], self.steps, int(run.rows[0]))

    def reset(self, run: KeyMixtureRun) -> KeyMixtureRun:
        for part in (run.features, run.rows, run.values, run.outputs):
            part[:] = 0
        return run


@kernel
def _learn_rows(plan, run, slots, xs, targets, scales, results):
    """Learn from each row with the state in its slot, then forecast from it.

    Args:
        plan: the `KeyMixturePlan`.
        run: the fields of a `KeyMixtureRun`, changed in place.
        slots: the slot of each row.
        xs: inputs.
        targets: targets; NaN means unknown.
        scales: the mean and deviation of each target that the inputs are standardised with; no rows if they never
            change.
        results: where to write the losses, the forecasts made at the rows, and those that were due.
    """
    runs, (losses, made, due) = KeyMixtureRun(*run), results
    steps, outputs = plan.linear.steps, targets.shape[1]
    experts, per_step, rules = runs.waiting.shape[2], outputs // len(steps), len(plan.periods)
    forecasts, before, weights = (
        np.zeros((experts, outputs)),
        np.zeros((experts, outputs)),
        np.zeros((experts, outputs)),
    )
    moments, came = np.zeros((2, outputs)), np.zeros(outputs)
    for t in range(len(slots)):
        slot = slots[t]
        row = runs.rows[slot]
        model = LinearModel(
            runs.features[slot], runs.factors[slot], runs.weights[slot], runs.spreads[slot], runs.variance[slot]
        )
        performance = expert_weights.Performance(runs.variances[slot], runs.recent_losses[slot], runs.known[slot])
        for i in range(outputs):
            came[i] = targets[t, i] if row >= steps[i // per_step] else np.nan
        values = runs.values[slot]
        if len(scales) > 0:
            _express_in(values, runs.scales[slot], scales[t])
        for k in range(len(plan.known)):
            values[row % len(values), k] = xs[t, plan.known[k]]
        for rule in range(rules):
            _repeat(values, row, steps, plan.periods[rule], forecasts[1 + rule])
        linear_row(plan.linear, 0, model, row, xs[t], came, forecasts[experts - 1])
        for e in range(experts):
            expert_weights.clip_forecasts(forecasts[e], e > 0)
        if steps[0] > 0:
            exchange(runs.waiting[slot], steps, row, forecasts, before)
            expert_weights.update_performance(performance, before, came, ROW_WEIGHT)
        expert_weights.mix_densities(performance, forecasts, moments[0], moments[1], weights)
        if steps[0] == 0:
            expert_weights.update_performance(performance, forecasts, came, ROW_WEIGHT)
        made[t] = moments[0]
        if steps[0] > 0:
            exchange(runs.outputs[slot], steps, row, moments[:1], moments[:1])
        due[t] = moments[0]
        losses[t] = expert_weights.known_loss(moments[:1], came)
        runs.rows[slot] += 1


@kernel
def _express_in(values, before, now):
    """Express past values in another scale, because the mean and deviation of their series have changed.

    Args:
        values: the past values, changed in place.
        before: the mean and the deviation of each target that they are expressed in; becomes a copy of `now`.
        now: the new ones; NaN while there are too few values.
    """
    for k in range(len(before)):
        factor, shift = before[k, 1] / now[k, 1], (before[k, 0] - now[k, 0]) / now[k, 1]
        if np.isfinite(factor) and np.isfinite(shift):
            for row in range(len(values)):
                values[row, k] = values[row, k] * factor + shift
        before[k] = now[k]


@kernel
def _repeat(values, row, steps, period, forecasts):
    """Forecast the last value, or for each step the latest value that is whole periods older.

    Args:
        values: the past values.
        row: the number of the latest row.
        steps: how many rows ahead.
        period: the period in rows; 0 for the last value.
        forecasts: where to write the forecasts; NaN if there are not enough rows yet.
    """
    targets = values.shape[1]
    for s in range(len(steps)):
        ago = -(-steps[s] // period) * period - steps[s] if period > 0 else 0
        for k in range(targets):
            found = values[(row - ago) % len(values), k]
            forecasts[s * targets + k] = found if period <= row else np.nan
