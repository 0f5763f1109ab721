"""Anomaly scores: how unusual the rows of a stream are, from 0 to 1, by their values and the errors of their forecasts.

On a stream without anomalies, at most a share of 1 − s of all rows have a score of s or more: with 0.999, at most one
row in a thousand. tests/scoring/test_anomalies.py measures this on noise of several kinds. Scores above 0.99 come from
tails that are continued beyond what was seen: in its first two thousand rows, a stream with heavy tails has a score of
0.999 up to twice as often.

A row is compared with the past in four ways. The rarest of the four counts, with four times its probability:

- the error of its forecast, compared with earlier errors;
- the mean of the latest 16 values, as a distance from the mean of all values, compared with earlier distances;
- the mean of the latest 64 values, likewise;
- the value, if it is outside the range of all earlier values. The next of n values is outside with a probability of
  2 / (n + 1), which decreases with the distance from the range.

Earlier errors and distances are counted in a histogram of their logarithms, where old ones slowly fade. Beyond the
twenty largest, their distribution is continued as a power law. After a row rarer than one in a hundred the detector
rests: in the next hundred rows, only rarer ones have a score above 0.

With several columns, two probabilities are compared, and the smaller of them counts twice: that of the rarest column,
multiplied by their number, and that of the root mean square of the errors of all columns, compared with earlier ones.
The latter never rests. Memory is constant, about 35 kB per column.
"""

import numpy as np

from norewind.engines.kernels import kernel

# The bins of a histogram, how many there are for each factor of e, and the logarithm at which the first one begins.
BINS, BINS_PER_E, LOWEST_LOG = 1400, 10, -70.0
# The number of rows in which the weight of a count falls to 1/e.
FADING_ROWS = 10_000.0
# The number of largest counts from which the tail is continued.
TAIL_COUNT = 20.0
# The numbers of latest values in the two means.
MEAN_LENGTHS = (16, 64)
# How fast the probability of a value falls with its distance from the range of earlier values, in ranges.
RANGE_POWER = 10.0
# The number of rows before any score, the probability below which a rest begins, and its number of rows.
MIN_ROWS, REST_PROBABILITY, REST_ROWS = 50, 0.01, 100
# Errors below this number of standard deviations, and distances below this share of the range, count as equal.
MIN_SIZE = 1e-6
# The smallest probability.
MIN_PROBABILITY = 1e-300
# Counts are divided by the latest weight when it exceeds this.
MAX_WEIGHT = 1e100


# The state of a column: the histograms of errors and of the distances of the two means; for each histogram, the sum of
# the counts, the weight of the next one, and the highest bin that is not empty; the latest values; and the number of
# values, their mean, the smallest, the largest, the remaining rows of a rest, and the smallest probability in it.
KINDS = 1 + len(MEAN_LENGTHS)
SIZES = (KINDS * BINS, KINDS * 3, MEAN_LENGTHS[-1], 6)


def init_anomalies(columns: int = 1) -> np.ndarray:
    """Return the state of a stream before its first row, one row of numbers per column and one for all together.

    Args:
        columns: the number of columns.
    """
    totals, numbers = np.tile([0.0, 1.0, 0.0], KINDS), [0.0, 0.0, np.inf, -np.inf, 0.0, 1.0]
    one = np.concatenate([np.zeros(SIZES[0]), totals, np.zeros(SIZES[2]), numbers])
    return np.tile(one, (columns + 1 if columns > 1 else 1, 1))


