"""The times of future rows, if those of the newest rows are regular."""

import calendar
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from norewind.streams.columns import iso

REMEMBERED = 12
"""The newest times that are kept."""
ENOUGH = 3
LONGEST = 40


def as_time(value: Any) -> str | int | float | None:
    """A time as it was sent; None if the value cannot be a time."""
    if isinstance(value, str):
        return value.strip() if len(value) <= LONGEST else None
    return value if type(value) in (int, float) and abs(value) < 1e20 else None


def times_ahead(newest: Sequence[Any], steps: int) -> list[Any] | None:
    """The times of the next rows, written as the newest ones; None if these are not regular.

    Steps may be of seconds or of months.

    >>> times_ahead(["2024/01/31 22:00", "2024/01/31 23:00", "2024/02/01 00:00"], 2)
    ['2024/02/01 01:00', '2024/02/01 02:00']
    >>> times_ahead(["2023-10-31", "2023-11-30", "2023-12-31"], 2)
    ['2024-01-31', '2024-02-29']
    >>> times_ahead([1700000000, 1700000060, 1700000120], 1)
    [1700000180]
    >>> times_ahead(["2023-10-31", "2023-11-30", "2023-12-01"], 2)
    """
    if len(newest) < ENOUGH or None in newest:
        return None
    try:
        if not all(isinstance(time, str) for time in newest) or newest[-1].replace(".", "", 1).isdigit():
            return _numbers([float(time) for time in newest], steps, whole="." not in str(newest[-1]))
        moments = [datetime.fromisoformat(iso(time)) for time in newest]
        ahead = _moments(moments, steps)
        return None if ahead is None else [_written(moment, newest[-1]) for moment in ahead]
    except (ValueError, OverflowError, TypeError):
        return None  # not times, with and without a zone, or beyond the year 9999


def _numbers(times: list[float], steps: int, *, whole: bool) -> list[Any] | None:
    gaps = [after - before for before, after in pairwise(times)]
    if gaps[0] <= 0 or max(gaps) - min(gaps) > 1e-4 * gaps[0]:
        return None
    gap = (times[-1] - times[0]) / len(gaps)
    ahead = [times[-1] + step * gap for step in range(1, steps + 1)]
    return [round(time) for time in ahead] if whole else [round(time, 6) for time in ahead]


def _moments(moments: list[datetime], steps: int) -> list[datetime] | None:
    gaps = {after - before for before, after in pairwise(moments)}
    last, some = moments[-1], range(1, steps + 1)
    if len(gaps) == 1 and (gap := gaps.pop()) > timedelta(0):
        return [last + step * gap for step in some]
    months = [12 * moment.year + moment.month for moment in moments]
    gaps = {after - before for before, after in pairwise(months)}
    at_end = all(moment.day == _days(month) for moment, month in zip(moments, months, strict=True))
    alike = len({(at_end or moment.day, moment.time(), moment.tzinfo) for moment in moments}) == 1
    if len(gaps) > 1 or not alike or (gap := gaps.pop()) <= 0:
        return None
    return [_on(last, months[-1] + step * gap, at_end=at_end) for step in some]


def _on(moment: datetime, month: int, *, at_end: bool) -> datetime:
    day = _days(month) if at_end else min(moment.day, _days(month))
    return moment.replace(year=(month - 1) // 12, month=(month - 1) % 12 + 1, day=day)


def _days(month: int) -> int:
    return calendar.monthrange((month - 1) // 12, (month - 1) % 12 + 1)[1]


def _written(moment: datetime, like: str) -> str:
    """A moment, written in the format of another one."""
    if re.fullmatch(r"\d{4}[-/]\d\d([-/]\d\d)?", like):
        return moment.isoformat()[: len(like)].replace("-", like[4])
    clock = re.fullmatch(r"(\d{4}[-/]\d\d[-/]\d\d)(.)(\d\d:\d\d)(:\d\d)?([.,]\d+)?(.*)", like)
    if clock is None:
        return moment.isoformat()
    spec = "minutes" if not clock[4] else "seconds" if not clock[5] else "microseconds" if len(clock[5]) > 4 else ""
    text = moment.isoformat(clock[2], spec or "milliseconds")
    text = text[:10].replace("-", like[4]) + text[10:]
    return text.removesuffix("+00:00") + "Z" if clock[6] == "Z" else text
