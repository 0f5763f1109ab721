"""Running statistics of columns, and samples standardised by them: one loop over rows, for one series or many.

Everything is computed row by row and number by number, so that the result does not depend
on how many rows are given at a time.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.streams.position import damaged_position_error
from norewind.streams.stream import StreamError
from norewind.streams.table.category_inputs import write_category
from norewind.streams.table.column_statistics import (
    COUNT,
    FIRST,
    LATEST,
    MEAN,
    MIN_VALUES,
    SCALES,
    STATISTICS,
    deviation_of,
    filled,
    observe,
    write_scale_inputs,
)
from norewind.streams.table.columns import CATEGORIES, DAY, MAX_NUMBER

MAX_DEVIATIONS = 100.0
MAX_STEP = 10**6
# Seconds after which the time of day and the day of the week repeat.
CYCLES = {"hour": DAY, "weekday": 7 * DAY}

# How to use rows: learn from them in order, try each as the next one, or imagine future rows.
LEARN, PREVIEW, EXTRAPOLATE = range(3)


class TableLayout(NamedTuple):
    """How the columns in use become inputs and targets.

    The inputs are, in this order: the numbers; the categories, each as a group (see `write_category`); the cycles of
    times, each as cosine and sine; and with `before`, the latest targets of the previous rows.

    Attributes:
        columns: the number of columns: those in use, followed by the time since the previous row for each of `times`.
        steps: how many rows before a target arrives it is to be forecast, in increasing order; (0,) for targets of the
            same row.
        numbers: the columns that are inputs as numbers.
        targets: the columns that are targets.
        categories: the columns that are inputs as categories.
        cycles: the columns with times that are inputs as cycles.
        periods: the length of each cycle in seconds.
        times: the columns that hold times.
        fill_with_latest: whether a missing input is replaced by the latest value of its column, not by the mean.
        standardise: whether columns are standardised.
        classes: whether the targets are classes, which are not standardised.
        before: whether the latest targets of the previous rows are inputs too.
        planned: the columns that are known in advance.
        category_inputs: the number of inputs of each of `categories`.
        with_scales: whether the last inputs say by what the targets among the inputs are standardised: see `SCALES`.
    """

    columns: int
    steps: np.ndarray
    numbers: np.ndarray
    targets: np.ndarray
    categories: np.ndarray
    cycles: np.ndarray
    periods: np.ndarray
    times: np.ndarray
    fill_with_latest: bool
    standardise: bool
    classes: bool
    before: bool
    planned: np.ndarray = np.zeros(0, np.int64)
    category_inputs: np.ndarray = np.zeros(0, np.int64)
    with_scales: bool = False

    @property
    def width(self) -> int:
        """The number of inputs in a row."""
        of_targets = len(self.targets) * ((CATEGORIES if self.classes else 1) * self.before + SCALES * self.with_scales)
        return len(self.numbers) + int(self.category_inputs.sum()) + 2 * len(self.cycles) + of_targets


class SeriesStatistics(NamedTuple):
    """The statistics of one or more series of rows. Each series has a slot: an index along the leading axes.

    Attributes:
        statistics: of every column, as in `column_statistics`, of shape (slots, STATISTICS, columns).
        waiting: mean, deviation and latest value of every target after each of the latest rows, of shape
            (slots, depth, targets, 3): row t is at t modulo depth. They scale targets that arrive later.
        seen: the number of rows.
    """

    statistics: np.ndarray
    waiting: np.ndarray
    seen: np.ndarray


def steps_of(horizon: int, steps: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return all steps up to a horizon, or only the given ones.

    Args:
        horizon: how many rows ahead to forecast; 0 for targets of the same row.
        steps: the steps, in increasing order; None for all.

    Raises:
        StreamError: the horizon or the steps are invalid.

    >>> steps_of(3), steps_of(0), steps_of(1, [1, 24])
    ((1, 2, 3), (0,), (1, 24))
    """
    if steps is None:
        if not 0 <= horizon <= MAX_STEP:
            raise StreamError(f"the horizon must be 0 to {MAX_STEP:,} rows, not {horizon}.")
        return tuple(range(1, horizon + 1)) or (0,)
    if not steps or steps[0] < (len(steps) > 1) or max(steps) > MAX_STEP:
        raise StreamError(f"the steps must be 1 to {MAX_STEP:,} rows, or 0 alone, not {list(steps)}.")
    if list(steps) != sorted(set(steps)):
        raise StreamError(f"the steps must be in increasing order, each once, not {list(steps)}.")
    return tuple(map(int, steps))


