"""The calendar of future rows, if times are evenly spaced: hours, weekdays, months and holidays."""

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

import numpy as np

from norewind.engines.kernels import kernel
from norewind.streams.stream import BadRow, StreamError
from norewind.streams.table.columns import DAY, KEPT_TIMES, as_iso, time_of
from norewind.wording import missing_package

# The entries of a time: the hour of the day (0 to 24), the weekday (0 for Monday), the share of the year that has
# passed, the month (0 for January), and whether the day is a holiday.
Entry = Literal["hour", "weekday", "year", "month", "holiday"]
ENTRIES: tuple[Entry, ...] = ("hour", "weekday", "year", "month", "holiday")
# If rows follow each other faster (in seconds), a week has too many of them to learn from.
SHORTEST_GAP = 60.0
# The shortest and the longest time between rows that are a number of months apart, up to half a year.
SHORTEST_MONTH, LONGEST_MONTHS = 28 * DAY, 185 * DAY
# Gaps between times that differ by at most this share count as equal.
GAP_TOLERANCE = 1e-4


def wall_clock(value: Any) -> float:
    """Return a local time, without its time zone, in seconds since 1970; NaN if the value is not a time.

    >>> wall_clock("2024-05-01T10:00:00+02:00") == wall_clock("2024-05-01 10:00")
    True
    """
    if isinstance(value, str):
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(as_iso(value.strip()))
            if moment.tzinfo is not None:
                return moment.replace(tzinfo=UTC).timestamp()
    try:
        return time_of(value)
    except BadRow:
        return math.nan


def entries_for(times: Sequence[float]) -> list[Entry]:
    """Return the entries that vary from row to row; none unless most of the times are evenly spaced.

    Args:
        times: the times of the first rows.

    >>> entries_for([wall_clock(f"2024-05-01 {hour:02}:00") for hour in range(24)])
    ['hour', 'weekday', 'year']
    >>> entries_for([wall_clock(f"2024-{month:02}-01") for month in range(1, 13)])
    ['month']
    """
    moments = np.array(times, np.float64)
    history, no_steps, nothing = np.full(KEPT_TIMES, np.nan), np.zeros(0, np.int64), np.zeros(0, np.int64)
    even = np.zeros(len(moments), np.bool_)
    write_calendar(history, moments, no_steps, np.zeros(0, np.int64), nothing, np.zeros((len(moments), 1, 0)), even)
    gaps = np.diff(moments[np.isfinite(moments)])
    if not len(gaps) or even.sum() <= len(moments) / 2:
        return []
    gap = float(np.median(gaps))
    if SHORTEST_GAP <= gap < DAY:
        return ["hour", "weekday", "year"]
    if DAY <= gap < 7 * DAY:
        return ["weekday", "year"]
    if 7 * DAY <= gap < SHORTEST_MONTH:
        return ["year"]
    return ["month"] if SHORTEST_MONTH <= gap <= LONGEST_MONTHS else []


def check_country(country: str) -> None:
    """Check that the holidays of a country are known.

    Args:
        country: its code, such as DE, or the code of one of its regions, such as DE-BY.

    Raises:
        StreamError: there is no such country, or the package that knows its holidays is not installed.
    """
    holidays_of_year(country, 2024)


@lru_cache(maxsize=1000)
def holidays_of_year(country: str, year: int) -> tuple[int, ...]:
    """Return the holidays of a year as days since 1970.

    Args:
        country: its code; see `check_country`.
        year: the year.
    """
    try:
        holidays: Any = import_module("holidays")  # an optional package
    except ImportError:
        raise StreamError(f"holidays={country!r}: {missing_package('holidays', 'holidays')}.") from None
    code, _, part = country.partition("-")
    try:
        days = holidays.country_holidays(code, subdiv=part or None, years=year)
    except (NotImplementedError, AttributeError, KeyError):
        remedy = "name a country such as DE, or one of its regions, such as DE-BY"
        raise StreamError(f"the package holidays does not know {country!r}: {remedy}.") from None
    return tuple(sorted(day.toordinal() - EPOCH for day in days))


EPOCH = datetime(1970, 1, 1).toordinal()


def holidays_between(country: str, first: float, last: float) -> np.ndarray:
    """Return the holidays of all years between two times as days since 1970, in order.

    Args:
        country: its code; see `check_country`.
        first: the first time in seconds since 1970.
        last: the last time.
    """
    years = range(_year_of(first), _year_of(last) + 1)
    return np.array([day for year in years for day in holidays_of_year(country, year)], np.int64)


