"""Running statistics of columns, and samples that are standardised by them.

Everything is computed row by row and number by number, so that it does not depend on how
many samples are taken at a time.
"""

import math
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from norewind.streams.clock import REMEMBERED
from norewind.streams.columns import DAY, LARGEST, Kind
from norewind.streams.parsing import CATEGORIES
from norewind.streams.position import Count, MessagesPosition, SourcePosition, damaged
from norewind.streams.stream import Samples, StreamError

# With fewer values than this, a standard deviation says too little to standardise a target by.
ENOUGH = 10
CLIP = 100.0
FARTHEST = 10**9


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
    """The numbers of a row, NaN where missing, the statistics up to and including it, its line, and what is copied."""

    values: list[float]
    statistics: Statistics
    line: int
    copied: str | None


CYCLES = {"hour": DAY, "weekday": 7 * DAY}
"""Seconds after which the time of day and the day of the week come again."""


class Layout(NamedTuple):
    """The number of columns in use, which of them are inputs and which are targets, and what is done with them.

    Inputs are the numbers, then the categories (one number of 0 or 1 for each), then the
    cycles of times (cosine and sine), and with `before` the newest targets of the rows before.
    """

    columns: int
    numbers: list[int]
    targets: list[int]
    fill_with_newest: bool
    standardise: bool
    categories: list[int] = []  # noqa: RUF012 (never changed)
    cycles: list[tuple[int, float]] = []  # noqa: RUF012 (never changed)
    classes: bool = False
    copies: bool = False
    before: bool = False

    @property
    def width(self) -> int:
        before = len(self.targets) * (CATEGORIES if self.classes else 1) if self.before else 0
        return len(self.numbers) + CATEGORIES * len(self.categories) + 2 * len(self.cycles) + before


def horizons_of(horizon: int | Sequence[int]) -> list[int]:
    """One or several horizons as a list."""
    horizons = [horizon] if isinstance(horizon, int) else list(horizon)
    if not horizons or horizons[0] < (len(horizons) > 1) or max(horizons) > FARTHEST:
        raise StreamError(f"the horizon must be 0 or more rows, to 10⁹, not {horizon}; several 1 or more.")
    if horizons != sorted(set(horizons)):
        raise StreamError(f"several horizons must be in order, each once, not {horizon}.")
    return horizons


class Tried(NamedTuple):
    """A row that might come next, as a sample: the statistics before it, its values, and the scales that then wait."""

    before: Statistics
    values: list[float]
    samples: Samples
    waiting: np.ndarray

    def again(self, before: Statistics, rows: list[Row]) -> tuple[Samples, np.ndarray] | None:
        """What `samples_of` would make of the rows after these statistics, if they are this one."""
        if self.before is not before or len(rows) != 1 or rows[0].values != self.values or rows[0].copied is not None:
            return None
        return self.samples._replace(lines=np.array([rows[0].line], np.int64)), self.waiting


def no_statistics(columns: int) -> Statistics:
    return Statistics([0] * columns, [0.0] * columns, [0.0] * columns, [math.nan] * columns)


def samples_of(
    rows: list[Row], layout: Layout, waiting: np.ndarray, delays: list[int], *, each_next: bool = False
) -> tuple[Samples, np.ndarray]:
    """Rows as samples, and the scales that wait for targets to come, of which `waiting` were there before.

    Scales are the mean, the deviation and the newest value of every target, which are known
    after a row; they standardise the targets that come so many rows later. All three are NaN
    where too little is known. With several `delays`, the longest last, targets come side by
    side, once for each. With `each_next`, each of the rows is taken as the next one, in place
    of the others.
    """
    tables, longest, missing = _tables(rows, layout.columns), delays[-1], delays[-1] - len(waiting)
    of_targets = tables[..., layout.targets]
    sent, now = of_targets[:, 0], scales_of(of_targets[:, 1:], layout)
    nothing = [np.full((missing, *now.shape[1:]), np.nan)] if missing > 0 else []
    waiting = np.concatenate([*nothing, waiting, now])
    places = np.zeros(len(rows), int) if each_next else np.arange(len(rows))
    parts = [waiting[longest - delay + places] for delay in delays]
    scales, sent = (parts[0], sent) if len(parts) == 1 else (np.concatenate(parts, axis=1), np.tile(sent, len(parts)))
    mean, deviation, last = scales[..., 0], scales[..., 1], scales[..., 2]
    if layout.standardise and not layout.classes:
        targets, last = standardised(np.array([sent, last]), mean, deviation)
    else:
        targets = np.where(np.isnan(mean), np.nan, sent)
    xs = xs_of(tables[:, 0], tables[:, 1:], layout)
    if layout.before:
        known = last == np.arange(CATEGORIES) if layout.classes else np.nan_to_num(last)
        xs = np.concatenate([xs, known.astype(np.float32)], axis=1)
    samples = Samples(
        xs,
        targets.astype(np.float32),
        scales[..., :2],
        last.astype(np.float32),
        np.tile(now[..., :2], (1, len(delays), 1)) if len(delays) > 1 else now[..., :2],
        sent,
        np.array([row.line for row in rows], np.int64),
        np.array([row.copied for row in rows], object) if layout.copies else None,
    )
    return samples, waiting[max(0, missing) :][-longest:]


