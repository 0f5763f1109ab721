"""Classes by least squares: what follows from the inputs of a row alone is learned from few rows."""

from typing import Any

import numpy as np

from norewind.learners.least_squares import Features, LeastSquares, LeastSquaresRun
from norewind.trees import Tree, library

LEAST_SHARE = 1e-3
"""A linear model also gives shares below zero. Every class keeps this one."""


class ClassSquares:
    """`LeastSquares` whose targets are classes: each is a number that is 1 when the class came, else 0.

    Targets are numbers of classes, of shape (1,); an unknown one is NaN. Outputs are logarithms of shares, which need
    not add up to one.

    >>> import numpy as np
    >>> from norewind.learners.least_squares import lags
    >>> xs = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    >>> learner = ClassSquares(lags(2, 1), classes=2)
    >>> run, _ = learner.scan(learner.init(), xs, (xs[:, :1] > xs[:, 1:]).astype(np.float32))
    >>> learner.forward(run, np.array([[1, -1], [-1, 1]], np.float32))[1].argmax(axis=1)
    array([1, 0])
    """

    def __init__(self, features: Features, classes: int, forgetting: float = 1.0):
        self.classes, self._numbers = classes, LeastSquares(features, classes, forgetting)

    def init(self) -> LeastSquaresRun:
        return self._numbers.init()

    def scan(self, run: LeastSquaresRun, xs: Any, targets: Any, *, outputs: bool = False, **options: Any) -> Any:
        """Learn from a chunk; see `LeastSquares.scan`. The losses are squared errors of the shares."""
        targets = self._hot(np.asarray(targets))
        if not outputs:
            return self._numbers.scan(run, xs, targets, **options)
        run, (losses, made) = self._numbers.scan(run, xs, targets, outputs=True, **options)
        return run, (losses, _logarithms(np.asarray(made)))

    def forward(self, run: LeastSquaresRun, xs: Any, *, count: Any = None) -> tuple[LeastSquaresRun, np.ndarray]:
        run, made = self._numbers.forward(run, xs, count=count)
        return run, _logarithms(np.asarray(made))

    def one(self, run: LeastSquaresRun, x: Any, target: Any, newest: Any = None) -> tuple[LeastSquaresRun, Any, Any]:
        run, loss, made = self._numbers.one(run, x, self._hot(target), newest)
        return run, loss, _logarithms(made)

    def answer(self, run: LeastSquaresRun, x: Any) -> tuple[LeastSquaresRun, Any]:
        run, made = self._numbers.answer(run, x)
        return run, _logarithms(made)

    def reset(self, run: LeastSquaresRun) -> LeastSquaresRun:
        return self._numbers.reset(run)

    def carry(self, run: LeastSquaresRun) -> Tree:
        return ()

    def _hot(self, targets: Any) -> Any:
        like = library(targets)
        return like.where(like.isnan(targets), np.nan, targets == np.arange(self.classes)).astype(np.float32)


def _logarithms(shares: Any) -> Any:
    like = library(shares)
    return like.log(like.maximum(shares, LEAST_SHARE))
