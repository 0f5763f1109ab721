"""Running statistics of columns, and samples that are standardised by them: one loop over rows, for one series or many.

Everything is computed row by row and number by number, so that it does not depend on how
many rows are given at a time.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.kernels import kernel
from norewind.streams.columns import CATEGORIES, DAY, LARGEST
from norewind.streams.position import damaged
from norewind.streams.stream import StreamError

# With fewer values than this, a standard deviation says too little to standardise a target by.
ENOUGH = 10
CLIP = 100.0
FARTHEST = 10**6
# Seconds after which the time of day and the day of the week come again.
CYCLES = {"hour": DAY, "weekday": 7 * DAY}

# The rows of a series' statistics.
COUNT, MEAN, SQUARES, NEWEST = range(4)
# What to do with rows: learn from one after the other, try each as the next one, or imagine rows to come.
LEARN, TRY, IMAGINE = range(3)


class Layout(NamedTuple):
    """How the columns in use become inputs and targets.

    Inputs are the numbers, then the categories (one number of 0 or 1 for each), then the
    cycles of times (cosine and sine), and with `before` the newest targets of the rows before.

    Attributes:
        columns: how many columns there are: those in use, followed by the time since the row before for each of
            `times`.
        steps: how many rows before a target comes it is to be forecast, in increasing order; (0,) for targets of the
            same row.
        numbers: the columns that are inputs as numbers.
        targets: the columns that are targets.
        categories: the columns that are inputs as categories.
        cycles: the columns with times that are inputs as cycles.
        periods: the length of each cycle in seconds.
        times: the columns that hold times.
        fill_with_newest: whether a missing input is replaced by the newest value of its column, not by the mean.
        standardise: whether columns are standardised.
        classes: whether the targets are classes, which are not standardised.
        before: whether the newest targets of the rows before are inputs too.
    """

    columns: int
    steps: np.ndarray
    numbers: np.ndarray
    targets: np.ndarray
    categories: np.ndarray
    cycles: np.ndarray
    periods: np.ndarray
    times: np.ndarray
    fill_with_newest: bool
    standardise: bool
    classes: bool
    before: bool

    @property
    def width(self) -> int:
        """How many inputs a row has."""
        before = len(self.targets) * (CATEGORIES if self.classes else 1) if self.before else 0
        return len(self.numbers) + CATEGORIES * len(self.categories) + 2 * len(self.cycles) + before


class Series(NamedTuple):
    """What is known of one or more series of rows. Each has a slot: a place along the leading axes.

    Attributes:
        statistics: of every column the number of values, their mean, the sum of squared distances from it and the
            newest value, of shape (slots, 4, columns).
        waiting: mean, deviation and newest value of every target after each of the newest rows, of shape
            (slots, depth, targets, 3): row t is at t modulo depth. They scale targets that come later.
        seen: the number of rows.
    """

    statistics: np.ndarray
    waiting: np.ndarray
    seen: np.ndarray


def steps_of(horizon: int, steps: Sequence[int] | None = None) -> tuple[int, ...]:
    """All steps up to a horizon, or just the given ones.

    >>> steps_of(3), steps_of(0), steps_of(1, [1, 24])
    ((1, 2, 3), (0,), (1, 24))
    """
    if steps is None:
        if not 0 <= horizon <= FARTHEST:
            raise StreamError(f"the horizon must be 0 to {FARTHEST:,} rows, not {horizon}.")
        return tuple(range(1, horizon + 1)) or (0,)
    if not steps or steps[0] < (len(steps) > 1) or max(steps) > FARTHEST:
        raise StreamError(f"the steps must be 1 to {FARTHEST:,} rows, or 0 alone, not {list(steps)}.")
    if list(steps) != sorted(set(steps)):
        raise StreamError(f"the steps must be in increasing order, each once, not {list(steps)}.")
    return tuple(map(int, steps))


def nothing_known(layout: Layout, slots: int = 1) -> Series:
    """Series that have no rows yet."""
    statistics = np.zeros((slots, 4, layout.columns))
    statistics[:, NEWEST] = np.nan
    depth, raw = max(1, int(layout.steps[-1])), layout.classes or not layout.standardise
    # Targets of the same row need no scale that is known before if they are not standardised.
    scale = [0.0, 1.0, np.nan] if raw and layout.steps[-1] == 0 else [np.nan] * 3
    waiting = np.full((slots, depth, len(layout.targets), 3), scale)
    return Series(statistics, waiting, np.zeros(slots, np.int64))


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
    fits = isinstance(waiting, np.ndarray) and waiting.dtype == np.float64 and waiting.shape[1:] == (targets, 3)
    if not fits or len(waiting) > depth:
        raise damaged(f"the scales that wait are not float64 of at most {depth} rows of shape ({targets}, 3)")
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


def scaled(
    layout: Layout, series: Series, rows: np.ndarray, slots: np.ndarray | None = None, mode: int = LEARN
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows as samples: the first six fields of `Samples`.

    Args:
        layout: how columns become inputs and targets.
        series: what is known so far; with `LEARN`, it is changed in place.
        rows: the numbers of the columns as float64 of shape (rows, columns); NaN is missing. The times since the row
            before are filled in.
        slots: the series that each row belongs to; by default all belong to the first.
        mode: `LEARN`, or `TRY` to take each row as the next one, in place of the others, or `IMAGINE` to take rows
            as they are, with the statistics as they are.
    """
    count, targets = len(rows), len(layout.steps) * len(layout.targets)
    out = (
        np.empty((count, layout.width), np.float32),
        np.empty((count, targets), np.float32),
        np.empty((count, targets, 2)),
        np.empty((count, targets), np.float32),
        np.empty((count, targets, 2)),
        np.empty((count, targets)),
    )
    scale_rows(layout, series, np.zeros(count, np.int64) if slots is None else slots, rows, mode, out)
    return out


