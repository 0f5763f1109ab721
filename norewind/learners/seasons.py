"""Periods of series, found online: the lags at which a series resembles itself."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel

# The longest period that is found: a week of five-minute rows.
LONGEST_PERIOD = 2016
# How many periods are kept: a short and a long one, such as a day and a week.
SEASONS = 2
# A period is a lag at which the mean distance is at most this share of the largest one at a shorter lag.
CLOSE = 0.8
# Among lags whose distances differ by less than this factor (more in the first rows), the shortest is the period, not
# its multiples.
ALIKE = 1.05
# A period is kept unless its distance exceeds that of another one by more than this factor.
HYSTERESIS = 1.02
# A period is accepted once the series is this many times as long.
REPEATS = 3
# Periods are chosen again when the series has grown by this factor, and at least this many rows.
GROWTH, FEWEST_ROWS = 1.25, 12
# Distances are means over about this many of the latest rows.
MEMORY = 10_000
# The largest number of columns that are compared.
COLUMNS = 4


class Seasons(NamedTuple):
    """The periods of a series so far.

    Attributes:
        periods: the short and the long period in rows; 0 for none.
        distances: the mean absolute distance at each lag. The first entry is unused.
        latest: the latest values (columns, twice the longest lag). Each is stored twice, so that the latest ones are
            always in one piece.
        seen: the number of rows, and that at which periods were last chosen.
        changed: the number of rows at which each period was found.
    """

    periods: np.ndarray
    distances: np.ndarray
    latest: np.ndarray
    seen: np.ndarray
    changed: np.ndarray


def init_seasons(columns: int, periods: Sequence[int] = ()) -> Seasons:
    """Return the seasons of a series without rows.

    Args:
        columns: the number of columns.
        periods: at most two periods to start from, such as those of its times. They are replaced when others are found.
    """
    start = np.zeros(SEASONS, np.int64)
    start[: len(periods)] = sorted(periods)
    longest = LONGEST_PERIOD
    latest = np.zeros((min(columns, COLUMNS), 2 * longest))
    return Seasons(start, np.zeros(longest + 1), latest, np.zeros(2, np.int64), np.zeros(SEASONS, np.int64))


@kernel
def observe_row(seasons, values):
    """Add a row, and choose the periods again when due.

    Args:
        seasons: the seasons, changed in place.
        values: the values of the row.

    Returns:
        Whether a period has changed.
    """
    periods, distances, latest, seen, changed = seasons
    longest, row = len(distances) - 1, seen[0]
    lags, place = min(row, longest), row % longest
    for column in range(len(latest)):
        value, past = values[column], latest[column]
        for lag in range(1, lags + 1):
            apart = abs(value - past[place + longest - lag])
            # After `row - lag` earlier distances, this one has the weight of a mean.
            weight = max(1.0 / (row - lag + 1), 1.0 / MEMORY) / len(latest)
            distances[lag] += weight * (apart - distances[lag])
    for column in range(len(latest)):
        latest[column, place], latest[column, place + longest] = values[column], values[column]
    seen[0] += 1
    if seen[0] < max(FEWEST_ROWS, GROWTH * seen[1]):
        return False
    seen[1] = seen[0]
    before = periods.copy()
    _choose(periods, distances[: min(seen[0] // REPEATS, longest) + 1], ALIKE + 2 / np.sqrt(seen[0]))
    for place in range(len(periods)):
        if periods[place] != before[place]:
            changed[place] = seen[0]
    return (periods != before).any()


@kernel
def _choose(periods, distances, alike):
    """Choose the periods from distances, of which those within a factor of `alike` do not differ."""
    long = closest_lag(distances, alike)
    short = closest_lag(distances[: long // 2 + 1], alike)
    if short == 0:
        short, long = long, 0
    if 0 < short == periods[1] or 0 < long == periods[0]:
        periods[0], periods[1] = periods[1], periods[0]
    for place, found in ((0, short), (1, long)):
        now = periods[place]
        # A period stays until another one is clearly closer. A known one may be too long to be measured yet.
        stays = now > 0 and (now >= len(distances) or distances[now] <= HYSTERESIS * distances[found])
        if found > 0 and found != now and not stays:
            periods[place] = found


@kernel
def closest_lag(distances, alike):
    """Return the shortest lag at which a series is about as close to itself as at any other; 0 if it is close at none.

    Lags before the distance has first risen and fallen again do not count, since neighbours are close in any smooth
    series.

    Args:
        distances: the mean absolute distance at each lag from 0, which is ignored.
        alike: the factor within which distances count as equal.
    """
    best, largest = np.inf, 0.0
    for lag in range(2, len(distances)):
        largest = max(largest, distances[lag - 1])
        if distances[lag] <= CLOSE * largest and is_lowest(distances, lag):
            best = min(best, distances[lag])
    largest = 0.0
    for lag in range(2, len(distances)):
        largest = max(largest, distances[lag - 1])
        if distances[lag] <= CLOSE * largest and distances[lag] <= alike * best and is_lowest(distances, lag):
            return lag
    return 0


@kernel
def is_lowest(distances, lag):
    """Return whether the distance at a lag is below those at its neighbours.

    Args:
        distances: the distance at each lag.
        lag: the lag.
    """
    last = lag + 1 == len(distances)
    return not last and distances[lag] < distances[lag - 1] and distances[lag] <= distances[lag + 1]
