"""The loop that standardises rows equals a slow, obvious reference, and later rows have no influence."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_pipes import quick

from norewind.streams import RowStream, StreamError
from norewind.streams.table.column_statistics import (
    FIRST_REACH,
    LEFT_OUT,
    MEAN,
    MEMORY,
    MIN_DEVIATION,
    MIN_VALUES,
    REACH,
    REACH_GROWTH,
    REACH_MEMORY,
    VARIANCE,
)
from norewind.streams.table.columns import CATEGORIES
from norewind.streams.table.formats import ReadOptions
from norewind.streams.table.python_rows import PythonRows
from norewind.streams.table.scaling import (
    EXTRAPOLATE,
    LEARN,
    MAX_DEVIATIONS,
    PREVIEW,
    SeriesStatistics,
    TableLayout,
    init_series,
    latest_scales,
    restored_series,
    saved_statistics,
    scale_rows,
)

FIELDS = ("xs", "targets", "scales", "last", "scales_after", "values")


def layout_of(steps=(1,), **options):
    """Columns: two numbers, a category, a time, and the time since the row before."""
    parts = {
        "columns": 5,
        "steps": steps,
        "numbers": [0, 1, 4],
        "targets": [1, 0],
        "categories": [2],
        "cycles": [3],
        "periods": [86_400.0],
        "times": [3],
        "fill_with_latest": True,
        "standardise": True,
        "classes": False,
        "before": False,
    } | options
    parts["category_inputs"] = [16] * len(parts["categories"])
    return TableLayout(
        **{
            name: np.array(part, np.float64 if name == "periods" else np.int64)
            if isinstance(part, list | tuple)
            else part
            for name, part in parts.items()
        }
    )


class Column:
    """Return the values of a column so far."""

    def __init__(self, values=()):
        self.count, self.mean, self.variance, self.widest, self.latest, self.first = 0, 0.0, 0.0, 0.0, math.nan, []
        for value in values:
            self.add(value)

    def add(self, value):
        if math.isnan(value):
            return
        self.latest = value
        usual, reach = REACH * self.deviation, self.widest / REACH_GROWTH**LEFT_OUT
        distance = value - self.mean
        if self.count >= MIN_VALUES and self.deviation:
            if abs(distance) > max(usual, reach):
                self.widest = REACH_GROWTH * max(usual, self.widest)
                if reach < usual:
                    return
                distance = math.copysign(reach, distance)
            else:
                self.widest *= 1 - 1 / REACH_MEMORY
        self.count += 1
        weight = max(1 / self.count, 1 / MEMORY)
        self.mean += weight * distance
        self.variance = (1 - weight) * (self.variance + weight * distance * distance)
        self.first.append(value)
        if self.count == MIN_VALUES:
            middle = float(np.median(self.first))
            reach = FIRST_REACH * float(np.median(np.abs(np.array(self.first) - middle)))
            kept = [value if abs(value - middle) <= reach else middle for value in self.first]
            if reach and kept != self.first:
                again = Column(kept[:-1])
                again.first = []
                again.add(kept[-1])
                self.mean, self.variance = again.mean, again.variance

    @property
    def deviation(self):
        deviation = math.sqrt(self.variance)
        return deviation if deviation > MIN_DEVIATION * abs(self.mean) else 0.0


def clip(value):
    return value if math.isnan(value) else min(max(value, -MAX_DEVIATIONS), MAX_DEVIATIONS)


def standard(value, mean, deviation):
    return clip((value - mean) / deviation) if deviation == deviation else math.nan


def group_of(value, size):
    """The inputs of a category: its own one, or two that its number beyond them chooses, with signs."""
    group = [float(value == category) for category in range(size)]
    if value >= size:
        signs, pair = divmod(int(value) - size, size * (size - 1))
        second, first = divmod(pair, size)
        others = [place for place in range(size) if place != first]
        group[first] = math.sqrt(0.5) * (-1) ** signs
        group[others[second]] = math.sqrt(0.5) * (-1) ** (signs // 2)
    return group


def reference(layout, rows):
    """Convert the rows of one series to samples by remembering everything and looking it up."""
    columns = [Column() for _ in range(layout.columns)]
    raw = layout.classes or not layout.standardise
    unknown = (0.0, 1.0, math.nan) if raw and layout.steps[-1] == 0 else (math.nan,) * 3
    history, samples = [], []
    for row in rows.tolist():
        for place, time in enumerate(layout.times):
            row[layout.columns - len(layout.times) + place] = row[time] - columns[time].latest
        for column, value in zip(columns, row, strict=True):
            column.add(value)

        def known(place, row=row):
            column = columns[place]
            latest = column.latest if layout.fill_with_latest and column.count else column.mean
            return latest if math.isnan(row[place]) else row[place]

        x = []
        for place in layout.numbers:
            mean, deviation = columns[place].mean, columns[place].deviation
            spread = (known(place) - mean) / deviation if deviation else 0.0
            x.append(clip(spread) if layout.standardise else known(place))
        for place in layout.categories:
            value = known(place) if layout.fill_with_latest else row[place]
            x += group_of(value, CATEGORIES)
        for place, period in zip(layout.cycles, layout.periods, strict=True):
            angle = 2 * math.pi * (known(place) % period) / period
            x += [math.cos(angle), math.sin(angle)]
        now = []
        for place in layout.targets:
            column = columns[place]
            scale = (column.mean, column.deviation, column.latest)
            scale = scale if column.count >= MIN_VALUES and column.deviation else (math.nan,) * 3
            now.append((0.0, 1.0, column.latest) if raw else scale)
        targets, scales, last = [], [], []
        for step in layout.steps:
            delay = max(1, step)
            then = history[-delay] if len(history) >= delay else [unknown] * len(now)
            for place, (mean, deviation, latest) in zip(layout.targets, then, strict=True):
                sent = math.nan if math.isnan(mean) else row[place]
                targets.append(sent if raw else standard(row[place], mean, deviation))
                last.append(latest if raw else standard(latest, mean, deviation))
                scales.append((mean, deviation))
        if layout.before and layout.classes:
            x += [float(last[0] == category) for category in range(CATEGORIES)]
        elif layout.before:
            x += [0.0 if math.isnan(value) else value for value in last]
        history.append(now)
        several = len(layout.steps)
        sent = [row[place] for place in layout.targets]
        samples.append((x, targets, scales, last, [scale[:2] for scale in now] * several, sent * several))
    kinds = (np.float32, np.float32, np.float64, np.float32, np.float64, np.float64)
    return [np.array(part, kind) for part, kind in zip(zip(*samples, strict=True), kinds, strict=True)]


def random_rows(seed, count=60):
    random = np.random.default_rng(seed)
    rows = np.full((count, 5), np.nan)
    rows[:, :2] = random.normal(5, 3, (count, 2))
    rows[:, 2] = random.integers(0, CATEGORIES + 2, count)
    rows[:, 3] = 1.7e9 + random.integers(1, 9_000, count).cumsum()
    rows[random.random(rows.shape) < 0.15] = np.nan
    rows[:, 4] = np.nan
    # Shocks in both directions, and one among the first values.
    rows[40, 0], rows[45, :2], rows[4, 1] = 1e30, -1e30, -1e6
    return rows


OPTIONS = [
    {},
    {"steps": (0,)},
    {"steps": (0,), "standardise": False},
    {"steps": (0,), "before": True},
    {"steps": (0,), "before": True, "standardise": False},
    {"steps": (0,), "before": True, "classes": True, "targets": [2], "categories": []},
    {"steps": (1, 2, 3), "fill_with_latest": False},
    {"steps": (2, 7)},
    {"steps": (5,), "standardise": False},
    {"steps": (3,), "classes": True, "targets": [2]},
    {"steps": (100,)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_loop_is_the_reference(options):
    layout, rows = layout_of(**options), random_rows(1)
    for name, found, expected in zip(
        FIELDS, scale_rows(layout, init_series(layout), rows), reference(layout, rows), strict=True
    ):
        np.testing.assert_array_equal(found, expected, err_msg=name)
        assert found.dtype == expected.dtype


@quick
@given(st.sampled_from(OPTIONS), st.lists(st.integers(0, 20), max_size=8), st.integers(0, 10**6))
def test_cutting_anywhere_changes_nothing(options, cuts, seed):
    layout, rows = layout_of(**options), random_rows(seed)
    series = init_series(layout)
    parts = [scale_rows(layout, series, part) for part in np.split(rows, np.cumsum(cuts).clip(0, len(rows)))]
    whole = init_series(layout)
    for found, expected in zip(zip(*parts, strict=True), scale_rows(layout, whole, rows), strict=True):
        np.testing.assert_array_equal(np.concatenate(found), expected)
    for part, other in zip(series, whole, strict=True):
        np.testing.assert_array_equal(part, other)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_saved_statistics_continue_anywhere(options):
    layout, rows = layout_of(**options), random_rows(2)
    whole = scale_rows(layout, init_series(layout), rows)
    for cut in (0, 1, 9, 13, 43, 46):
        series = init_series(layout)
        scale_rows(layout, series, rows[:cut])
        waiting = latest_scales(series, max(1, layout.steps[-1]))
        again = restored_series(layout, saved_statistics(series), waiting)
        for found, expected in zip(scale_rows(layout, again, rows[cut:]), whole, strict=True):
            np.testing.assert_array_equal(found, expected[cut:])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_many_series_together_equal_each_alone(options):
    layout, rows = layout_of(**options), random_rows(2, 200)
    slots = np.random.default_rng(3).integers(0, 4, 200)
    together = scale_rows(layout, init_series(layout, 5), rows, slots)
    for slot in range(4):
        alone = scale_rows(layout, init_series(layout), rows[slots == slot])
        for found, expected in zip(together, alone, strict=True):
            np.testing.assert_array_equal(found[slots == slot], expected)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_nothing_comes_from_the_future(options):
    """A forecast made at row t - step is scaled by the statistics of that row; later values change nothing."""
    layout, rows, change = layout_of(**options), random_rows(4), 45
    rows[40, 0], rows[change, :2] = 5, 1
    other = rows.copy()
    other[change:] = random_rows(5)[change:]
    other[change, :2] = 9
    before, after = (
        dict(zip(FIELDS, scale_rows(layout, init_series(layout), some), strict=True)) for some in (rows, other)
    )
    for name in FIELDS:
        np.testing.assert_array_equal(before[name][:change], after[name][:change])
    width = len(layout.targets)
    for place, step in enumerate(np.repeat(layout.steps, width)):
        end = change + max(1, step)
        for name in ("scales", "last"):
            np.testing.assert_array_equal(before[name][:end, place], after[name][:end, place])
        if layout.standardise and not layout.classes and end < len(rows):
            assert (before["scales"][end, place] != after["scales"][end, place]).all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_previewed_row_equals_the_row_once_it_arrives(options):
    layout, rows = layout_of(**options), random_rows(6)
    series = init_series(layout)
    scale_rows(layout, series, rows[:30])
    before = SeriesStatistics(*(part.copy() for part in series))
    tried = scale_rows(layout, series, rows[30:40], mode=PREVIEW)
    for part, same in zip(series, before, strict=True):
        np.testing.assert_array_equal(part, same)
    for place in range(10):
        copy = SeriesStatistics(*(part.copy() for part in series))
        for found, expected in zip(tried, scale_rows(layout, copy, rows[30 + place][None]), strict=True):
            np.testing.assert_array_equal(found[place], expected[0])


def test_an_imagined_row_changes_no_statistics():
    layout, rows = layout_of(), random_rows(7)
    series = init_series(layout)
    scale_rows(layout, series, rows, mode=LEARN)
    row = np.array([[1.0, 2.0, 3.0, 1.7e9, 60.0]])
    xs = scale_rows(layout, series, row, mode=EXTRAPOLATE)[0][0]
    mean, variance = series.statistics[0, [MEAN, VARIANCE]][:, [0, 1, 4]]
    np.testing.assert_allclose(xs[:3], (row[0, [0, 1, 4]] - mean) / np.sqrt(variance), rtol=1e-6)


def numbered(count):
    return [{"a": float(i * i % 17), "b": float(i % 5) - 0.5} for i in range(count)]


def test_peeking_equals_taking_and_changes_nothing():
    rows = numbered(40)
    stream = RowStream(PythonRows(rows[:30]), horizon=3)
    stream.take(30)
    moment = stream.moment()
    peeked = [stream.peek([row]) for row in rows[30:]]
    together = stream.peek(rows[30:])
    assert together.lines is None
    for place, alone in enumerate(peeked):
        np.testing.assert_array_equal(together.targets[place], alone.targets[0])
    for found, expected in zip(stream.take_row(rows[30])[:6], peeked[0][:6], strict=True):
        np.testing.assert_array_equal(found, expected)
    # The snapshot does not change.
    for found, expected in zip(stream.peek([rows[30]], moment)[:6], peeked[0][:6], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert stream.latest_targets().tolist() == [rows[30]["a"], rows[30]["b"]]


def test_rows_from_elsewhere_are_the_rows_of_a_table():
    rows = [{"a": float(i * i % 17), "b": None if i % 7 == 3 else float(i % 5), "c": "xyz"[i % 3]} for i in range(60)]
    options = {"inputs": ["a", "b", "c"], "targets": ["a"], "horizon": 2}
    whole = RowStream(PythonRows(rows), **options)
    expected = whole.take(60)
    stream = RowStream(PythonRows(rows[:20]), **options)
    stream.take(20)
    for i, row in enumerate(rows[20:], 20):
        for found, value in zip(stream.take_row(row)[:6], expected[:6], strict=True):
            np.testing.assert_array_equal(found[0], value[i])
    np.testing.assert_equal(stream.position(), whole.position())


@pytest.mark.parametrize("bad", ["stop", "skip"])
def test_a_bad_row_from_elsewhere_changes_nothing_but_the_counts(bad):
    stream = RowStream(PythonRows(numbered(20)), read_options=ReadOptions("jsonl", bad=bad))
    stream.take(20)
    before = stream.position()
    if bad == "stop":
        with pytest.raises(StreamError, match=r"row 21 is bad: column 'b': 'x' is not a number"):
            stream.take_row({"a": 1.0, "b": "x"})
        np.testing.assert_equal(stream.position(), before)
    else:
        assert len(stream.take_row({"a": 1.0, "b": "x"}).xs) == 0
        stream.take_row({"a": 1.0, "b": 2.0})
        assert stream.counts == {"bad rows": 1}
        assert stream.position()["lines"] == before["lines"] + 2


def test_extrapolated_times_continue():
    rows = [{"t": 1.7e9 + 60.0 * i, "y": float(i % 7)} for i in range(30)]
    stream = RowStream(PythonRows(rows), inputs=["t", "y"], targets=["y"], standardise=False)
    stream.take(30)
    assert stream.kinds["t"] == "time"
    xs = stream.moment().future_inputs(stream.layout, stream.outlook, np.array([4.5]), 2)
    coming = [{"t": 1.7e9 + 60.0 * 30, "y": 0.0}, {"t": 1.7e9 + 60.0 * 31, "y": 4.5}]
    later = RowStream(PythonRows(rows + coming), inputs=["t", "y"], targets=["y"], standardise=False)
    np.testing.assert_array_equal(xs, later.take(32).xs[-1])
