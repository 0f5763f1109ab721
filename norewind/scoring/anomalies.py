"""How unusual a row is: a score in [0, 1] with a stated meaning, from a stream of values and errors of forecasts.

On a stream without anomalies, at most a share of 1 − s of all rows have a score of s or more: with 0.999, at most one
row in a thousand. tests/scoring/test_anomalies.py measures this on noise of several kinds. Scores above 0.99 come from
tails that are continued beyond what was seen: in its first two thousand rows, a stream with heavy tails has a score of
0.999 up to twice as often.

A row is compared with the past in three ways. The rarest of the three counts, with three times its probability:

- the error of its forecast, compared with earlier errors;
- the mean of the newest sixteen values, as a distance from the mean of all values, compared with earlier distances;
- the value, if it is outside the range of all earlier values. The next of n values is outside with a probability of
  2 / (n + 1), and the less likely the further.

Earlier errors and distances are counted in a histogram of their logarithms, where old ones slowly fade. Beyond the ten
largest, their distribution is continued as a power law. After a row rarer than one in a hundred the detector rests: in
the next hundred rows, only rarer ones have a score above 0. Memory is constant, about 25 kB.
"""

from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel

# The bins of a histogram, how many there are for each factor of e, and the logarithm at which the first one begins.
BINS, PER_FACTOR, LOWEST = 1400, 10, -70.0
# The number of rows in which the weight of a count falls to 1/e.
FADING = 5000.0
# The number of largest counts from which the tail is continued.
TAIL = 10.0
# The number of newest values in a mean.
NEWEST = 16
# How fast the probability of a value falls with its distance from the range of earlier values, in ranges.
FALL = 10.0
# The number of rows before any score, the probability below which a rest begins, and its number of rows.
FIRST, UNUSUAL, REST = 50, 0.01, 100
# Errors below this number of standard deviations, and distances below this share of the range, count as equal.
SMALLEST = 1e-6
# The rarest probability.
RAREST = 1e-300
# Counts are divided by the newest weight when it exceeds this.
LARGEST_WEIGHT = 1e100


class Anomalies(NamedTuple):
    """What is known of one series. `score_rows` changes it in place.

    Attributes:
        counts: the histograms of errors and of distances.
        totals: for both, the sum of the counts, the weight of the next one, and the highest bin that is not empty.
        newest: a ring of the newest values.
        numbers: the number of values, their mean, the smallest, the largest, the number of rows that are left of a
            rest, and the smallest probability in it.
    """

    counts: np.ndarray
    totals: np.ndarray
    newest: np.ndarray
    numbers: np.ndarray


def no_anomalies() -> Anomalies:
    """Return the state of a series before its first row."""
    totals = np.tile([0.0, 1.0, 0.0], (2, 1))
    return Anomalies(np.zeros((2, BINS)), totals, np.zeros(NEWEST), np.array([0.0, 0.0, np.inf, -np.inf, 0.0, 1.0]))


def score_rows(state: Anomalies, values: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Score consecutive rows of a series, each compared with those before it.

    Args:
        state: what is known of the series, which is changed.
        values: the value of each row; NaN if it is unknown.
        errors: the error of the forecast of each row, in standard deviations; NaN if there is none.

    Returns:
        The score of each row, from 0 to 1; 0 for the first rows and for unknown values.
    """
    probabilities = np.ones(len(values))
    _probabilities(*state, np.asarray(values, np.float64), np.asarray(errors, np.float64), probabilities)
    return 1 - probabilities


@kernel
def _probabilities(counts, totals, newest, numbers, values, errors, probabilities):
    """Write how likely a row is that is at least as unusual as each row; 1 during a rest, unless it is rarer."""
    for row in range(len(values)):
        value = values[row]
        if np.isnan(value):
            continue
        size, mean, low, high, left, rarest = numbers
        rare = 1.0
        if not np.isnan(errors[row]):
            rare = min(rare, _rarity(counts[0], totals[0], max(abs(errors[row]), SMALLEST)))
        newest[int(size) % NEWEST] = value
        mean += (value - mean) / (size + 1)
        if size >= NEWEST:
            distance = abs(newest.mean() - mean)
            rare = min(rare, _rarity(counts[1], totals[1], max(distance, SMALLEST * (high - low))))
        beyond = max(value - high, low - value)
        if size >= FIRST and beyond > 0:
            further = beyond / (high - low) if high > low else 0.0
            rare = min(rare, 2 / (size + 1) * (1 + further) ** -FALL)
        rare = max(min(3 * rare, 1.0), RAREST)
        if left == 0:
            rarest = 1.0
        if rare < rarest:
            probabilities[row] = rare
        left = max(left - 1, 0.0)
        if rare <= min(rarest, UNUSUAL):
            rarest, left = rare, float(REST)
        numbers[:] = size + 1, mean, min(low, value), max(high, value), left, rarest


@kernel
def _rarity(counts, totals, size):
    """Return the share of earlier sizes that are at least as large, and count this one.

    Args:
        counts: the histogram.
        totals: the sum of the counts, the weight of the next one, and the highest bin that is not empty.
        size: an absolute error or distance.
    """
    total, weight, highest = totals
    place = (np.log(max(size, RAREST)) - LOWEST) * PER_FACTOR
    here = min(max(int(place), 0), BINS - 1)
    rarity = 1.0
    if total >= FIRST * weight / (1 + FIRST / FADING):
        # The largest counts, in units of the weight of the next one; their mean place above the bin they begin in.
        above, largest, start = 0.5 * counts[here], 0.0, int(highest)
        for bin in range(here + 1, int(highest) + 1):
            above += counts[bin]
        while largest < TAIL * weight and start > 0:
            largest += counts[start]
            start -= 1
        start += 1
        rarity = (above + 0.5 * weight) / (total + weight)
        if here > start + 1 and above < largest:
            mean = 0.0
            for bin in range(start, int(highest) + 1):
                mean += counts[bin] * (bin + 0.5 - start)
            rarity = largest / total * np.exp((start - place) / max(mean / largest, 0.5))
    counts[here] += weight
    totals[:] = total + weight, weight * (1 + 1 / FADING), max(highest, here)
    if weight > LARGEST_WEIGHT:
        counts /= weight
        totals[0] /= weight
        totals[1] /= weight
    return min(rarity, 1.0)
