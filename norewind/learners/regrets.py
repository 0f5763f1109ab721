"""Kernels that keep an average of forecasts from losing much to any single one, on every stream.

The average is used as it is until one of its arms has been better by a significant amount: until its regret, the sum of
the differences of their losses, is above a = 4 √d times the root of the sum of their squares, where d is the step. From
then on, arms count in proportion to the excess of their regrets (Blackwell 1956; Hart and Mas-Colell 2000). The average
itself is one of the arms, so it returns as soon as it is clearly better again.

Let r be the regret of an arm in a row, for forecasts made d rows before their targets arrive. For every stream, and for
every arm k, as the tests assert,

    Σ r_k ≤ a √(Σ r_k²) + √(Σ_j Σ_t r_j(t)² + 2 (1 + a) Σ_j Σ_t |r_j(t)| (|r_j(t−1)| + … + |r_j(t−d+1)|)).

If the losses in a row differ by at most S, this is after T rows with K experts at most
S √T (a + √((K + 1) (1 + 2 (1 + a) (d − 1)))). The sums are of the rows in which an arm has a forecast. The loss is the
squared error of errors of up to MAX_ERROR deviations of the series, and linear beyond (Huber), so that no single row
decides.
"""

from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel

ALLOWED = 4.0
MAX_ERROR = 5.0


class Regrets(NamedTuple):
    """How much less every arm has lost than the forecasts that were made. The last arm is the average.

    Attributes:
        totals: the sums of the regrets (arms, outputs).
        squares: the sums of their squares (arms, outputs).
    """

    totals: np.ndarray
    squares: np.ndarray


def init_regrets(arms: int, outputs: int) -> Regrets:
    """Return the regrets before the first target.

    Args:
        arms: the number of experts, and one for their average.
        outputs: the number of outputs.
    """
    return Regrets(np.zeros((arms, outputs)), np.zeros((arms, outputs)))


@kernel
def allowed_after(step):
    """Return the allowed regret of forecasts of a step, relative to the root of the sum of its squares.

    Args:
        step: how many rows ahead; 0 counts as 1. Errors of overlapping forecasts are similar, so more is allowed.
    """
    return ALLOWED * np.sqrt(max(step, 1))


@kernel
def huber_loss(error, largest):
    """Return the square of an error, continued by its tangent beyond the largest error.

    Args:
        error: the error.
        largest: the largest error that counts as its square.
    """
    size = abs(error)
    return size * size if size <= largest else largest * (2 * size - largest)


@kernel
def update_regrets(regrets, due, targets, variances):
    """Add the regrets of a row.

    Args:
        regrets: the regrets, changed in place.
        due: the forecasts of these targets by every arm, and last the one that was made (arms + 1, outputs); NaN means
            none.
        targets: the targets; NaN means unknown.
        variances: the variance of each output.
    """
    arms, outputs = regrets.totals.shape
    made, largest = np.empty(outputs), np.empty(outputs)
    for i in range(outputs):
        largest[i] = MAX_ERROR * np.sqrt(variances[i])
        # Without a target, all regrets are NaN.
        made[i] = huber_loss(due[arms, i] - targets[i], largest[i]) if np.isfinite(targets[i]) else np.nan
    for k in range(arms):
        forecast, total, square = due[k], regrets.totals[k], regrets.squares[k]
        for i in range(outputs):
            regret = made[i] - huber_loss(forecast[i] - targets[i], largest[i])
            regret = regret if regret == regret else 0.0
            total[i] += regret
            square[i] += regret * regret


@kernel
def excess_of(total, squares, forecast, allowed):
    """Return how far the regret to an arm is above what is allowed; 0 if it is not, or without a forecast.

    Args:
        total: the sum of its regrets.
        squares: the sum of their squares.
        forecast: its forecast; NaN means none.
        allowed: see `allowed_after`.
    """
    over = total - allowed * np.sqrt(squares)
    return over if over > 0 and forecast == forecast else 0.0


@kernel
def follow_regrets(regrets, steps, forecasts, weights):
    """Write the forecasts to make: the mean of the arms, weighted by how far their regrets are above what is allowed.

    Args:
        regrets: the regrets.
        steps: the steps, in rows ahead.
        forecasts: the forecast of every arm, and last where to write those to make (arms + 1, outputs).
        weights: the weights of the experts in their average (arms - 1, outputs), changed to those in the forecasts.
    """
    arms, outputs = regrets.totals.shape
    allowed, totals, weighted = np.empty(outputs), np.zeros(outputs), np.zeros(outputs)
    for i in range(outputs):
        allowed[i] = allowed_after(steps[i // (outputs // len(steps))])
    for k in range(arms):
        forecast, regret, square = forecasts[k], regrets.totals[k], regrets.squares[k]
        for i in range(outputs):
            excess = excess_of(regret[i], square[i], forecast[i], allowed[i])
            totals[i] += excess
            weighted[i] += excess * forecast[i] if excess > 0 else 0.0
    for i in range(outputs):
        forecasts[arms, i] = forecasts[arms - 1, i]
        if totals[i] > 0:
            forecasts[arms, i] = weighted[i] / totals[i]
            last = arms - 1
            average = excess_of(regrets.totals[last, i], regrets.squares[last, i], forecasts[last, i], allowed[i])
            for k in range(last):
                own = excess_of(regrets.totals[k, i], regrets.squares[k, i], forecasts[k, i], allowed[i])
                weights[k, i] = (own + average * weights[k, i]) / totals[i]
