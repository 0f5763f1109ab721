"""The latest values of the targets of a series, and forecasts that continue them by a rule.

Only the inputs are used, so that the forecasts of a step do not depend on which other steps are forecast.
"""

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.seasons import LONGEST_PERIOD


def rule_name(period: int, differences: int) -> str:
    """Return a short description of a rule, for reports.

    Args:
        period: its period in rows; -1 and -2 for the short and the long period of the series, 0 for the last value.
        differences: whether it adds the change since a period ago.
    """
    ago = {0: "last value", -1: "value one period ago", -2: "value one long period ago"}
    return ago.get(period, f"value {period} rows ago") + (", plus the change since" if differences else "")


def init_past(columns: int, horizon: int) -> np.ndarray:
    """Return a ring of the latest values of the targets: row t is at t modulo its length.

    Args:
        columns: the number of targets.
        horizon: the farthest step.
    """
    return np.zeros((horizon + LONGEST_PERIOD + 2, columns))


@kernel
def remember_row(past, row, x, known):
    """Add a row. A missing value is that of the row before.

    Args:
        past: the past values, changed in place.
        row: the number of the row in its sequence.
        x: the inputs of the row.
        known: which of the inputs are the targets.
    """
    now, before = row % len(past), (row - 1) % len(past)
    for i in range(len(known)):
        value = np.float64(x[known[i]])
        past[now, i] = value if np.isfinite(value) else (past[before, i] if row > 0 else 0.0)


@kernel
def write_rule(past, row, steps, period, differences, forecasts):
    """Continue the targets by a rule: the last value, or that of a period ago, with or without the change since then.

    Where the past is shorter than the period, the values are NaN, for all steps.

    Args:
        past: the past values.
        row: the number of the latest row.
        steps: how many rows ahead; 0 counts as 1, because the targets are then known up to the previous row.
        period: the period in rows; 0 for the last value.
        differences: whether to add how much the last value differs from that of a period ago, once for every period.
        forecasts: where to write the values (steps × targets).
    """
    columns = past.shape[1]
    for s in range(len(steps)):
        step = max(steps[s], 1)
        seasons = -(-step // period) * period if period > 0 else step
        made = forecasts[s * columns : (s + 1) * columns]
        if period > row:
            made[:] = np.nan
            continue
        then = (row + step - seasons) % len(past)
        made[:] = past[then]
        if differences:
            made += seasons // period * (past[row % len(past)] - past[(row - period) % len(past)])


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
    if row <= period:
        return 0.0
    apart = period if period > 0 else 1
    now = past[row % len(past), i] - past[(row - apart) % len(past), i]
    if period == 0 or not differences:
        return now
    return now - (past[(row - 1) % len(past), i] - past[(row - 1 - period) % len(past), i])