@kernel
def scale_rows(layout, series, slots, rows, mode, out):
    """Write the inputs, targets, scales, last values, scales ahead and raw targets of rows; see `Samples`."""
    statistics, waiting, seen = series
    xs, targets, scales, last, ahead, values = out
    depth, width = waiting.shape[1], len(layout.targets)
    standardise = layout.standardise and not layout.classes
    row, tried, now = np.empty(layout.columns), np.empty((4, layout.columns)), np.empty((width, 3))
    for t in range(len(rows)):
        slot = slots[t]
        known = statistics[slot]
        if mode == TRY:
            tried[:] = known
            known = tried
        row[:] = rows[t]
        if mode != IMAGINE:
            for place in range(len(layout.times)):
                time = layout.times[place]
                row[layout.columns - len(layout.times) + place] = row[time] - known[NEWEST, time]
            observe(known, row)
        write_inputs(layout, known, row, xs[t])
        write_scales(layout, known, standardise, now)
        here = seen[slot] % depth
        for s in range(len(layout.steps)):
            # What is known when predicting is that of the row before, even if the target comes with the row itself.
            then = here - max(1, layout.steps[s])
            scale = waiting[slot, then if then >= 0 else then + depth]
            for k in range(width):
                place = s * width + k
                sent, mean, deviation, newest = row[layout.targets[k]], scale[k, 0], scale[k, 1], scale[k, 2]
                if standardise:
                    targets[t, place] = clipped((sent - mean) / deviation)
                    last[t, place] = clipped((newest - mean) / deviation)
                else:
                    targets[t, place] = math.nan if math.isnan(mean) else sent
                    last[t, place] = newest
                scales[t, place, 0], scales[t, place, 1] = mean, deviation
                ahead[t, place, 0], ahead[t, place, 1] = now[k, 0], now[k, 1]
                values[t, place] = sent
        if layout.before:
            write_before(layout, last[t], xs[t])
        if mode == LEARN:
            waiting[slot, here] = now
            seen[slot] += 1


@kernel
def observe(known, row):
    """Add a row to the statistics, by Welford's method. NaN is a missing value."""
    for column in range(len(row)):
        value = row[column]
        if not math.isnan(value):
            known[COUNT, column] += 1
            before = value - known[MEAN, column]
            known[MEAN, column] += before / known[COUNT, column]
            known[SQUARES, column] += before * (value - known[MEAN, column])
            known[NEWEST, column] = value


@kernel
def write_inputs(layout, known, row, x):
    place = 0
    for column in layout.numbers:
        value = filled(known, row, column, layout.fill_with_newest)
        if layout.standardise:
            deviation = deviation_of(known, column)
            value = clipped((value - known[MEAN, column]) / deviation) if deviation > 0 else 0.0
        x[place] = value
        place += 1
    for column in layout.categories:
        # A mean of categories would mean nothing.
        value = filled(known, row, column, True) if layout.fill_with_newest else row[column]
        for category in range(CATEGORIES):
            x[place] = 1.0 if value == category else 0.0
            place += 1
    for k in range(len(layout.cycles)):
        value = filled(known, row, layout.cycles[k], layout.fill_with_newest)
        angle = 2 * math.pi * (value % layout.periods[k]) / layout.periods[k]
        x[place], x[place + 1] = math.cos(angle), math.sin(angle)
        place += 2


@kernel
def write_scales(layout, known, standardise, now):
    """Mean, deviation and newest value of every target; NaN where there are too few values to standardise by."""
    for k in range(len(layout.targets)):
        column = layout.targets[k]
        deviation = deviation_of(known, column)
        now[k, 0], now[k, 1], now[k, 2] = known[MEAN, column], deviation, known[NEWEST, column]
        if not standardise:
            now[k, 0], now[k, 1] = 0.0, 1.0
        elif known[COUNT, column] < ENOUGH or deviation == 0:
            now[k] = math.nan


@kernel
def write_before(layout, last, x):
    """The newest targets of the rows before, as the last inputs; 0 where there are none."""
    size = CATEGORIES if layout.classes else 1
    place = len(x) - size * len(layout.targets)
    for k in range(len(layout.targets)):
        if layout.classes:
            for category in range(CATEGORIES):
                x[place + category] = 1.0 if last[k] == category else 0.0
        else:
            x[place] = 0.0 if math.isnan(last[k]) else last[k]
        place += size


@kernel
def filled(known, row, column, with_newest):
    """A value, or what stands for it if it is missing."""
    if not math.isnan(row[column]):
        return row[column]
    return known[NEWEST, column] if with_newest and known[COUNT, column] > 0 else known[MEAN, column]


@kernel
def deviation_of(known, column):
    return math.sqrt(max(known[SQUARES, column], 0.0) / max(known[COUNT, column], 1.0))


@kernel
def clipped(value):
    """NaN stays NaN."""
    if value > CLIP:
        return CLIP
    return -CLIP if value < -CLIP else value