def init_series(layout: TableLayout, slots: int = 1) -> SeriesStatistics:
    """Return the statistics of series without any rows.

    Args:
        layout: how columns become inputs and targets.
        slots: the number of series.
    """
    statistics = np.zeros((slots, STATISTICS, layout.columns))
    statistics[:, LATEST] = np.nan
    depth, raw = max(1, int(layout.steps[-1])), layout.classes or not layout.standardise
    # Targets of the same row need no earlier scale if they are not standardised.
    scale = [0.0, 1.0, np.nan] if raw and layout.steps[-1] == 0 else [np.nan] * 3
    waiting = np.full((slots, depth, len(layout.targets), 3), scale)
    return SeriesStatistics(statistics, waiting, np.zeros(slots, np.int64))


def saved_statistics(series: SeriesStatistics) -> list[list[Any]]:
    """Return, of every column of one series, the count, mean, variance, latest value, reach and first values."""
    saved = []
    for column in series.statistics[0].T.tolist():
        count = int(column[COUNT])
        known = [count, *(None if math.isnan(value) else value for value in column[MEAN:FIRST])]
        saved.append([*known, column[FIRST : FIRST + count] if count < MIN_VALUES else []])
    return saved


def latest_scales(series: SeriesStatistics, rows: int) -> np.ndarray:
    """Return mean, deviation and latest value of every target after each of the last rows of one series, oldest first.

    Args:
        series: the statistics.
        rows: the number of rows.
    """
    seen, depth = int(series.seen[0]), series.waiting.shape[1]
    return series.waiting[0, np.arange(max(0, seen - min(rows, depth)), seen) % depth]


def restored_series(layout: TableLayout, statistics: list[list[Any]], waiting: Any) -> SeriesStatistics:
    """Return the series of a saved position.

    Args:
        layout: how columns become inputs and targets.
        statistics: the result of `saved_statistics`.
        waiting: the result of `latest_scales`.

    Raises:
        StreamError: the arguments do not fit the columns, or have impossible values.
    """
    series = init_series(layout)
    nothing = saved_statistics(series)[0]
    # A column has a latest value if it has any, and its first values until there are enough.
    fits = len(statistics) == layout.columns and all(
        len(column[FIRST]) == (column[COUNT] if column[COUNT] < MIN_VALUES else 0)
        and (column[LATEST] is not None if column[COUNT] else column == nothing)
        for column in statistics
    )
    if not fits:
        raise damaged_position_error("its statistics do not fit its columns")
    depth, targets = series.waiting.shape[1:3]
    fits = isinstance(waiting, np.ndarray) and waiting.dtype == np.float64 and waiting.shape[1:] == (targets, 3)
    if not fits or len(waiting) > depth:
        raise damaged_position_error(
            f"the waiting scales are not float64 of at most {depth} rows of shape ({targets}, 3)"
        )
    mean, deviation, latest = np.moveaxis(waiting, -1, 0)
    if layout.standardise and not layout.classes:
        known = (np.abs(mean) <= MAX_NUMBER) & (deviation > 0) & (deviation < np.inf) & (np.abs(latest) <= MAX_NUMBER)
        fits = known | np.isnan(waiting).all(axis=-1)
    else:
        fits = (mean == 0) & (deviation == 1) & ((np.abs(latest) <= MAX_NUMBER) | np.isnan(latest))
    if not fits.all():
        raise damaged_position_error("the scales for future targets are not finite, or do not fit its settings")
    for column, (*known, first) in enumerate(statistics):
        series.statistics[0, : FIRST + len(first), column] = [*known, *first]
    series.waiting[0, : len(waiting)] = waiting
    series.seen[0] = len(waiting)
    return series


