"""The loop that compares the forecasts of rows with simple ones."""

import numpy as np

from norewind.engines.kernels import kernel
from norewind.scoring.score import RECENT_ROWS
from norewind.streams.table.scaling import clipped

# The share of the latest squared errors that is kept from row to row.
ERROR_DECAY = 1 - 1 / RECENT_ROWS
# A larger error, in standard deviations, counts as this large in the deviations of forecasts.
MAX_ERROR = 10.0


@kernel
def compare_rows(errors, squares, past, recently, ago, first, values, targets, scales, means):
    """Add up the errors of the model, the mean, the last value and the values a period ago, row by row.

    All are compared on the same rows: those that were forecast and whose target is known. (A value
    one period ago may be missing.)

    Args:
        errors: by forecast (model, baseline, persistence, periods), step and target, the number of rows and the sums of
            absolute and of squared errors in the table's units.
        squares: by forecast and step, the number of errors, and the sum of their squares in variances.
        past: a ring of the latest values.
        recently: by step and target, the weights and the weighted means of the latest squared errors.
        ago: how many rows ago the values of simple forecasts arrived, by forecast and step.
        first: the place of the first row in the ring.
        values: the actual values, by row and target.
        targets: the same, standardised, for every step; NaN means unknown.
        scales: the means and standard deviations used to standardise them.
        means: the forecasts of the model, standardised likewise.
    """
    depth, width = past.shape
    rules, steps = ago.shape
    for row in range(len(values)):
        for step in range(steps):
            for column in range(width):
                place = step * width + column
                center, deviation, value = scales[row, place, 0], scales[row, place, 1], values[row, column]
                last = past[(first + row - ago[0, step]) % depth, column]
                model = center + deviation * means[row, place]
                if np.isnan(targets[row, place]) or np.isnan(model) or np.isnan(last) or np.isnan(value):
                    continue
                for forecast in range(2 + rules):
                    if forecast == 0:
                        guess = model
                    elif forecast == 1:
                        guess = center
                    else:
                        guess = past[(first + row - ago[forecast - 2, step]) % depth, column]
                    error = guess - value
                    if np.isnan(error):
                        continue
                    total = errors[forecast, step, column]
                    total[0] += 1
                    total[1] += abs(error)
                    total[2] += error * error
                    squares[forecast, step, 0] += 1
                    # Clipped like the targets, so that an outlier does not hide all other errors.
                    squares[forecast, step, 1] += (clipped((guess - center) / deviation) - targets[row, place]) ** 2
                limited = min(abs(model - value), MAX_ERROR * deviation)
                recent = recently[step, column]
                recent[0] = ERROR_DECAY * recent[0] + (1 - ERROR_DECAY)
                recent[1] = ERROR_DECAY * recent[1] + (1 - ERROR_DECAY) * limited * limited
        for column in range(width):
            before = past[(first + row - 1) % depth, column]
            value = values[row, column]
            past[(first + row) % depth, column] = before if np.isnan(value) else value  # the last known value
