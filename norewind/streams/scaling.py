"""Running statistics of columns, and samples that are standardised by them.

Everything is computed row by row and number by number, so that it does not depend on how
many samples are taken at a time.
"""

import math
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from norewind.streams.parsing import LARGEST
from norewind.streams.position import is_count
from norewind.streams.stream import Samples

# With fewer values than this, a standard deviation says too little to standardise a target by.
ENOUGH = 10
CLIP = 100.0


class Statistics(NamedTuple):
    """For each column the number of values, their mean, the sum of squared distances from it, and the newest value."""

    counts: list[int]
    means: list[float]
    squares: list[float]
    newest: list[float]

    def after(self, row: list[float]) -> "Statistics":
        """The statistics with one more row (by Welford's method), where NaN is a missing value."""
        counts, means, squares, newest = self.counts[:], self.means[:], self.squares[:], self.newest[:]
        for column, value in enumerate(row):
            if value == value:
                counts[column] = count = counts[column] + 1
                before = value - means[column]
                means[column] = mean = means[column] + before / count
                squares[column] += before * (value - mean)
                newest[column] = value
        return Statistics(counts, means, squares, newest)


class Row(NamedTuple):
    """The numbers of a row, NaN where missing, and the statistics up to and including it."""

    values: list[float]
    statistics: Statistics


class Pair(NamedTuple):
    """A sample to be standardised: a row, the statistics known when predicting, and the row with its targets."""

    row: Row
    known: Statistics
    target: list[float]


class Layout(NamedTuple):
    """The number of columns in use, which of them are inputs and which are targets, and what is done with them."""

    columns: int
    inputs: list[int]
    targets: list[int]
    fill_with_newest: bool
    standardise: bool


def no_statistics(columns: int) -> Statistics:
    """The statistics before the first row."""
    return Statistics([0] * columns, [0.0] * columns, [0.0] * columns, [math.nan] * columns)


def samples_of(pairs: list[Pair], layout: Layout) -> Samples:
    """The samples as arrays."""
    statistics = _tables([pair.row.statistics for pair in pairs], layout.columns)
    # With a horizon, the statistics up to the row are all that is known when predicting: no need to convert them twice.
    same = all(pair.known is pair.row.statistics for pair in pairs)
    known = statistics if same else _tables([pair.known for pair in pairs], layout.columns)
    xs = _xs(_table([pair.row.values for pair in pairs], layout.columns), statistics, layout)
    counts, means, squares, newest = (table[:, layout.targets] for table in known)
    targets = _table([pair.target for pair in pairs], layout.columns)[:, layout.targets]
    if layout.standardise:
        deviations = _deviations(counts, squares)
        unknown = (counts < ENOUGH) | (deviations == 0)
        means, deviations = np.where(unknown, np.nan, means), np.where(unknown, np.nan, deviations)
        targets, newest = _standardised(targets, means, deviations), _standardised(newest, means, deviations)
    else:
        means, deviations = np.zeros_like(means), np.ones_like(means)
    scales = np.stack([means, deviations], axis=-1)
    return Samples(xs, targets.astype(np.float32), scales, newest.astype(np.float32))


def _xs(values: np.ndarray, statistics: list[np.ndarray], layout: Layout) -> np.ndarray:
    values = values[:, layout.inputs]
    counts, means, squares, newest = (table[:, layout.inputs] for table in statistics)
    filling = np.where(counts > 0, newest, means) if layout.fill_with_newest else means
    values = np.where(np.isnan(values), filling, values)
    if layout.standardise:
        deviations = _deviations(counts, squares)
        values = np.where(deviations > 0, _standardised(values, means, deviations), 0.0)
    return values.astype(np.float32)


def _deviations(counts: np.ndarray, squares: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(squares, 0) / np.maximum(counts, 1))


def _standardised(values: np.ndarray, means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.clip((values - means) / deviations, -CLIP, CLIP)


def _tables(statistics: list[Statistics], columns: int) -> list[np.ndarray]:
    return [_table([entry[part] for entry in statistics], columns) for part in range(4)]


def _table(rows: list[Any], columns: int) -> np.ndarray:
    """Rows of numbers as an array, several times faster than by np.array."""
    return np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * columns).reshape(len(rows), columns)


# In positions None stands for NaN, which JSON does not have.


def saved_statistics(statistics: Statistics) -> list[list[Any]]:
    """The statistics for a position: one list per column."""
    return [_without_nan(column) for column in zip(*statistics, strict=True)]


def saved_row(row: Row) -> list[Any]:
    """A row for a position: its numbers, and its statistics."""
    return [_without_nan(row.values), saved_statistics(row.statistics)]


def restored_statistics(saved: Any, columns: int) -> Statistics | None:
    """The statistics that were saved, or None if they are damaged."""
    if not isinstance(saved, list) or len(saved) != columns or not all(map(_is_column, saved)):
        return None
    counts, means, squares, newest = map(list, zip(*saved, strict=True))
    return Statistics(counts, means, squares, _with_nan(newest))


def restored_row(saved: Any, columns: int) -> Row | None:
    """The row that was saved, or None if it is damaged."""
    if not isinstance(saved, list) or len(saved) != 2 or not isinstance(saved[0], list) or len(saved[0]) != columns:
        return None
    values, statistics = saved[0], restored_statistics(saved[1], columns)
    if statistics is None or not all(value is None or _is_value(value) for value in values):
        return None
    return Row(_with_nan(values), statistics)


def _without_nan(values: Any) -> list[Any]:
    return [None if value != value else value for value in values]


def _with_nan(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _is_column(saved: Any) -> bool:
    if not isinstance(saved, list) or len(saved) != 4 or not is_count(saved[0]):
        return False
    count, mean, squares, newest = saved
    if count == 0:
        return [mean, squares, newest] == [0.0, 0.0, None]
    return _is_value(mean) and _is_value(newest) and type(squares) is float and 0 <= squares < math.inf


def _is_value(value: Any) -> bool:
    return type(value) is float and abs(value) <= LARGEST
