"""Running statistics of columns, row by row (Welford), so that they do not depend on chunks."""

import math
from typing import Any, NamedTuple

from norewind.streams.place import LARGEST, is_count, is_number


class Statistics(NamedTuple):
    """For every column: how many values, their mean, their summed squared distances from it, and the newest one."""

    counts: list[int]
    means: list[float]
    squares: list[float]
    newest: list[float]

    def after(self, row: list[float]) -> "Statistics":
        """The statistics with one more row, in which NaN is a missing value."""
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
    """A row that waits for its target: its numbers, NaN where missing, and the statistics up to it."""

    values: list[float]
    statistics: Statistics


def no_statistics(columns: int) -> Statistics:
    """Before the first row."""
    return Statistics([0] * columns, [0.0] * columns, [0.0] * columns, [math.nan] * columns)


# In positions None stands for NaN, which JSON does not have.


def saved_statistics(statistics: Statistics) -> list[list[Any]]:
    """For a position: one list per column."""
    *parts, newest = statistics
    return [list(column) for column in zip(*parts, _without_nan(newest), strict=True)]


def saved_row(row: Row) -> list[Any]:
    """For a position: the numbers, and the statistics."""
    return [_without_nan(row.values), saved_statistics(row.statistics)]


def statistics_of(saved: Any, columns: int) -> Statistics | None:
    """The statistics that were saved; None if this cannot be any."""
    if not isinstance(saved, list) or len(saved) != columns or not all(map(_is_column, saved)):
        return None
    counts, means, squares, newest = ([column[part] for column in saved] for part in range(4))
    return Statistics(counts, means, squares, _with_nan(newest))


def row_of(saved: Any, columns: int) -> Row | None:
    """The row that was saved; None if this cannot be one."""
    if not isinstance(saved, list) or len(saved) != 2 or not isinstance(saved[0], list) or len(saved[0]) != columns:
        return None
    values, statistics = saved[0], statistics_of(saved[1], columns)
    if statistics is None or not all(value is None or _is_value(value) for value in values):
        return None
    return Row(_with_nan(values), statistics)


def _without_nan(values: list[float]) -> list[float | None]:
    return [None if value != value else value for value in values]


def _with_nan(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _is_column(saved: Any) -> bool:
    if not isinstance(saved, list) or len(saved) != 4 or not is_count(saved[0]):
        return False
    count, mean, squares, newest = saved
    if count == 0:
        return [mean, squares, newest] == [0.0, 0.0, None]
    return _is_value(mean) and _is_value(newest) and is_number(squares) and squares >= 0


def _is_value(value: Any) -> bool:
    return is_number(value) and abs(value) <= LARGEST
