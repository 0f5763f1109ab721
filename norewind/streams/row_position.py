"""What the saved position of a stream of rows holds, and whether it can be true."""

import math
import sys
from typing import Annotated, Any

import msgspec
import numpy as np

from norewind.streams.clock import REMEMBERED
from norewind.streams.columns import LARGEST, Kind
from norewind.streams.position import Count, MessagesPosition, SourcePosition, damaged
from norewind.streams.scaling import Layout, Series, nothing_known

# In positions None stands for NaN, which JSON does not have.
Value = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
SavedColumn = tuple[Count, Value, Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)], Value | None]
Names = Annotated[list[str], msgspec.Meta(min_length=1)]


class RowPosition(SourcePosition):
    """The fields that positions of rows have."""

    inside: bool
    format: str
    steps: Annotated[list[Count], msgspec.Meta(min_length=1)]
    standardise: bool
    columns: list[str]
    inputs: Names
    targets: Names
    kinds: dict[str, Kind]
    cycles: dict[str, list[str]]
    categories: dict[str, list[str]]
    clock: str | None
    times: Annotated[list[str | int | float | None], msgspec.Meta(max_length=REMEMBERED)]
    statistics: list[SavedColumn]
    waiting: Any
    messages: MessagesPosition | None = None


def saved_statistics(series: Series) -> list[list[Any]]:
    """Count, mean, sum of squares and newest value of every column of one series."""
    columns = series.statistics[0].T.tolist()
    return [[int(count), *(None if math.isnan(value) else value for value in rest)] for count, *rest in columns]


def newest_scales(series: Series, rows: int) -> np.ndarray:
    """Mean, deviation and newest value of every target after each of the last rows of one series, the oldest first."""
    seen, depth = int(series.seen[0]), series.waiting.shape[1]
    return series.waiting[0, np.arange(max(0, seen - min(rows, depth)), seen) % depth]


def restored_series(layout: Layout, statistics: list[list[Any]], waiting: Any) -> Series:
    """The series of a position: `saved_statistics` and `newest_scales` gave the other arguments.

    Raises:
        StreamError: they do not fit the columns, or cannot be true.
    """
    # A column has a newest value if it has any.
    fits = all(column[3] is not None if column[0] else column == [0, 0.0, 0.0, None] for column in statistics)
    if not fits or len(statistics) != layout.columns:
        raise damaged("its statistics do not fit its columns")
    series = nothing_known(layout)
    depth, targets = series.waiting.shape[1:3]
    if not isinstance(waiting, np.ndarray) or waiting.dtype != np.float64 or waiting.shape[1:] != (targets, 3):
        raise damaged(f"what waits for targets to come is not an array of float64 of shape (rows, {targets}, 3)")
    if len(waiting) > depth:
        raise damaged("more rows wait than its horizon allows")
    mean, deviation, newest = np.moveaxis(waiting, -1, 0)
    if layout.standardise and not layout.classes:
        known = (np.abs(mean) <= LARGEST) & (deviation > 0) & (deviation < np.inf) & (np.abs(newest) <= LARGEST)
        fits = known | np.isnan(waiting).all(axis=-1)
    else:
        fits = (mean == 0) & (deviation == 1) & ((np.abs(newest) <= LARGEST) | np.isnan(newest))
    if not fits.all():
        raise damaged("the scales that wait for targets to come are not finite, or not those of its settings")
    series.statistics[0] = np.array(statistics, np.float64).T
    series.waiting[0, : len(waiting)] = waiting
    series.seen[0] = len(waiting)
    return series
