"""Combining several predictions of a number into one that is hardly worse than the best of them."""

import math
from collections.abc import Sequence


class Hedge:
    """A weighted average of predictions, with weights that follow their absolute errors.

    This is AdaHedge (de Rooij, van Erven, Grünwald and Koolen, 2014). It has no parameters to
    tune and does not depend on the scale of the targets: on any targets, the sum of its
    absolute errors is at most that of the best of K predictors, plus
    √(Σ s² ln K) + S (4/3 ln K + 2). Here s is the range of the absolute errors in a row, and S
    is the largest s.

    Args:
        predictors: the number of predictions to combine, K.

    Attributes:
        errors: the sum of the absolute errors of each predictor.
        gap: the mixability gap so far: the weighted mean loss minus the mix loss, summed over rows.

    >>> hedge = Hedge(2)
    >>> for target in range(10):
    ...     hedge.learn([target + 0.1, 0.0], target)
    >>> round(hedge.mixed([5.1, 0.0]), 2)
    5.1
    """

    def __init__(self, predictors: int):
        self.errors = [0.0] * predictors
        self.gap = 0.0

    def mixed(self, predictions: Sequence[float]) -> float:
        """Return the weighted average of predictions.

        Args:
            predictions: one per predictor.
        """
        return sum(weight * value for weight, value in zip(self._weights(), predictions, strict=True))

    def learn(self, predictions: Sequence[float], target: float) -> None:
        """Update the weights by the error of each prediction.

        Args:
            predictions: the predictions of this target, one per predictor.
            target: the true value.
        """
        errors = [abs(value - target) for value in predictions]
        weights, least = self._weights(), min(errors)
        mean = sum(weight * error for weight, error in zip(weights, errors, strict=True))
        scale = self.gap / math.log(len(errors))
        if scale:
            inside = sum(w * math.exp((least - error) / scale) for w, error in zip(weights, errors, strict=True))
            mixture = least - scale * math.log(inside) if inside else mean
        else:
            mixture = min(error for weight, error in zip(weights, errors, strict=True) if weight)
        self.gap += max(0.0, mean - mixture)
        self.errors = [total + error for total, error in zip(self.errors, errors, strict=True)]

    def _weights(self) -> list[float]:
        best, scale = min(self.errors), self.gap / math.log(len(self.errors))
        shares = [math.exp((best - total) / scale) if scale else float(total == best) for total in self.errors]
        return [share / sum(shares) for share in shares]