def _year_of(seconds: float) -> int:
    return int(civil_of(int(seconds // DAY))[0])


@kernel
def write_calendar(history, times, steps, entries, holidays, out, even):
    """Write the entries of each row, and those of the rows that follow it after each step.

    The times of later rows are known if the latest times, at least three and at most `KEPT_TIMES`, are the same number
    of seconds or of months apart. All entries of an unknown time are NaN.

    Args:
        history: the latest times before these rows, NaN where there are none; replaced by the latest of these rows.
        times: the times of the rows; NaN means missing.
        steps: the steps, in rows ahead.
        entries: which of `ENTRIES` to write.
        holidays: the holidays as days since 1970, in order.
        out: where to write the entries (rows, 1 + steps, entries).
        even: where to write whether the times up to each row are evenly spaced.
    """
    for t in range(len(times)):
        history[:-1] = history[1:].copy()
        history[-1] = times[t]
        gap, months, day_of_month = spacing(history)
        even[t] = gap > 0 or months > 0
        write_entries(times[t], entries, holidays, out[t, 0])
        for s in range(len(steps)):
            later = np.nan
            if months > 0:
                later = months_after(times[t], months * steps[s], day_of_month)
            elif gap > 0:
                later = times[t] + gap * steps[s]
            write_entries(later, entries, holidays, out[t, 1 + s])


@kernel
def spacing(history):
    """Return the seconds between the latest times, or the months and the day of the month; 0 if not evenly spaced.

    Args:
        history: the latest times; only those after the last missing one count.
    """
    first = len(history)
    while first > 0 and history[first - 1] == history[first - 1]:
        first -= 1
    if len(history) - first < 3:
        return 0.0, 0, 0
    shortest, longest, latest, are_last = np.inf, -np.inf, 0, True
    for i in range(first, len(history)):
        day = int(np.floor(history[i] / DAY))
        latest = max(latest, civil_of(day)[2])
        are_last &= civil_of(day + 1)[2] == 1
        if i > first:
            gap = history[i] - history[i - 1]
            shortest, longest = min(shortest, gap), max(longest, gap)
    if shortest <= 0:
        return 0.0, 0, 0
    if longest - shortest <= GAP_TOLERANCE * shortest:
        return (history[-1] - history[first]) / (len(history) - 1 - first), 0, 0
    months, day_of_month = months_between(history[-2], history[-1]), 31 if are_last else latest
    for i in range(first + 1, len(history)):
        if months < 1 or months_after(history[i - 1], months, day_of_month) != history[i]:
            return 0.0, 0, 0
    return 0.0, months, day_of_month


@kernel
def write_entries(time, entries, holidays, out):
    """Write the entries of a time; NaN if it is not known.

    Args:
        time: the time in seconds since 1970.
        entries: which of `ENTRIES` to write.
        holidays: the holidays as days since 1970, in order.
        out: where to write them.
    """
    if not np.isfinite(time):
        out[:] = np.nan
        return
    day = int(np.floor(time / DAY))
    year, month, _ = civil_of(day)
    for i in range(len(entries)):
        if entries[i] == 0:
            out[i] = (time - day * DAY) / 3600
        elif entries[i] == 1:
            out[i] = (day + 3) % 7
        elif entries[i] == 2:
            start = days_of(year, 1, 1)
            out[i] = (time / DAY - start) / (days_of(year + 1, 1, 1) - start)
        elif entries[i] == 3:
            out[i] = month - 1
        else:
            place = np.searchsorted(holidays, day)
            out[i] = 1.0 if place < len(holidays) and holidays[place] == day else 0.0


@kernel
def months_between(before, after):
    """Return the number of months from the month of a time to that of a later one."""
    year, month, _ = civil_of(int(np.floor(before / DAY)))
    later_year, later_month, _ = civil_of(int(np.floor(after / DAY)))
    return 12 * (later_year - year) + later_month - month


@kernel
def months_after(time, months, day_of_month):
    """Return the time some months later, at the same time of day.

    Args:
        time: the time in seconds since 1970.
        months: the number of months.
        day_of_month: the day of the month; the last day, if the month has fewer.
    """
    day = int(np.floor(time / DAY))
    year, month, _ = civil_of(day)
    later = 12 * year + month - 1 + months
    first, after = days_of(later // 12, later % 12 + 1, 1), days_of((later + 1) // 12, (later + 1) % 12 + 1, 1)
    return time + (min(first + day_of_month, after) - 1 - day) * DAY


@kernel
def civil_of(day):
    """Return the year, month and day of the month of a day since 1970, in the Gregorian calendar."""
    shifted = day + 719468  # days since 1 March 0000, so that a leap day is the last of its year
    era = shifted // 146097  # 400 years
    day_of_era = shifted - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    return year, month, day_of_year - (153 * shifted_month + 2) // 5 + 1


@kernel
def days_of(year, month, day_of_month):
    """Return a day of the Gregorian calendar as days since 1970."""
    year -= 1 if month <= 2 else 0
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day_of_month - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468
