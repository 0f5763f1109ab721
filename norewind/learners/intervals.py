"""Intervals around the forecasts of any learner of rows, whose coverage is guaranteed for every stream."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from norewind.core.checks import ModelError
from norewind.core.losses import log_variance
from norewind.core.run import NonFiniteError, nonfinite_error
from norewind.engines.kernels import kernel
from norewind.learners.horizon import upcoming_forecasts
from norewind.learners.keyed.keyed_program import KeyedProgram
from norewind.learners.learner import Forecasts, RowLearner, WrappingLearner

# How far a threshold moves per row. For forecasts h rows ahead, it is divided by √h.
GAIN = 0.05
# At this threshold, a bound is infinite. Its hyperbolic sine, 30, counts deviations of the forecast.
MAX_THRESHOLD = math.asinh(30.0)
# The deviation of a forecast is that of about this many of its latest errors, and at first 1, with a weight of 10.
RECENT, FIRST_WEIGHT = 200.0, 10.0
# A larger error, in standard deviations of the column, counts as this large in the deviation.
MAX_ERROR = 10.0


class IntervalPlan(NamedTuple):
    """The constants of intervals.

    Attributes:
        steps: the steps, in rows ahead.
        tails: the fraction of targets that may lie beyond each bound: of every level, the lower and the upper one.
        gains: how far thresholds move, by step.
    """

    steps: np.ndarray
    tails: np.ndarray
    gains: np.ndarray


class IntervalState(NamedTuple):
    """What intervals have learned, with one entry per slot along the leading axis.

    Attributes:
        thresholds: how far each bound is from the forecast, as the inverse hyperbolic sine of its distance in
            deviations of the forecast (slots, bounds, outputs).
        errors: the mean squared error of each output (slots, 2, outputs), preceded by the number of errors.
        waiting: a ring of the bounds that are waiting for their targets (slots, rows, bounds, outputs).
        rows: the number of rows so far (slots).
    """

    thresholds: np.ndarray
    errors: np.ndarray
    waiting: np.ndarray
    rows: np.ndarray


class IntervalRun(NamedTuple):
    """A run of the learner inside, and the state of the intervals around its forecasts.

    Attributes:
        run: the run of the learner.
        state: the state of the intervals, with one slot.
    """

    run: Any
    state: IntervalState


class IntervalLearner(WrappingLearner):
    """A learner of rows whose forecasts have intervals, with bounds on how often targets miss them.

    Each interval has two bounds, a number of deviations sinh(u) away from the forecast. The deviation is the one that
    the learner forecasts, or the root mean square of its latest errors at that step. Every time a target arrives,
    the threshold u of each bound moves by γ (1 − β) outwards if the target missed it, and otherwise by γ β inwards,
    where β, half of 1 − level, is the share of targets that may miss each bound. This is gradient descent on the
    pinball loss of the quantile 1 − β (Gibbs and Candès 2021; Angelopoulos, Candès and Tibshirani 2023): every step,
    target and bound has its own u.

    Where u has reached `MAX_THRESHOLD`, the bound is infinite and cannot be missed. So for every stream, among the
    first T targets that arrive h rows after their forecasts, at most

        β T + (MAX_THRESHOLD − u₁) / γ + (1 − β) h

    miss a bound: rows that are still waiting for their targets add at most h misses. (A threshold does not fall below
    −`MAX_THRESHOLD`. Until one reaches that limit, the number of misses has a corresponding lower bound.)

    Args:
        learner: the learner.
        levels: the coverage of each interval, such as 0.8 and 0.95.
        targets: the number of targets.
        gaussian: whether the outputs of the learner hold variances.

    Raises:
        ModelError: a level is not between 0 and 1.

    >>> from norewind.learners import LeastSquares
    >>> random = np.random.default_rng(0)
    >>> learner = IntervalLearner(LeastSquares(1, 1, steps=(1,)), [0.9], targets=1)
    >>> noise = random.normal(size=(2_000, 1))
    >>> _, _, (made, due) = learner.scan(learner.init(learner.learner.init()), noise, noise)
    >>> forecast, low, high = due[1_000:].T
    >>> bool(0.87 < np.mean((low <= noise[1_000:, 0]) & (noise[1_000:, 0] <= high)) < 0.93)
    True
    """

    def __init__(self, learner: RowLearner, levels: Sequence[float], *, targets: int, gaussian: bool = False):
        if not all(0 < level < 1 for level in levels):
            raise ModelError(f"IntervalLearner: levels must be between 0 and 1, not {list(levels)}.")
        self.learner, self.steps, self.window = learner, learner.steps, learner.window
        self.member_names = learner.member_names
        self.parts = 1 + gaussian
        self.outputs = len(self.steps) * targets
        ahead = np.maximum(1, np.array(self.steps, np.int64))
        tails = np.repeat([(1 - level) / 2 for level in levels], 2)
        self.plan = IntervalPlan(np.array(self.steps, np.int64), tails, GAIN / np.sqrt(ahead))

    def start(self) -> IntervalState:
        """Return the state of one slot before the first row: the bounds of normal errors."""
        bounds, outputs = len(self.plan.tails), self.outputs
        first = [math.asinh(NormalDist().inv_cdf(1 - tail)) for tail in self.plan.tails]
        thresholds = np.repeat(np.clip(first, -MAX_THRESHOLD, MAX_THRESHOLD)[:, None], outputs, axis=1)
        errors = np.stack([np.full(outputs, FIRST_WEIGHT), np.ones(outputs)])
        waiting = np.full((max(1, self.horizon), bounds, outputs), np.nan, np.float32)
        return IntervalState(thresholds[None], errors[None], waiting[None], np.zeros(1, np.int64))

    def init(self, run: Any) -> IntervalRun:
        """Start from a run of the learner.

        Args:
            run: the run of the learner inside.
        """
        return IntervalRun(run, self.start())

    def scan(
        self, run: IntervalRun, xs: Any, targets: Any, *, count: int | None = None, outputs: bool = False
    ) -> tuple[IntervalRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`. Outputs are the learner's, followed by their bounds."""
        count = len(xs) if count is None else count
        try:
            inner, losses, forecasts = self.learner.scan(run.run, xs, targets, count=count, outputs=True)
        except NonFiniteError as error:
            good = (int(error.run.samples) - int(run.run.samples)) // max(1, self.window)
            raise nonfinite_error(self.scan(run, xs, targets, count=good)[0], error.step) from None
        slots = np.zeros(count * max(1, self.window), np.int64)
        return IntervalRun(inner, run.state), losses, self.add_bounds(run.state, slots, targets, forecasts)

    def forward(self, run: IntervalRun, xs: Any, *, count: int | None = None) -> tuple[IntervalRun, Forecasts]:
        count = len(xs) if count is None else count
        inner, forecasts = self.learner.forward(run.run, xs, count=count)
        state = run.state._replace(waiting=run.state.waiting.copy(), rows=run.state.rows.copy())
        unknown = np.full((len(xs), self.outputs), np.nan, np.float32)
        return IntervalRun(inner, state), self.add_bounds(state, np.zeros(count, np.int64), unknown, forecasts)

    def add_bounds(self, state: IntervalState, slots: np.ndarray, targets: Any, forecasts: Forecasts) -> Forecasts:
        """Learn from the targets of rows, and add bounds to the forecasts made at these rows and to those due.

        Args:
            state: the state of the intervals, changed in place.
            slots: the slot of each row; rows after these are ignored.
            targets: the targets of the rows; NaN means unknown.
            forecasts: the forecasts of the learner.
        """
        made, due = (np.asarray(part) for part in forecasts)
        shape, width = made.shape[:-1], made.shape[-1]
        made, due = made.reshape(-1, width), due.reshape(-1, width)
        targets = np.asarray(targets, np.float64).reshape(-1, self.outputs)
        spreads = np.empty((0, self.outputs))
        if self.parts == 2:
            spreads = np.exp(log_variance(made[:, self.outputs :].astype(np.float64)) / 2)
        bounds = np.zeros((2, len(made), len(self.plan.tails), self.outputs), np.float32)
        means = np.ascontiguousarray(made[:, : self.outputs], np.float64)
        earlier = np.ascontiguousarray(due[:, : self.outputs], np.float64)
        _add_bounds(tuple(self.plan), tuple(state), slots, targets, means, earlier, spreads, bounds)
        parts = [
            np.concatenate([own, new.reshape(len(own), -1)], 1) for own, new in zip((made, due), bounds, strict=True)
        ]
        made, due = (part.reshape(*shape, -1) for part in parts)
        return Forecasts(made, due if self.horizon else made, forecasts.weights)

    def upcoming(self, run: IntervalRun) -> np.ndarray:
        return np.concatenate([self.learner.upcoming(run.run), self.upcoming_bounds(*run.state[2:])], axis=1)

    def replan(self, run: IntervalRun, x: np.ndarray) -> tuple[IntervalRun, np.ndarray]:
        inner, made = self.learner.replan(run.run, x)
        state = run.state._replace(waiting=run.state.waiting.copy(), rows=run.state.rows - 1)
        unknown = np.full((1, self.outputs), np.nan, np.float32)
        forecasts = self.add_bounds(state, np.zeros(1, np.int64), unknown, Forecasts(made[None], made[None]))
        return IntervalRun(inner, state), forecasts.made[0]

    def upcoming_bounds(self, waiting: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the bounds of the next `horizon` rows, the nearest row first.

        Args:
            waiting: the bounds of one slot that wait for their targets, with or without the axis of slots.
            rows: the number of its rows.
        """
        return upcoming_forecasts(waiting.reshape(waiting.shape[-3:]), self.steps, int(np.ravel(rows)[0]))

    def for_keys(self, run: IntervalRun, *, share: bool = False) -> KeyedProgram:
        from norewind.learners.keyed.keyed_intervals import KeyedIntervals

        return KeyedIntervals(self, self.learner.for_keys(run.run, share=share))

    def reset(self, run: IntervalRun) -> IntervalRun:
        run.state.waiting[:] = np.nan
        run.state.rows[:] = 0
        return IntervalRun(self.learner.reset(run.run), run.state)


@kernel
def _add_bounds(plan, state, slots, targets, made, due, spreads, bounds):
    """Move the thresholds by the targets of each row, and write the bounds of the forecasts made there and due there.

    With step 0, the bounds of a row are written first.

    Args:
        plan: the fields of an `IntervalPlan`.
        state: the fields of an `IntervalState`, changed in place.
        slots: the slot of each row.
        targets: the targets of the rows (rows, outputs); NaN means unknown.
        made: the forecasts made at the rows.
        due: the earlier forecasts of the rows.
        spreads: the deviations of the forecasts made at the rows; without any, those of the latest errors.
        bounds: where to write the bounds of the forecasts made and due (2, rows, bounds, outputs).
    """
    plan, (thresholds, errors, waiting, rows) = IntervalPlan(*plan), state
    tails, ring, outputs = plan.tails, waiting.shape[1], targets.shape[1]
    per_step = outputs // len(plan.steps)
    for t in range(len(slots)):
        slot = slots[t]
        row = rows[slot]
        for i in range(outputs):
            step = plan.steps[i // per_step]
            if step > 0:
                target = targets[t, i] if row >= step else np.nan
                before = waiting[slot, (row - step) % ring, :, i]
                bounds[1, t, :, i] = before
                _learn(
                    thresholds[slot, :, i],
                    errors[slot, :, i],
                    tails,
                    plan.gains[i // per_step],
                    target,
                    due[t, i],
                    before,
                )
            spread = spreads[t, i] if len(spreads) else math.sqrt(errors[slot, 1, i])
            for bound in range(len(tails)):
                bounds[0, t, bound, i] = _bound(thresholds[slot, bound, i], bound % 2, made[t, i], spread)
            if step == 0:
                now = bounds[0, t, :, i]
                bounds[1, t, :, i] = now
                _learn(thresholds[slot, :, i], errors[slot, :, i], tails, plan.gains[0], targets[t, i], made[t, i], now)
        waiting[slot, row % ring] = bounds[0, t]
        rows[slot] += 1


@kernel
def _bound(threshold, is_upper, forecast, spread):
    """Return a bound of a forecast."""
    distance = np.inf if threshold >= MAX_THRESHOLD else spread * math.sinh(threshold)
    return forecast + distance if is_upper else forecast - distance


@kernel
def _learn(thresholds, errors, tails, gain, target, forecast, bounds):
    """Move the thresholds of one output by a target, and add the error of its forecast.

    Args:
        thresholds: the thresholds of its bounds, changed in place.
        errors: the number of errors and their mean square, changed in place.
        tails: the fraction of targets that may lie beyond each bound.
        gain: how far thresholds move.
        target: the target; NaN means unknown.
        forecast: the earlier forecast of it.
        bounds: the bounds of that forecast.
    """
    if not np.isfinite(target) or np.isnan(forecast):
        return
    for bound in range(len(tails)):
        if not np.isnan(bounds[bound]):
            missed = np.float32(target) > bounds[bound] if bound % 2 else np.float32(target) < bounds[bound]
            thresholds[bound] = max(thresholds[bound] + gain * (missed - tails[bound]), -MAX_THRESHOLD)
    error = min(abs(target - forecast), MAX_ERROR)
    errors[0] = min(errors[0] + 1, RECENT)
    errors[1] += (error * error - errors[1]) / errors[0]
