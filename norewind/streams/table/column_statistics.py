"""Running means and deviations of columns. They forget slowly, and a few outliers do not change them."""

import math

import numpy as np

from norewind.engines.kernels import kernel

# With fewer values than this, a standard deviation is too uncertain to standardise a target or to identify an outlier.
MIN_VALUES = 10
# The mean and the deviation are those of about this many of the latest values.
MEMORY = 10_000
# How far from the mean a value counts, in deviations. The first values farther away are left out: ten, or a tenth of
# the values so far. After them the reach grows with each, so that a shift or a larger scale is followed, and spikes
# that recur count in full.
REACH = 5.0
REACH_GROWTH = 4.0
LEFT_OUT = 10
# Without farther values, the reach shrinks by a factor of e in this many rows, and one value fewer was left out after
# log(REACH_GROWTH) times as many.
REACH_MEMORY = 1_000
# Of the first values, those farther from their median than this many median deviations count as the median.
FIRST_REACH = 15.0
# A smaller deviation, as a fraction of the mean, is rounding: the column is constant.
MIN_DEVIATION = 1e-14

# The numbers that say by what an input is standardised: its mean, as two numbers of single precision whose sum it is,
# and its deviation.
SCALES = 3

# The rows of the statistics of columns. The last `MIN_VALUES` rows hold the first values, until all have arrived.
COUNT, MEAN, VARIANCE, LATEST, WIDEST, FIRST = range(6)
STATISTICS = FIRST + MIN_VALUES


@kernel
def observe(known, row):
    """Add a row to the statistics.

    Args:
        known: the statistics of one series, of shape (STATISTICS, columns), updated in place.
        row: the numbers of the columns; NaN is missing.
    """
    for column in range(len(row)):
        value = row[column]
        if not math.isnan(value):
            count = int(known[COUNT, column])
            _add(known, column, value)
            known[LATEST, column] = value
            if count < MIN_VALUES:
                known[FIRST + count, column] = value
                if count + 1 == MIN_VALUES:
                    _leave_out_outliers(known, column)


@kernel
def _add(known, column, value):
    """Add a value to the statistics of a column, by Welford's method. Values far from the mean are left out or limited.

    Args:
        known: the statistics of the series, updated in place.
        column: the index of the column.
        value: the value.
    """
    distance, deviation = value - known[MEAN, column], deviation_of(known, column)
    if known[COUNT, column] >= MIN_VALUES and deviation > 0:
        usual = REACH * deviation
        reach = known[WIDEST, column] / REACH_GROWTH ** min(LEFT_OUT, known[COUNT, column] // 10)
        if abs(distance) <= max(reach, usual):
            known[WIDEST, column] *= 1 - 1 / REACH_MEMORY
        else:
            known[WIDEST, column] = REACH_GROWTH * max(known[WIDEST, column], usual)
            if reach < usual:
                return
            distance = math.copysign(reach, distance)
    known[COUNT, column] += 1
    weight = max(1 / known[COUNT, column], 1 / MEMORY)
    known[MEAN, column] += weight * distance
    known[VARIANCE, column] = (1 - weight) * (known[VARIANCE, column] + weight * distance * distance)


@kernel
def _leave_out_outliers(known, column):
    """Replace outliers among the first values of a column by their median, and drop the list of these values.

    Args:
        known: the statistics of the series, updated in place.
        column: the index of the column.
    """
    first = known[FIRST:, column].copy()
    known[FIRST:, column] = 0.0
    median = np.median(first)
    distances = np.abs(first - median)
    reach = FIRST_REACH * np.median(distances)
    # If most of the values are equal, the others are not outliers.
    if 0 < reach < distances.max():
        known[COUNT, column], known[MEAN, column], known[VARIANCE, column] = 0.0, 0.0, 0.0
        for i in range(len(first)):
            _add(known, column, first[i] if distances[i] <= reach else median)


@kernel
def deviation_of(known, column):
    """Return the standard deviation of a column; 0 if it is constant.

    Args:
        known: the statistics of the series.
        column: the index of the column.
    """
    deviation = math.sqrt(known[VARIANCE, column])
    return deviation if deviation > MIN_DEVIATION * abs(known[MEAN, column]) else 0.0


@kernel
def filled(known, row, column, with_latest):
    """Return a value, or its replacement if it is missing.

    Args:
        known: the statistics of the series, of shape (STATISTICS, columns).
        row: the numbers of the columns; NaN is missing.
        column: the column of the value.
        with_latest: whether to replace it by the latest value, not by the mean.
    """
    if not math.isnan(row[column]):
        return row[column]
    return known[LATEST, column] if with_latest and known[COUNT, column] > 0 else known[MEAN, column]


@kernel
def write_scale_inputs(known, columns, standardise, x, place):
    """Write by what columns are standardised.

    Args:
        known: the statistics of the series.
        columns: the columns.
        standardise: whether they are standardised; otherwise the mean is 0 and the deviation is 1.
        x: the inputs to write to: `SCALES` numbers for every column.
        place: where they begin.
    """
    for column in columns:
        mean = known[MEAN, column] if standardise else 0.0
        x[place] = mean
        x[place + 1], x[place + 2] = mean - x[place], deviation_of(known, column) if standardise else 1.0
        place += SCALES
