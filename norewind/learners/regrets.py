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
    for i in range(outputs):
        if not np.isfinite(targets[i]):
            continue
        largest = MAX_ERROR * np.sqrt(variances[i])
        made = huber_loss(due[arms, i] - targets[i], largest)
        for k in range(arms):
            if due[k, i] == due[k, i]:
                regret = made - huber_loss(due[k, i] - targets[i], largest)
                regrets.totals[k, i] += regret
                regrets.squares[k, i] += regret * regret


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
    excess = np.zeros(arms)
    for i in range(outputs):
        total, weighted, allowed = 0.0, 0.0, allowed_after(steps[i // (outputs // len(steps))])
        for k in range(arms):
            over, excess[k] = regrets.totals[k, i], 0.0
            if over > 0 and forecasts[k, i] == forecasts[k, i]:
                over -= allowed * np.sqrt(regrets.squares[k, i])
                if over > 0:
                    excess[k] = over
                    total += over
                    weighted += over * forecasts[k, i]
        if total > 0:
            forecasts[arms, i] = weighted / total
            for k in range(arms - 1):
                weights[k, i] = (excess[k] + excess[arms - 1] * weights[k, i]) / total
        else:
            forecasts[arms, i] = forecasts[arms - 1, i]