def score_rows(state: np.ndarray, values: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Score consecutive rows, each compared with those before it.

    Args:
        state: the state of the stream, from `init_anomalies`, changed in place.
        values: the values of each row (rows, columns); NaN if it is unknown.
        errors: the errors of their forecasts, in standard deviations; NaN if there is none.

    Returns:
        The score of each row, from 0 to 1; 0 for the first rows and where all values are unknown.
    """
    return scores_and_columns(state, values, errors)[0]


def scores_and_columns(state: np.ndarray, values: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Score consecutive rows, and find the most unusual column of each; see `score_rows`.

    Args:
        state: the state of the stream, changed in place.
        values: the values of each row.
        errors: the errors of their forecasts.

    Returns:
        The score of each row, and the index of the column that it is due to.
    """
    probabilities, columns = np.ones(len(values)), np.zeros(len(values), np.int64)
    values, errors = (np.asarray(part, np.float64, order="C") for part in (values, errors))
    _rarest(state, values, errors, probabilities, columns)
    return 1 - probabilities, columns


@kernel
def _rarest(state, values, errors, probabilities, columns):
    """Write the probability of each row, and the index of the column it is due to."""
    width = values.shape[1]
    for column in range(width):
        before = probabilities.copy()
        _add_probabilities(state[column], values[:, column], errors[:, column], probabilities)
        for row in range(len(values)):
            columns[row] = column if probabilities[row] < before[row] else columns[row]
    for row in range(len(values) if width > 1 else 0):
        known, total, worst = 0, 0.0, 0
        for column in range(width):
            if not np.isnan(errors[row, column]):
                known += 1
                total += errors[row, column] ** 2
                worst = column if not abs(errors[row, column]) <= abs(errors[row, worst]) else worst
        together = 1.0
        if known > 0:
            counts, totals = _histograms(state[width])
            together = rarity(counts[0], totals[0], max(np.sqrt(total / known), MIN_SIZE))
        columns[row] = worst if together < width * probabilities[row] else columns[row]
        probabilities[row] = 2 * min(width * probabilities[row], together)
    for row in range(len(values)):
        probabilities[row] = max(min(probabilities[row], 1.0), MIN_PROBABILITY)


@kernel
def _histograms(state):
    """Return the histograms of a row of the state, and their totals."""
    ends = np.cumsum(np.array(SIZES))
    return state[: ends[0]].reshape((KINDS, BINS)), state[ends[0] : ends[1]].reshape((KINDS, 3))


@kernel
def _add_probabilities(state, values, errors, probabilities):
    """Lower each row's probability to that of a value at least as unusual as the row's value in one column.

    During a rest, only values rarer than the one that started it count.
    """
    ends = np.cumsum(np.array(SIZES))
    counts, totals = _histograms(state)
    latest, numbers = state[ends[1] : ends[2]], state[ends[2] :]
    for row in range(len(values)):
        value = values[row]
        if np.isnan(value):
            continue
        size, mean, low, high, left, rarest = numbers
        rare = 1.0
        if not np.isnan(errors[row]):
            rare = min(rare, rarity(counts[0], totals[0], max(abs(errors[row]), MIN_SIZE)))
        latest[int(size) % len(latest)] = value
        mean += (value - mean) / (size + 1)
        for i in range(len(MEAN_LENGTHS)):
            if size >= MEAN_LENGTHS[i]:
                average = 0.0
                for ago in range(MEAN_LENGTHS[i]):
                    average += latest[(int(size) - ago) % len(latest)] / MEAN_LENGTHS[i]
                distance = max(abs(average - mean), MIN_SIZE * (high - low))
                rare = min(rare, rarity(counts[1 + i], totals[1 + i], distance))
        beyond = max(value - high, low - value)
        if size >= MIN_ROWS and beyond > 0:
            further = beyond / (high - low) if high > low else 0.0
            rare = min(rare, 2 / (size + 1) * (1 + further) ** -RANGE_POWER)
        rare = max(min((2 + len(MEAN_LENGTHS)) * rare, 1.0), MIN_PROBABILITY)
        if left == 0:
            rarest = 1.0
        if rare < rarest:
            probabilities[row] = min(probabilities[row], rare)
        left = max(left - 1, 0.0)
        if rare <= min(rarest, REST_PROBABILITY):
            rarest, left = rare, float(REST_ROWS)
        numbers[:] = size + 1, mean, min(low, value), max(high, value), left, rarest


@kernel
def rarity(counts, totals, size):
    """Return the share of earlier sizes that are at least as large, and count this one.

    Args:
        counts: the histogram.
        totals: the sum of the counts, the weight of the next one, and the highest bin that is not empty.
        size: an absolute error or distance.
    """
    total, weight, highest = totals
    place = (np.log(max(size, MIN_PROBABILITY)) - LOWEST_LOG) * BINS_PER_E
    here = min(max(int(place), 0), BINS - 1)
    share = 1.0
    if total >= MIN_ROWS * weight / (1 + MIN_ROWS / FADING_ROWS):
        # The largest counts, in units of the weight of the next one, and their mean place above their first bin.
        above, largest, start = 0.5 * counts[here], 0.0, min(int(highest), BINS - 1)
        for bin in range(here + 1, int(highest) + 1):
            above += counts[bin]
        while largest < TAIL_COUNT * weight and start > 0:
            largest += counts[start]
            start -= 1
        start += 1
        share = (above + 0.5 * weight) / (total + weight)
        if here > start + 1 and above < largest:
            mean = 0.0
            for bin in range(start, int(highest) + 1):
                mean += counts[bin] * (bin + 0.5 - start)
            share = largest / total * np.exp((start - place) / max(mean / largest, 0.5))
    counts[here] += weight
    totals[:] = total + weight, weight * (1 + 1 / FADING_ROWS), max(highest, here)
    if weight > MAX_WEIGHT:
        counts /= weight
        totals[0] /= weight
        totals[1] /= weight
    return min(share, 1.0)
