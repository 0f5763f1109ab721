"""Running statistics of a column, row by row (Welford), so that they do not depend on chunks."""

import math
from typing import Any

from norewind.streams.place import LARGEST, is_count, is_number

# A standard deviation of fewer values than this says too little to judge a forecast by.
ENOUGH = 10
CLIP = 100.0
UNKNOWN = (math.nan, math.nan)


class Column:
    """The number of values of a column, their mean, the sum of their squared distances from it, and the newest."""

    __slots__ = ("count", "mean", "newest", "squares")

    def __init__(self, count: int = 0, mean: float = 0.0, squares: float = 0.0, newest: float = math.nan):
        self.count, self.mean, self.squares, self.newest = count, mean, squares, newest

    def see(self, value: float) -> None:
        """Take one more value in."""
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self.squares += before * (value - self.mean)
        self.newest = value

    def deviation(self) -> float:
        """The standard deviation; 0 if there is none."""
        return math.sqrt(self.squares / self.count) if self.squares > 0 else 0.0

    def scale(self) -> tuple[float, float]:
        """Mean and standard deviation to judge a forecast by; NaN while they are not known."""
        if self.count < ENOUGH:
            return UNKNOWN
        deviation = self.deviation()
        return (self.mean, deviation) if deviation > 0 else UNKNOWN

    def saved(self) -> list[Any]:
        """Everything, for a position."""
        return [self.count, self.mean, self.squares, self.newest if self.count else None]


def standardised(value: float, mean: float, deviation: float) -> float:
    """How many deviations a value is above the mean, within ±100; 0 while there is no deviation."""
    if deviation == 0:
        return 0.0
    return max(-CLIP, min(CLIP, (value - mean) / deviation))


def column_of(saved: Any) -> Column | None:
    """The column that was saved; None if this cannot be one."""
    if not isinstance(saved, list) or len(saved) != 4:
        return None
    count, *numbers = saved
    if count == 0 and numbers == [0.0, 0.0, None]:
        return Column()
    if not is_count(count) or count == 0 or not all(map(is_number, numbers)):
        return None
    mean, squares, newest = numbers
    return Column(count, mean, squares, newest) if max(abs(mean), abs(newest)) <= LARGEST and squares >= 0 else None
