"""Least squares for classes, which needs only a few rows to learn how the class depends on the inputs."""

from collections.abc import Sequence

import numpy as np

from norewind.learners.horizon import check_steps
from norewind.learners.learner import Forecasts, RowLearner
from norewind.learners.least_squares import LeastSquares, LeastSquaresRun

# A linear model may predict shares below zero. They are raised to this.
MIN_SHARE = 1e-3


class ClassLeastSquares(RowLearner):
    """`LeastSquares` whose targets are classes, encoded as one number per class: 1 for the actual class, else 0.

    Targets are class indices, one per step; an unknown one is NaN. Outputs are logarithms of shares, which need
    not add up to one.

    Args:
        inputs: the number of inputs.
        classes: the number of classes.
        steps: the steps to forecast, in rows ahead, in increasing order; `(0,)` if classes belong to the row itself.
        forgetting: the weight of the past after each row, above 0 and at most 1.

    >>> import numpy as np
    >>> xs = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    >>> learner = ClassLeastSquares(2, classes=2)
    >>> run, _, _ = learner.scan(learner.init(), xs, (xs[:, :1] > xs[:, 1:]).astype(np.float32))
    >>> learner.forward(run, np.array([[1, -1], [-1, 1]], np.float32))[1].made.argmax(axis=1)
    array([1, 0])
    """

    def __init__(self, inputs: int, classes: int, *, steps: Sequence[int] = (0,), forgetting: float = 1.0):
        self.classes = classes
        self.steps = check_steps("ClassLeastSquares", steps)
        self._numbers = LeastSquares(inputs, classes, steps=steps, forgetting=forgetting, together=True)

    def init(self) -> LeastSquaresRun:
        """Start a run with weights of 0."""
        return self._numbers.init()

    def scan(
        self,
        run: LeastSquaresRun,
        xs: np.ndarray,
        targets: np.ndarray,
        *,
        count: int | None = None,
        outputs: bool = False,
    ) -> tuple[LeastSquaresRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`.

        Targets are class indices (rows, steps), and losses are squared errors of the shares. Outputs are always
        returned, because they cost nothing extra.
        """
        targets = np.asarray(targets, np.float32)[:, :, None]
        hot = np.where(np.isnan(targets), np.float32(np.nan), targets == np.arange(self.classes, dtype=np.float32))
        run, losses, shares = self._numbers.scan(run, xs, hot.reshape(len(hot), -1), count=count, outputs=True)
        return run, losses, _log_forecasts(shares)

    def forward(
        self, run: LeastSquaresRun, xs: np.ndarray, *, count: int | None = None
    ) -> tuple[LeastSquaresRun, Forecasts]:
        run, shares = self._numbers.forward(run, xs, count=count)
        return run, _log_forecasts(shares)

    def upcoming(self, run: LeastSquaresRun) -> np.ndarray:
        return _logarithms(self._numbers.upcoming(run))

    def reset(self, run: LeastSquaresRun) -> LeastSquaresRun:
        return self._numbers.reset(run)


def _log_forecasts(shares: Forecasts) -> Forecasts:
    return Forecasts(_logarithms(shares.made), _logarithms(shares.due))


def _logarithms(shares: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(shares, MIN_SHARE))