def scale_rows(
    layout: TableLayout,
    series: SeriesStatistics,
    rows: np.ndarray,
    slots: np.ndarray | None = None,
    mode: int = LEARN,
    plans: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Convert rows to samples.

    Args:
        layout: how columns become inputs and targets.
        series: the statistics so far, which are updated in place if the mode is `LEARN`.
        rows: the numbers of the columns as float64 of shape (rows, columns); NaN is missing. The times since the
            previous row are filled in.
        slots: the series that each row belongs to; by default, all belong to the first.
        mode: `LEARN` to add the rows to the statistics, `PREVIEW` to treat each row as an alternative next one, or
            `EXTRAPOLATE` to scale the rows without changing the statistics.
        plans: the planned values of each row and of later rows (rows, rows ahead, planned columns). They are replaced
            by inputs; a missing value becomes the latest one of its column.

    Returns:
        The first six fields of `Samples`.
    """
    count = len(rows)
    shape = count, len(layout.steps) * len(layout.targets)
    xs = np.empty((count, layout.width), np.float32)
    targets = np.empty(shape, np.float32)
    scales = np.empty((*shape, 2))
    last = np.empty(shape, np.float32)
    scales_after = np.empty((*shape, 2))
    values = np.empty(shape)
    out = xs, targets, scales, last, scales_after, values
    slots = np.zeros(count, np.int64) if slots is None else slots
    plans = np.empty((count, 0, 0)) if plans is None else plans
    _scale_rows(
        tuple(layout), tuple(series), slots, rows, plans, mode, out
    )  # Numba takes twice as long for named tuples
    return out


@kernel
def _scale_rows(layout, series, slots, rows, plans, mode, out):
    """Write the inputs, targets, scales, last values, scales after each row and raw targets of rows; see `Samples`.

    Args:
        layout: the fields of a `TableLayout`.
        series: the fields of a `SeriesStatistics`, the statistics so far, updated in place if the mode is `LEARN`.
        slots: the series that each row belongs to.
        rows: the numbers of the columns, of shape (rows, columns); NaN is missing.
        plans: the plans at each row, changed in place.
        mode: `LEARN`, `PREVIEW` or `EXTRAPOLATE`, as in `scale_rows`.
        out: the six arrays to write to.
    """
    layout, (statistics, waiting, seen) = TableLayout(*layout), series
    xs, targets, scales, last, after, values = out
    depth, width = waiting.shape[1], len(layout.targets)
    standardise = layout.standardise and not layout.classes
    row, tried, now = np.empty(layout.columns), np.empty((STATISTICS, layout.columns)), np.empty((width, 3))
    for t in range(len(rows)):
        slot = slots[t]
        known = statistics[slot]
        if mode == PREVIEW:
            tried[:] = known
            known = tried
        row[:] = rows[t]
        if mode != EXTRAPOLATE:
            for place in range(len(layout.times)):
                time = layout.times[place]
                row[layout.columns - len(layout.times) + place] = row[time] - known[LATEST, time]
            observe(known, row)
        write_inputs(layout, known, row, xs[t])
        for ahead in range(plans.shape[1]):
            row[layout.planned] = plans[t, ahead]
            for k in range(len(layout.planned)):
                plans[t, ahead, k] = input_of(layout, known, row, layout.planned[k])
        if plans.shape[1] > 0:
            row[:] = rows[t]
        write_scales(layout, known, standardise, now)
        here = seen[slot] % depth
        for s in range(len(layout.steps)):
            # For a target of the same row, there is one place, with the statistics after the previous row.
            then = here - layout.steps[s]
            scale = waiting[slot, then if then >= 0 else then + depth]
            for k in range(width):
                place = s * width + k
                sent, mean, deviation, latest = row[layout.targets[k]], scale[k, 0], scale[k, 1], scale[k, 2]
                if standardise:
                    targets[t, place] = clipped((sent - mean) / deviation)
                    last[t, place] = clipped((latest - mean) / deviation)
                else:
                    targets[t, place] = math.nan if math.isnan(mean) else sent
                    last[t, place] = latest
                scales[t, place, 0], scales[t, place, 1] = mean, deviation
                after[t, place, 0], after[t, place, 1] = now[k, 0], now[k, 1]
                values[t, place] = sent
        if layout.before:
            write_before(layout, last[t], xs[t])
        if mode == LEARN:
            waiting[slot, here] = now
            seen[slot] += 1


@kernel
def write_inputs(layout, known, row, x):
    """Write the inputs of a row, except the latest targets of the previous rows.

    Args:
        layout: how columns become inputs and targets.
        known: the statistics of the series, of shape (STATISTICS, columns).
        row: the numbers of the columns; NaN is missing.
        x: the inputs to write.
    """
    place = 0
    for column in layout.numbers:
        x[place] = input_of(layout, known, row, column)
        place += 1
    for k in range(len(layout.categories)):
        # Categories have no mean.
        column, size = layout.categories[k], layout.category_inputs[k]
        write_category(filled(known, row, column, True) if layout.fill_with_latest else row[column], size, x, place)
        place += size
    for k in range(len(layout.cycles)):
        value = filled(known, row, layout.cycles[k], layout.fill_with_latest)
        angle = 2 * math.pi * (value % layout.periods[k]) / layout.periods[k]
        x[place], x[place + 1] = math.cos(angle), math.sin(angle)
        place += 2
    if layout.with_scales:
        write_scale_inputs(known, layout.targets, layout.standardise, x, place)


@kernel
def input_of(layout, known, row, column):
    """Return a number as an input.

    Args:
        layout: how columns become inputs and targets.
        known: the statistics of the series, of shape (STATISTICS, columns).
        row: the numbers of the columns; NaN is missing.
        column: the column.
    """
    value = filled(known, row, column, layout.fill_with_latest)
    if not layout.standardise:
        return value
    deviation = deviation_of(known, column)
    return clipped((value - known[MEAN, column]) / deviation) if deviation > 0 else 0.0


@kernel
def write_scales(layout, known, standardise, now):
    """Write the mean, deviation and latest value of every target; NaN where there are too few values to standardise by.

    Args:
        layout: how columns become inputs and targets.
        known: the statistics of the series, of shape (STATISTICS, columns).
        standardise: whether targets are standardised. Otherwise the mean is 0 and the deviation is 1.
        now: the array to write to, of shape (targets, 3).
    """
    for k in range(len(layout.targets)):
        column = layout.targets[k]
        deviation = deviation_of(known, column)
        now[k, 0], now[k, 1], now[k, 2] = known[MEAN, column], deviation, known[LATEST, column]
        if not standardise:
            now[k, 0], now[k, 1] = 0.0, 1.0
        elif known[COUNT, column] < MIN_VALUES or deviation == 0:
            now[k] = math.nan


@kernel
def write_before(layout, last, x):
    """Write the latest targets of the previous rows as the last inputs; 0 where there are none.

    Args:
        layout: how columns become inputs and targets.
        last: the latest targets.
        x: the inputs of the row.
    """
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
def clipped(value):
    """Clip a value to ±`MAX_DEVIATIONS`. NaN stays NaN."""
    if value > MAX_DEVIATIONS:
        return MAX_DEVIATIONS
    return -MAX_DEVIATIONS if value < -MAX_DEVIATIONS else value
