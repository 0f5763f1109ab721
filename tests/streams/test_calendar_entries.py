"""The calendar of the rows to come: it is that of the standard library, and equals that of the rows once they come."""

import os
from datetime import date, datetime, timedelta

import numpy as np
import pytest

from norewind.streams import ReadOptions, RowStream, Source
from norewind.streams.table.calendar_entries import civil_of, days_of, entries_for, spacing, wall_clock
from norewind.streams.table.python_rows import PythonRows
from norewind.streams.table.row_outlook import calendar_outlook

STEPS = (1, 3, 24)


def times_of(first, rows, step):
    """Times that are a `timedelta` or a number of months apart."""
    start = datetime.fromisoformat(first)
    if isinstance(step, timedelta):
        return [(start + row * step).isoformat() for row in range(rows)]
    months = [12 * start.year + start.month - 1 + row * step for row in range(rows)]
    return [date(month // 12, month % 12 + 1, start.day).isoformat() for month in months]


def rows_of(times):
    return [{"time": time, "load": float(place % 7)} for place, time in enumerate(times)]


def test_days_are_those_of_the_standard_library():
    for day in range(-200_000, 200_000, 37):
        expected = date(1970, 1, 1) + timedelta(day)
        assert civil_of(day) == (expected.year, expected.month, expected.day)
        assert days_of(*civil_of(day)) == day


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (timedelta(seconds=1), []),
        (timedelta(minutes=30), ["hour", "weekday", "year"]),
        (timedelta(days=1), ["weekday", "year"]),
        (timedelta(days=7), ["year"]),
        (1, ["month"]),
        (3, ["month"]),
        (12, []),
    ],
)
def test_entries_are_those_that_vary(step, expected):
    assert entries_for(list(map(wall_clock, times_of("2023-12-01", 40, step)))) == expected


def test_uneven_times_have_no_calendar():
    working_days = [f"2024-01-{day:02}" for day in range(1, 31) if date(2024, 1, day).weekday() < 5]
    assert entries_for(list(map(wall_clock, working_days))) == []
    assert calendar_outlook([None, "", "soon"], None).width == 0


@pytest.mark.parametrize(
    "step", [timedelta(minutes=30), timedelta(hours=1), timedelta(days=1), timedelta(days=7), 1, 3]
)
@pytest.mark.parametrize("first", ["2023-12-01", "2024-02-28", "1969-12-01"])
def test_the_entries_of_rows_to_come_are_those_that_they_have_when_they_come(step, first):
    times = times_of(first, 90, step)
    outlook = calendar_outlook(times, None)
    blocks = outlook.calendar([], list(map(wall_clock, times)), np.array(STEPS)).reshape(90, 4, outlook.width)
    assert outlook.width
    assert np.isnan(blocks[:2, 1:]).all()
    for place, ahead in enumerate(STEPS, 1):
        np.testing.assert_allclose(blocks[2:-ahead, place], blocks[2 + ahead :, 0], atol=1e-4)
    moments = [datetime.fromisoformat(time) for time in times]
    if "weekday" in outlook.entries:
        place = outlook.entries.index("weekday")
        assert blocks[:, 0, place].tolist() == [moment.weekday() for moment in moments]
    if "hour" in outlook.entries:
        assert blocks[:, 0, 0].tolist() == [moment.hour + moment.minute / 60 for moment in moments]
    if "month" in outlook.entries:
        assert blocks[:, 0, 0].tolist() == [moment.month - 1 for moment in moments]


def test_a_gap_hides_the_rows_to_come_until_twelve_times_are_even_again():
    times = times_of("2024-01-01", 60, timedelta(hours=1))
    outlook = calendar_outlook(times, None)
    del times[30]
    blocks = outlook.calendar([], list(map(wall_clock, times)), np.array([1])).reshape(59, 2, -1)
    unknown = np.isnan(blocks[:, 1]).any(axis=1)
    assert np.flatnonzero(unknown).tolist() == [0, 1, *range(30, 41)]
    assert not np.isnan(blocks[:, 0]).any()


def test_the_last_days_of_months_are_a_month_apart():
    ends = ["2023-11-30", "2023-12-31", "2024-01-31", "2024-02-29"]
    assert spacing(np.array([np.nan] * 8 + list(map(wall_clock, ends)))) == (0.0, 1, 31)


def test_samples_do_not_depend_on_chunks_or_on_a_resumed_stream():
    rows, options = (
        rows_of(times_of("2024-01-01", 150, timedelta(hours=1))),
        {"steps": STEPS, "read_options": ReadOptions(calendar=True)},
    )
    stream = RowStream(PythonRows(rows), **options)
    whole, parts = stream.take(150).xs, []
    assert stream.inputs == ["load"]
    assert stream.width == 1 + 4 * 3 == whole.shape[1]
    stream = RowStream(PythonRows(rows), **options)
    for count in (1, 30, 5, 64):
        parts.append(stream.take(count).xs)
    stream = RowStream(PythonRows(rows[100:]), **options, position=stream.position())
    parts += [stream.peek(rows[100:101]).xs, *(stream.take_row(row).xs for row in rows[100:])]
    np.testing.assert_array_equal(parts[4], parts[5])
    np.testing.assert_array_equal(np.concatenate(parts[:4] + parts[5:]), whole)


def test_a_named_time_changes_nothing():
    rows, options = (
        rows_of(times_of("2024-01-01", 150, timedelta(hours=1))),
        {"steps": STEPS, "read_options": ReadOptions(calendar=True)},
    )
    unnamed = RowStream(PythonRows(rows), **options).take(150)
    named = RowStream(PythonRows(rows), inputs=["time", "load"], targets=["load"], **options).take(150)
    np.testing.assert_array_equal(named.xs, unnamed.xs)


def test_a_pipe_that_is_silent_gives_no_rows_with_a_calendar():
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", 0) as pipe:
        pipe.write(b"time,load\n" + b"".join(b"2024-01-01T%02d:00,%d\n" % (hour, hour % 5) for hour in range(24)))
        with RowStream(Source(reader), steps=STEPS, read_options=ReadOptions(calendar=True)) as stream:
            rows, none = stream.take(24, 1.0), stream.take(5, 0.01)
    assert none.xs.shape == (0, rows.xs.shape[1])
    assert rows.times[:2].tolist() == ["2024-01-01T00:00", "2024-01-01T01:00"]
    # An array too, so that both can be joined.
    assert len(none.times) == 0
