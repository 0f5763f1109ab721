"""Exponential smoothing of series: Holt-Winters with additive and multiplicative seasons, and Theta, row by row.

All are in units of the table. A value is y = l + b + s (additive) or (l + b) s (multiplicative) and an error e, where l
is the level, b the trend and s the season one period ago. With e' = e, or e/s for the level and e/(l + b) for the season
of a multiplicative model, l ← l + b + α e', b ← b + α β e' and s ← s + γ e' (Hyndman et al. 2008).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel

# The largest error that is learned from, in standard deviations of earlier errors, and how fast these follow.
ERROR_LIMIT, SPREAD_RATE = 5.0, 0.05
LEAST_SHARE = 1e-6


class Smoothing(NamedTuple):
    """The settings of exponential smoothing.

    Attributes:
        level: α, the rate of the level.
        trend: β, the rate of the trend, relative to that of the level. For Theta, 0.
        season: γ, the rate of the seasons; 0 for no seasons.
        damping: by what the trend is multiplied in each row.
        multiplicative: whether seasons are factors.
        theta: whether the trend is half the slope of all values so far (Assimakopoulos and Nikolopoulos 2000).
        period: which period of the series: 1 for the short one, 2 for the long one.
    """

    level: float
    trend: float = 0.0
    season: float = 0.0
    damping: float = 1.0
    multiplicative: bool = False
    theta: bool = False
    period: int = 1

    @property
    def name(self) -> str:
        """A short description, for reports."""
        kind = "Theta" if self.theta else "Holt-Winters" if self.season else "Holt"
        factors = ", seasons as factors" if self.multiplicative else ""
        return f"{kind}{' with seasons' if self.theta and self.season else ''}{factors}, rate {self.level:g}"


class SmoothingRun(NamedTuple):
    """The state of several smoothings.

    Attributes:
        states: the level, the trend and the variance of errors of each smoothing and column (smoothings, columns, 3).
        seasons: the seasons (smoothings, columns, longest period): that of row t is at t modulo the period.
        periods: the period that each smoothing has; -1 before its start.
        sums: for each column, the sums over all rows t of t, t², y and t y, relative to the first value, which is the
            last entry (columns, 5).
    """

    states: np.ndarray
    seasons: np.ndarray
    periods: np.ndarray
    sums: np.ndarray


def smoothing_table(settings: Sequence[Smoothing]) -> np.ndarray:
    """Return settings as numbers for the kernels (smoothings, 7)."""
    return np.array(settings, float).reshape(-1, len(Smoothing._fields))


def init_smoothing(settings: Sequence[Smoothing], columns: int, longest: int) -> SmoothingRun:
    """Return smoothings of a series without rows.

    Args:
        settings: their settings.
        columns: the number of columns.
        longest: the longest period.
    """
    count = len(settings)
    states, seasons = np.zeros((count, columns, 3)), np.zeros((count, columns, longest))
    return SmoothingRun(states, seasons, np.full(count, -1), np.zeros((columns, 5)))


@kernel
def smooth_row(table, run, values, row, periods):
    """Learn from the latest row.

    Args:
        table: the settings, from `smoothing_table`.
        run: the run, changed in place.
        values: a ring of the values so far (rows, columns): row t is at t modulo its length.
        row: the number of the row.
        periods: the short and the long period; 0 for none.
    """
    sums, columns = run.sums, values.shape[1]
    for k in range(columns):
        value = values[row % len(values), k]
        if row == 0:
            sums[k] = 0.0
            sums[k, 4] = value
        sums[k, 0] += row
        sums[k, 1] += float(row) * row
        sums[k, 2] += value - sums[k, 4]
        sums[k, 3] += row * (value - sums[k, 4])
    for m in range(len(table)):
        period = periods[int(table[m, 6]) - 1] if table[m, 2] > 0 else 0
        if row == 0 or run.periods[m] != period:
            run.periods[m] = -1
            if table[m, 2] > 0 and (period == 0 or row + 1 < 2 * period):
                continue
            run.periods[m] = period
            for k in range(columns):
                start_smoothing(table[m], run.states[m, k], run.seasons[m, k], values[:, k], row, period)
        else:
            for k in range(columns):
                value = values[row % len(values), k]
                drift = half_slope(sums[k], row) if table[m, 5] > 0 else 0.0
                smooth(table[m], run.states[m, k], run.seasons[m, k], value, row, period, drift)


@kernel
def half_slope(sums, row):
    """Return half the slope of the line of least squares through the rows so far.

    Args:
        sums: the sums of a column; see `SmoothingRun`.
        row: the number of the latest row.
    """
    count = row + 1.0
    spread = count * sums[1] - sums[0] * sums[0]
    return 0.5 * (count * sums[3] - sums[0] * sums[2]) / spread if spread > 0 else 0.0


@kernel
def start_smoothing(settings, state, seasons, values, row, period):
    """Begin with a line through the first two periods of up to four recent ones, and smooth the rows since then.

    Args:
        settings: a row of the table of settings.
        state: the state of a column, changed in place.
        seasons: its seasons, changed in place.
        values: a ring of its values.
        row: the number of the latest row.
        period: the period; 0 for none.
    """
    state[:] = 0.0
    if period == 0:
        state[0] = values[row % len(values)]
        return
    length = len(values)
    first = row + 1 - period * min(4, (row + 1) // period, length // period)
    means = np.zeros(2)
    for t in range(2 * period):
        means[t // period] += values[(first + t) % length] / period
    slope = (means[1] - means[0]) / period
    multiplicative, middle = settings[4] > 0, first + (period - 1) / 2
    seasons[:period] = 0.0
    for t in range(first, first + 2 * period):
        line, value = means[0] + slope * (t - middle), values[t % length]
        share = value / line if line != 0 else 1.0
        seasons[t % period] += 0.5 * (share if multiplicative else value - line)
        state[2] += (value - line) ** 2 / (2 * period)
    state[0], state[1] = means[0] + slope * (first - 1 - middle), 0.0 if settings[5] > 0 else slope
    for t in range(first, row + 1):
        smooth(settings, state, seasons, values[t % length], t, period, 0.0)


@kernel
def smooth(settings, state, seasons, value, row, period, drift):
    """Learn from a value of one column.

    Args:
        settings: a row of the table of settings.
        state: the state of the column, changed in place.
        seasons: its seasons, changed in place.
        value: the value.
        row: the number of its row.
        period: the period; 0 for none.
        drift: the trend of Theta, which replaces the trend.
    """
    rate, trend_rate, season_rate, damping, multiplicative = settings[0], settings[1], settings[2], settings[3], settings[4]
    place = row % period if period > 0 else 0
    season = seasons[place] if period > 0 else (1.0 if multiplicative > 0 else 0.0)
    trend = 0.0 if settings[5] > 0 else damping * state[1]
    line = state[0] + trend
    error = value - (line * season if multiplicative > 0 else line + season)
    known = state[2] > 0
    largest = ERROR_LIMIT * np.sqrt(state[2])
    error = min(max(error, -largest), largest) if known else error
    state[2] += (SPREAD_RATE if known else 1.0) * (error * error - state[2])
    of_level, of_season = error, error
    if multiplicative > 0:
        of_level = error / season if abs(season) > LEAST_SHARE else 0.0
        of_season = error / line if line != 0 else 0.0
    state[0] = line + rate * of_level
    state[1] = drift if settings[5] > 0 else trend + rate * trend_rate * of_level
    if period > 0:
        seasons[place] = season + season_rate * of_season


@kernel
def write_smoothed(settings, run, number, row, steps, lowest, forecasts):
    """Write the forecasts of one smoothing; NaN before its start, or with factors and values that are not positive.

    Args:
        settings: its row of the table of settings.
        run: the run.
        number: its number.
        row: the number of the latest row.
        steps: the steps; 0 counts as 1.
        lowest: the lowest value of each column so far.
        forecasts: where to write them, in units of the table (steps × columns).
    """
    period, columns = run.periods[number], run.states.shape[1]
    for k in range(columns):
        level, trend, _ = run.states[number, k]
        exists = period >= 0 and (settings[4] == 0 or lowest[k] > 0)
        for s in range(len(steps)):
            step = max(steps[s], 1)
            rows = step if settings[3] == 1 else settings[3] * (1 - settings[3] ** step) / (1 - settings[3])
            if settings[5] > 0:
                # The line of Theta is ahead of the level, which lags behind a trend.
                rows = step - 1 + (1 - (1 - settings[0]) ** (row + 1)) / settings[0]
            made = level + rows * trend
            if period > 0:
                season = run.seasons[number, k, (row + step) % period]
                made = made * season if settings[4] > 0 else made + season
            forecasts[s * columns + k] = made if exists else np.nan
