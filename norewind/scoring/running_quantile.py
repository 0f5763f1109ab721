"""The baseline of losses of quantiles: the running quantile of each column."""

from statistics import NormalDist

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.quantiles import pinball
from norewind.scoring.tally import Sums, running_sum

# How far the running quantile moves per row, in standard deviations.
RATE = 0.02


def init_quantiles(quantile: float | None, delay: int, columns: int) -> np.ndarray:
    """Return a ring of the running quantiles after each of the latest rows, at first those of a normal distribution.

    Args:
        quantile: the quantile; None for an empty ring.
        delay: how many rows ago a forecast may have been made.
        columns: the number of columns.
    """
    if quantile is None:
        return np.zeros((0, 0))
    return np.full((delay + 1, columns), NormalDist().inv_cdf(quantile))


def baseline_errors(
    ring: np.ndarray, quantile: float, delays: np.ndarray, first: int, targets: np.ndarray
) -> np.ndarray:
    """Return the errors of forecasting the quantile so far, and update it.

    Args:
        ring: the running quantiles, changed in place.
        quantile: the quantile.
        delays: how many rows ago the forecasts of each step were made.
        first: the number of the first row.
        targets: the standardised targets (rows, steps × columns); NaN means unknown.
    """
    errors = np.empty(targets.shape)
    _follow(ring, quantile, delays, first, np.ascontiguousarray(targets), errors)
    return errors


@kernel
def _follow(ring, quantile, delays, first, targets, errors):
    """Write the errors, and move the quantile by γq up after a larger target, and by γ(1 − q) down after a smaller."""
    rows, columns = ring.shape
    for t in range(len(targets)):
        row = first + t
        for step in range(len(delays)):
            for i in range(columns):
                place = step * columns + i
                errors[t, place] = targets[t, place] - ring[(row - delays[step]) % rows, i]
        for i in range(columns):
            now, target = ring[(row - 1) % rows, i], targets[t, i]
            if not np.isnan(target):
                now += RATE * (quantile if target > now else quantile - 1)
            ring[row % rows, i] = now


def add_pinball(sums: Sums, errors: np.ndarray, quantile: float) -> Sums:
    """Add the losses of errors to a count and a sum. NaN means unknown.

    Args:
        sums: the count and the sum.
        errors: the errors.
        quantile: the quantile that was forecast.
    """
    known = errors[~np.isnan(errors)]
    return sums[0] + len(known), running_sum(sums[1], pinball(known, quantile))
