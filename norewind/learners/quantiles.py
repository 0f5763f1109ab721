"""Forecasts of a quantile, such as the median, instead of the mean, by any learner of rows."""

from typing import Any

import numpy as np

from norewind.core.checks import ModelError
from norewind.learners.explanation import Explanation, ForecastPart
from norewind.learners.intervals import IntervalLearner, IntervalRun
from norewind.learners.learner import Forecasts, RowLearner, WrappingLearner

# The farthest forecast, in standard deviations. No target of a standardised column is farther.
FARTHEST = 100.0


class QuantileLearner(WrappingLearner):
    """Forecasts a quantile of each target: the forecast of another learner, shifted by a tracker of its errors.

    The tracker is the lower bound of an interval of `IntervalLearner`, below which a share of `quantile` of the targets
    may fall: it moves up after a target above it, and down after one below it, in proportion to the quantile. So
    its bound on the misses holds for every stream of standardised targets: of the first T targets that arrive h rows
    after their forecasts, at most qT + (4.1 − u₁)/γ + (1 − q)h are below them, and, as long as no threshold has
    reached its limit, at most (1 − q)T + (4.1 + u₁)/γ + qh above.

    Losses are pinball losses, q (target − forecast) if the target is above the forecast, and otherwise
    (1 − q) (forecast − target), summed over the known targets. For the median, they are half the absolute errors.

    Args:
        learner: the learner of means.
        quantile: the quantile to forecast: 0.5 for the median.
        targets: the number of targets.

    Raises:
        ModelError: the quantile is not between 0 and 1.

    >>> from norewind.learners import LeastSquares
    >>> random = np.random.default_rng(0)
    >>> learner = QuantileLearner(LeastSquares(1, 1, steps=(1,)), 0.9, targets=1)
    >>> noise = random.exponential(size=(4_000, 1)) - 1
    >>> _, _, (made, due) = learner.scan(learner.init(learner.learner.learner.init()), noise, noise)
    >>> bool(0.87 < np.mean(noise[1_000:] <= due[1_000:]) < 0.93)
    True
    """

    def __init__(self, learner: RowLearner, quantile: float, *, targets: int):
        if not 0 < quantile < 1:
            raise ModelError(f"QuantileLearner: the quantile must be between 0 and 1, not {quantile}.")
        self.learner = IntervalLearner(learner, [], targets=targets)
        # A single bound, the lower one of an interval.
        self.learner.plan = self.learner.plan._replace(tails=np.array([quantile]))
        self.quantile, self.steps, self.window = quantile, learner.steps, learner.window
        self.member_names = learner.member_names
        self.outputs = len(self.steps) * targets

    def init(self, run: Any) -> IntervalRun:
        """Start from a run of the learner of means.

        Args:
            run: the run.
        """
        return self.learner.init(run)

    def scan(
        self, run: IntervalRun, xs: Any, targets: Any, *, count: int | None = None, outputs: bool = False
    ) -> tuple[IntervalRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`."""
        run, _, both = self.learner.scan(run, xs, targets, count=count, outputs=True)
        forecasts = self._quantiles(both)
        errors = np.asarray(targets, np.float64) - forecasts.due
        losses = np.where(np.isnan(errors), 0.0, np.maximum(self.quantile * errors, (self.quantile - 1) * errors))
        losses = losses.reshape(len(targets), -1).sum(axis=1)
        losses[len(targets) if count is None else count :] = 0
        return run, losses, forecasts

    def forward(self, run: IntervalRun, xs: Any, *, count: int | None = None) -> tuple[IntervalRun, Forecasts]:
        run, both = self.learner.forward(run, xs, count=count)
        return run, self._quantiles(both)

    def _quantiles(self, both: Forecasts) -> Forecasts:
        """Return the bounds alone. Where a row has no earlier forecast, it is 0, as for any learner."""
        made, due = (self._finite(part[..., self.outputs :]) for part in both)
        return Forecasts(made, due if self.horizon else made, both.weights)

    def _finite(self, bounds: np.ndarray) -> np.ndarray:
        return np.nan_to_num(np.clip(bounds, -FARTHEST, FARTHEST))

    def upcoming(self, run: IntervalRun) -> np.ndarray:
        both = self.learner.upcoming(run)
        return self._finite(both[:, both.shape[1] // 2 :])

    def replan(self, run: IntervalRun, x: np.ndarray) -> tuple[IntervalRun, np.ndarray]:
        run, both = self.learner.replan(run, x)
        return run, self._finite(both[self.outputs :])

    def explain(self, run: IntervalRun) -> Explanation | None:
        found, state = self.learner.explain(run), run.state
        if found is None:
            return None
        forecasts = self._finite(state.waiting[0, (int(state.rows[0]) - 1) % state.waiting.shape[1], 0])
        moved = forecasts - sum(found.parts.values(), np.zeros(self.outputs))
        return found._replace(parts=found.parts | {ForecastPart(member="the tracked quantile of the errors"): moved})

    def reset(self, run: IntervalRun) -> IntervalRun:
        return self.learner.reset(run)

    def inner_run(self, run: IntervalRun) -> IntervalRun:
        return run


def pinball(errors: np.ndarray, quantile: float) -> np.ndarray:
    """Return twice the pinball loss of errors (target − forecast): for the median, the absolute error.

    Args:
        errors: the errors.
        quantile: the quantile that was forecast.

    >>> pinball(np.array([2.0, -2.0]), 0.9).round(1).tolist()
    [3.6, 0.4]
    """
    return 2 * np.maximum(quantile * errors, (quantile - 1) * errors)
