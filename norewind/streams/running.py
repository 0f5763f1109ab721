"""Running statistics of columns, row by row (Welford), so that they do not depend on chunks."""

import math
from typing import Any, NamedTuple

import numpy as np

from norewind.streams.place import LARGEST, is_count, is_number

# A standard deviation of fewer values than this says too little to judge a forecast by.
ENOUGH = 10
CLIP = 100.0


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

    def saved(self) -> list[list[Any]]:
        """For a position: one list per column."""
        newest = [value if count else None for count, value in zip(self.counts, self.newest, strict=True)]
        return [list(column) for column in zip(self.counts, self.means, self.squares, newest, strict=True)]


def no_statistics(columns: int) -> Statistics:
    """Before the first row."""
    return Statistics([0] * columns, [0.0] * columns, [0.0] * columns, [math.nan] * columns)


def statistics_of(saved: Any, columns: int) -> Statistics | None:
    """The statistics that were saved; None if this cannot be any."""
    if not isinstance(saved, list) or len(saved) != columns or not all(map(_is_column, saved)):
        return None
    counts, means, squares, newest = ([column[part] for column in saved] for part in range(4))
    return Statistics(counts, means, squares, [math.nan if value is None else value for value in newest])


def deviations_of(counts: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Standard deviations; 0 where there is none."""
    return np.sqrt(np.maximum(squares, 0) / np.maximum(counts, 1))


def standardised(values: np.ndarray, means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """How many deviations values are above their means, within ±100."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.clip((values - means) / deviations, -CLIP, CLIP)


def _is_column(saved: Any) -> bool:
    if not isinstance(saved, list) or len(saved) != 4 or not is_count(saved[0]):
        return False
    count, *numbers = saved
    if count == 0:
        return numbers == [0.0, 0.0, None]
    return all(map(is_number, numbers)) and max(abs(numbers[0]), abs(numbers[2])) <= LARGEST and numbers[1] >= 0
