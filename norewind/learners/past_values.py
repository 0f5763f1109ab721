"""The latest values of the targets of a series in units of the table, and forecasts that continue them by a rule.

Only the inputs are used, so that the forecasts of a step do not depend on which other steps are forecast.
"""

from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.seasons import LONGEST_PERIOD

# The fewest deviations by which a forecast may be outside of the values so far.
LEAST_MARGIN = 1.0
# A stream has no units before this row, and values are not limited.
FIRST_ROWS = 10


class PastValues(NamedTuple):
    """The latest values of the targets, in units of the table.

    Attributes:
        values: a ring of the values (rows, targets): row t is at t modulo its length.
        ends: the lowest and the highest value so far, followed by those before the latest row (4, targets).
        scales: the mean and the deviation by which the latest row is standardised, those by which the experts
            standardise, and for how many rows the former are known (5, targets).
    """

    values: np.ndarray
    ends: np.ndarray
    scales: np.ndarray


def rule_name(period: int, differences: int) -> str:
    """Return a short description of a rule, for reports.

    Args:
        period: its period in rows; -1 and -2 for the short and the long period of the series, 0 for the last value.
        differences: whether it adds the change since a period ago.
    """
    ago = {0: "last value", -1: "value one period ago", -2: "value one long period ago"}
    return ago.get(period, f"value {period} rows ago") + (", plus the change since" if differences else "")


def init_past(columns: int, horizon: int) -> PastValues:
    """Return the past of a series without rows.

    Args:
        columns: the number of targets.
        horizon: the farthest step.
    """
    ends = np.outer([np.inf, -np.inf, np.inf, -np.inf], np.ones(columns))
    scales = np.outer([0.0, 1.0, 0.0, 1.0, 0.0], np.ones(columns))
    return PastValues(np.zeros((horizon + LONGEST_PERIOD + 2, columns)), ends, scales)


@kernel
def remember_row(past, row, x, known, inputs):
    """Add a row. A missing value is that of the row before.

    A value beyond the limits of forecasts is cut to them as soon as the next one is within them again: an outlier would
    come back one period later. A series that has shifted stays beyond.

    Args:
        past: the past values, changed in place.
        row: the number of the row in its sequence.
        x: the inputs of the row.
        known: which of the inputs are the targets.
        inputs: the number of inputs. Those after them are the mean of each target, in two parts, and its deviation.
    """
    values, ends, scales = past
    now, before = row % len(values), (row - 1) % len(values)
    for i in range(len(known)):
        mean, deviation, value = 0.0, 1.0, np.float64(x[known[i]])
        if len(x) > inputs:
            mean = np.float64(x[inputs + 3 * i]) + np.float64(x[inputs + 3 * i + 1])
            deviation = np.float64(x[inputs + 3 * i + 2])
            # A constant column has no deviation, and its inputs are 0.
            mean = mean if np.isfinite(mean) else 0.0
            deviation = deviation if np.isfinite(deviation) else 0.0
        scales[4, i] += 1.0 if scales[4, i] > 0 or (row >= FIRST_ROWS - 1 and deviation > 0) else 0.0
        scales[0, i], scales[1, i] = mean, deviation if deviation > 0 else 1.0
        value = mean + scales[1, i] * value
        value = value if np.isfinite(value) else (values[before, i] if row > 0 else mean)
        values[now, i] = value
        lowest, highest = limits_of(ends[2, i], ends[3, i], scales[3, i])
        if row >= FIRST_ROWS and lowest <= value <= highest:
            earlier = values[before, i] = min(max(values[before, i], lowest), highest)
            ends[0, i], ends[1, i] = min(ends[2, i], earlier), max(ends[3, i], earlier)
        ends[2, i], ends[3, i] = ends[0, i], ends[1, i]
        ends[0, i], ends[1, i] = min(ends[0, i], value), max(ends[1, i], value)


@kernel
def limits_of(lowest, highest, deviation):
    """Return the ends of a range three times as wide as that of the values so far, with the same middle.

    Args:
        lowest: the lowest value so far.
        highest: the highest.
        deviation: the deviation by which the experts standardise, of which the margins are at least `LEAST_MARGIN`.
    """
    margin = max(highest - lowest, LEAST_MARGIN * deviation)
    return lowest - margin, highest + margin


@kernel
def clip_to_past(past, forecasts):
    """Clip forecasts to the limits that the values so far set; see `limits_of`.

    Args:
        past: the past values.
        forecasts: the forecasts of an expert (steps × targets), changed in place; NaN stays.
    """
    _, ends, scales = past
    columns = ends.shape[1]
    for k in range(columns):
        lowest, highest = limits_of(ends[0, k], ends[1, k], scales[3, k])
        lowest, highest = (lowest - scales[2, k]) / scales[3, k], (highest - scales[2, k]) / scales[3, k]
        for i in range(k, len(forecasts), columns):
            if forecasts[i] < lowest:
                forecasts[i] = lowest
            elif forecasts[i] > highest:
                forecasts[i] = highest


@kernel
def limited_row(past, row):
    """Return the values of the latest row, cut to the limits of forecasts that the rows before it set.

    Args:
        past: the past values.
        row: the number of the row.
    """
    values, ends, scales = past
    found = values[row % len(values)].copy()
    for i in range(len(found) if row >= FIRST_ROWS else 0):
        lowest, highest = limits_of(ends[2, i], ends[3, i], scales[3, i])
        found[i] = min(max(found[i], lowest), highest)
    return found


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
    past, _, scales = past
    columns = past.shape[1]
    for s in range(len(steps)):
        step = max(steps[s], 1)
        seasons = -(-step // period) * period if period > 0 else step
        made = forecasts[s * columns : (s + 1) * columns]
        if period > row:
            made[:] = np.nan
            continue
        then = (row + step - seasons) % len(past)
        latest, earlier, times = row % len(past), (row - period) % len(past), seasons // max(period, 1)
        for k in range(columns):
            value = past[then, k]
            if differences:
                value += times * (past[latest, k] - past[earlier, k])
            made[k] = (value - scales[2, k]) / scales[3, k]


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
    past, _, scales = past
    apart = period if period > 0 else 1
    now = past[row % len(past), i] - past[(row - apart) % len(past), i]
    if period > 0 and differences:
        now -= past[(row - 1) % len(past), i] - past[(row - 1 - period) % len(past), i]
    return now / scales[3, i]


@kernel
def write_errors(steps, waiting, row, targets, now, errors):
    """Write the errors of the forecasts that a rule made of a row; NaN where it had too few rows.

    Args:
        steps: the steps.
        waiting: a ring of its latest forecasts.
        row: the number of the row.
        targets: the targets of the row.
        now: the forecasts of the rule at this row, for targets of the row itself.
        errors: where to write the errors.
    """
    per_step = len(targets) // len(steps)
    for s in range(len(steps)):
        for i in range(s * per_step, (s + 1) * per_step):
            errors[i] = targets[i] - (waiting[(row - steps[s]) % len(waiting), i] if steps[s] > 0 else now[i])
