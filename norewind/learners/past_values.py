"""The past of the targets of a series in units that do not move, and forecasts that continue it by a rule.

Inputs are standardised by the statistics of their own row, so a value of an earlier row and one of this row are in
different units, above all in the first hundreds of rows. The target of the next row, however, is in the units of this
row, which gives the change from row to row exactly.
"""

from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.seasons import LONGEST_PERIOD

# A larger change from row to row counts as this large: where the units grow many times at once, sums of old and new
# changes could not be compared.
LARGEST_CHANGE = 10.0


class PastValues(NamedTuple):
    """Rings of the newest values of the targets: row t is at t modulo their length.

    Attributes:
        values: the values, in the units of their own row.
        sums: the sums of the changes from row to row so far.
    """

    values: np.ndarray
    sums: np.ndarray


def init_past(columns: int, horizon: int) -> PastValues:
    """Return the past of a series without rows.

    Args:
        columns: the number of targets.
        horizon: the farthest step.
    """
    return PastValues(np.zeros((horizon + 2, columns)), np.zeros((2 * horizon + LONGEST_PERIOD + 2, columns)))


@kernel
def remember_row(past, row, x, known, targets, next_row):
    """Add a row.

    Args:
        past: the past values, changed in place.
        row: the number of the row in its sequence.
        x: the inputs of the row.
        known: which of the inputs are the targets.
        targets: the targets of the row for the first step; NaN means unknown.
        next_row: whether the first step is 1.
    """
    values, sums = past
    now, before = row % len(values), (row - 1) % len(values)
    for i in range(len(known)):
        value = np.float64(x[known[i]])
        last = values[before, i] if row > 0 else 0.0
        values[now, i] = value if np.isfinite(value) else last
        if row == 0:
            sums[0, i] = 0.0
            continue
        change = np.float64(targets[i]) - last if next_row else np.nan
        change = change if np.isfinite(change) else values[now, i] - last
        change = min(max(change, -LARGEST_CHANGE), LARGEST_CHANGE)
        sums[row % len(sums), i] = sums[(row - 1) % len(sums), i] + change


@kernel
def change_since(past, row, age, i):
    """Return how much a target has changed since an earlier row, in about the units of this row; 0 without that row.

    Args:
        past: the past values.
        row: the number of the row.
        age: how many rows earlier.
        i: the number of the target.
    """
    if age > row:
        return 0.0
    return past.sums[row % len(past.sums), i] - past.sums[(row - age) % len(past.sums), i]


@kernel
def write_rule(past, row, steps, period, differences, forecasts):
    """Continue the targets by a rule: the last value, that of a period ago, or the last value plus the change then.

    Where the past is too short for the period, the values are NaN.

    Args:
        past: the past values.
        row: the number of the newest row.
        steps: how many rows ahead; 0 counts as 1, because the targets are then known up to the previous row.
        period: the period in rows; 0 for the last value.
        differences: whether to add the change that followed one period ago to the last value.
        forecasts: where to write the values (steps × targets).
    """
    values, sums = past
    now, columns = row % len(values), values.shape[1]
    for s in range(len(steps)):
        step = max(steps[s], 1)
        seasons = -(-step // period) * period if period > 0 else 0
        if seasons > row:
            forecasts[s * columns : (s + 1) * columns] = np.nan
            continue
        since, until = row, row
        if period > 0:
            since, until = row - seasons if differences else row, row + step - seasons
        since, until = since % len(sums), until % len(sums)
        for i in range(columns):
            forecasts[s * columns + i] = values[now, i] + (sums[until, i] - sums[since, i])


@kernel
def changed(past, row, period, differences, i):
    """Return what a linear model of changes sees of a target: its change since a row ago, a period ago, or both.

    Args:
        past: the past values.
        row: the number of the row.
        period: the period in rows; 0 for none.
        differences: whether to take the change since the previous row.
        i: the number of the target.
    """
    if period == 0:
        return change_since(past, row, 1, i)
    if row <= period:
        return 0.0
    now = change_since(past, row, period, i)
    return now - change_since(past, row - 1, period, i) if differences else now