def inputs_of(row: Row, layout: Layout) -> np.ndarray:
    """A row as inputs, without the targets of rows before."""
    tables = _tables([row], layout.columns)
    return xs_of(tables[:, 0], tables[:, 1:], layout)[0]


def _tables(rows: list[Row], columns: int) -> np.ndarray:
    """The values of rows, and their statistics, as an array of shape (rows, 1 + 4, columns)."""
    # Several times faster than by np.array.
    numbers = chain.from_iterable(chain.from_iterable((row.values, *row.statistics) for row in rows))
    return np.fromiter(numbers, np.float64, len(rows) * 5 * columns).reshape(len(rows), 5, columns)


def scales_of(statistics: np.ndarray, layout: Layout) -> np.ndarray:
    """Mean, deviation and newest value of every target, from statistics of shape (rows, 4, targets)."""
    counts, means, squares, newest = (statistics[:, part] for part in range(4))
    if not layout.standardise or layout.classes:
        return np.stack([np.zeros_like(means), np.ones_like(means), newest], axis=-1)
    deviations = _deviations(counts, squares)
    scales = np.empty((*means.shape, 3))
    scales[..., 0], scales[..., 1], scales[..., 2] = means, deviations, newest
    scales[(counts < ENOUGH) | (deviations == 0)] = np.nan
    return scales


def xs_of(values: np.ndarray, statistics: np.ndarray, layout: Layout) -> np.ndarray:
    """Values of shape (rows, columns) as inputs; statistics have the shape (rows, 4, columns)."""
    counts, means, squares = (statistics[:, part][:, layout.numbers] for part in range(3))
    known = _known(values, statistics, layout.fill_with_newest)
    numbers = known[:, layout.numbers]
    if layout.standardise:
        deviations = _deviations(counts, squares)
        numbers = np.where(deviations > 0, standardised(numbers, means, deviations), 0.0)
    parts = [numbers]
    # A mean of categories is none.
    named = known if layout.fill_with_newest else values
    parts += [named[:, [place]] == np.arange(CATEGORIES) for place in layout.categories]
    for place, cycle in layout.cycles:
        angle = 2 * np.pi * (known[:, place] % cycle) / cycle
        parts.append(np.stack([np.cos(angle), np.sin(angle)], axis=1))
    return (np.concatenate(parts, axis=1) if len(parts) > 1 else numbers).astype(np.float32)


def _known(values: np.ndarray, statistics: np.ndarray, with_newest: bool) -> np.ndarray:
    """The values, with those filled in that are missing."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    counts, means, _, newest = (statistics[:, part] for part in range(4))
    return np.where(missing, np.where(counts > 0, newest, means) if with_newest else means, values)


def _deviations(counts: np.ndarray, squares: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(squares, 0) / np.maximum(counts, 1))


def standardised(values: np.ndarray, means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.minimum(np.maximum((values - means) / deviations, -CLIP), CLIP)


# In positions None stands for NaN, which JSON does not have.
Value = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
SavedColumn = tuple[Count, Value, Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)], Value | None]
Names = Annotated[list[str], msgspec.Meta(min_length=1)]


class RowPosition(SourcePosition):
    """The fields that positions of rows have."""

    inside: bool
    format: str
    horizon: Count | list[Count]
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


def saved_statistics(statistics: Statistics) -> list[list[Any]]:
    return [_without_nan(column) for column in zip(*statistics, strict=True)]


def restored_statistics(saved: list[list[Any]], columns: int) -> Statistics:
    # A column has a newest value if it has any.
    fits = all(column[3] is not None if column[0] else column == [0, 0.0, 0.0, None] for column in saved)
    if not fits or len(saved) != columns:
        raise damaged("its statistics do not fit its columns")
    counts, means, squares, newest = map(list, zip(*saved, strict=True))
    return Statistics(counts, means, squares, _with_nan(newest))


def restored_waiting(saved: Any, targets: int, delay: int, standardise: bool) -> np.ndarray:
    """The scales that wait for targets to come, as `samples_of` returned them."""
    if not isinstance(saved, np.ndarray) or saved.dtype != np.float64 or saved.shape[1:] != (targets, 3):
        raise damaged(f"what waits for targets to come is not an array of float64 of shape (rows, {targets}, 3)")
    if len(saved) > delay:
        raise damaged("more rows wait than its horizon allows")
    mean, deviation, newest = np.moveaxis(saved, -1, 0)
    if standardise:
        known = (np.abs(mean) <= LARGEST) & (deviation > 0) & (deviation < np.inf) & (np.abs(newest) <= LARGEST)
        fits = known | np.isnan(saved).all(axis=-1)
    else:
        fits = (mean == 0) & (deviation == 1) & ((np.abs(newest) <= LARGEST) | np.isnan(newest))
    if not fits.all():
        raise damaged("the scales that wait for targets to come are not finite, or not those of its settings")
    return saved


def _without_nan(values: Any) -> list[Any]:
    return [None if value != value else value for value in values]


def _with_nan(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
