"""The kinds of the columns of a table, inferred from its first rows, and the times of future rows."""

import calendar
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from norewind.streams.stream import BadRow

# How the values of a column are read.
Kind = Literal["number", "boolean", "category", "time"]

# The number of classes that are distinguished, and of values of a column of text that have an input of their own. Any
# other value has two of these inputs, chosen by a checksum.
CATEGORIES = 16
# The same for columns with more than that many values in the first rows.
MANY_CATEGORIES = 64
# The name of all others.
OTHER_CATEGORY = "(another)"
# In fewer rows, numbers that increase by one may be a coincidence.
MIN_COUNTER_ROWS = 20
DAY = 86_400.0  # in seconds
CYCLES_OF_ROWS = (DAY, 7 * DAY)
MAX_ROW_VALUES = 10_000
TRUTH_VALUES = {"true": True, "false": False}
# From 1979 to 2096 in seconds, milliseconds, microseconds and nanoseconds.
UNIX_TIMES = [(unit * 3e8, unit * 4e9, unit) for unit in (1, 1e3, 1e6, 1e9)]
# The index of a value in a list, as `nested_values` writes it. (Python's `int` reads the digits of other scripts too.)
LIST_INDEX = re.compile("0|[1-9][0-9]{0,9}")
# Dates that begin with the day or the month; which of the two is ambiguous.
YEAR_LAST = re.compile(r"[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{4}([ T,].*)?")
NOT_YEAR_FIRST = "which must be written year first, as 2024-05-31"
DECIMAL_COMMA = re.compile("[-+]?[0-9]+,[0-9]+")
# The number of latest times that are kept.
KEPT_TIMES = 12
MISSING_WORDS = frozenset(["", "na", "nan", "null"])
# Larger numbers do not fit 32-bit floats, and their squares would not fit 64-bit ones.
MAX_NUMBER = 3e38


def has_many_values(values: Iterable[Any]) -> bool:
    """Return whether a column of text has so many values in the first rows that it needs more inputs.

    Args:
        values: the values, as they were sent.
    """
    return len({category_of(value) for value in values if not is_missing(value)}) > CATEGORIES


class InferredKind(NamedTuple):
    """The inferred kind of a column.

    Attributes:
        kind: how the column can be read; None if it cannot.
        why_unused: why it is not used unless it is named; empty if it is used by default.
    """

    kind: Kind | None
    why_unused: str = ""


def infer_kind(values: list[Any]) -> InferredKind:
    """Infer the kind of a column from its first values.

    Args:
        values: the fields of the first rows, as they were sent.

    >>> infer_kind(["1", "", "3"])
    InferredKind(kind='number', why_unused='')
    >>> infer_kind(["2024-05-01 10:00", "2024-05-01 11:00"])
    InferredKind(kind='time', why_unused='a timestamp')
    """
    present = [value for value in values if not is_missing(value)]
    if not present:
        return InferredKind("number", f"empty in the first {len(values)} rows" if len(values) > 1 else "empty")
    most = len(present) / 2
    if sum(can_read(boolean_of, value) for value in present) > most:
        return InferredKind("boolean")
    numbers = [number_of(value) for value in present if can_read(number_of, value)]
    if len(numbers) > most:
        is_time = _is_unix_time(numbers)
        return InferredKind("time", "a timestamp") if is_time else InferredKind("number", _counts(numbers))
    if sum(can_read(time_of, value) for value in present) > most:
        return InferredKind("time", "a timestamp")
    if any(isinstance(value, dict | list) for value in present):
        return InferredKind(None, "neither a number nor text")
    if sum(bool(DECIMAL_COMMA.fullmatch(str(value).strip())) for value in present) > most:
        return InferredKind("category", f"text: {present[0]!r} uses a decimal comma; a decimal point is required")
    if sum(bool(YEAR_LAST.fullmatch(str(value).strip())) for value in present) > most:
        return InferredKind(None, f"dates such as {present[0]!r}, {NOT_YEAR_FIRST}")
    return InferredKind("category", "text")


def _counts(numbers: list[float]) -> str:
    """Return why numbers are not worth forecasting, if they only identify the row."""
    if len(numbers) < MIN_COUNTER_ROWS:
        return ""
    if numbers[0] < numbers[-1] and all(map(_is_date, numbers)) and numbers == sorted(numbers):
        return f"dates, such as {numbers[0]:.0f}"
    return "a row counter" if {after - before for before, after in pairwise(numbers)} == {1.0} else ""


def _is_date(number: float) -> bool:
    """Return whether a number is a year, a month and a day, written as eight digits."""
    try:
        return bool(1e7 <= number < 1e8 and number.is_integer() and datetime.strptime(f"{number:.0f}", "%Y%m%d"))
    except ValueError:
        return False


def _is_unix_time(numbers: list[float]) -> bool:
    known = any(low <= numbers[0] < numbers[-1] <= high for low, high, _ in UNIX_TIMES)
    return known and numbers == sorted(numbers) and len(numbers) >= MIN_COUNTER_ROWS


def can_read(read: Any, value: Any) -> bool:
    """Return whether a value is present and can be read.

    Args:
        read: the function that reads it.
        value: the field of a row, as it was sent.
    """
    try:
        return not math.isnan(read(value))
    except BadRow:
        return False


def is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in MISSING_WORDS
    return value is None or (isinstance(value, float) and math.isnan(value))


def number_of(value: Any) -> float:
    """Return a field of a row as a number; NaN if it is missing.

    Raises:
        BadRow: the field is not a number, or is too large.
    """
    if value is None or value == "":
        return math.nan
    # Python would read 1_000 and the digits of other scripts as numbers; True is a kind of int.
    is_text = type(value) is str
    if type(value) not in (str, float, int) or (is_text and ("_" in value or not value.strip().isascii())):
        raise BadRow(f"{quoted(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf  # an integer with hundreds of digits
    except ValueError:
        if value.strip().lower() in MISSING_WORDS:
            return math.nan
        raise BadRow(f"{quoted(value)} is not a number") from None
    if abs(number) > MAX_NUMBER:
        raise BadRow(f"{quoted(value)} is too large: numbers must be within ±{MAX_NUMBER:g}")
    return number


def boolean_of(value: Any) -> float:
    if is_missing(value):
        return math.nan
    truth = TRUTH_VALUES.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(truth, bool):
        raise BadRow(f"{quoted(value)} is neither true nor false")
    return float(truth)


def time_of(value: Any) -> float:
    """Return a date and time as seconds since 1970, from text (ISO 8601, also with slashes) or from Unix time.

    Raises:
        BadRow: the value is not a time.
    """
    if is_missing(value):
        return math.nan
    if isinstance(value, str):
        text = value.strip()
        try:
            moment = datetime.fromisoformat(as_iso(text))
            # Eight digits are more likely a number.
            if not text.isdigit():
                return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            pass
    try:
        number = number_of(value)
    except BadRow:
        number = math.nan
    for low, high, unit in UNIX_TIMES:
        if low <= number <= high:
            return number / unit
    raise BadRow(f"{quoted(value)} is not a time: write it as 2024-05-31T18:00:00, or in seconds since 1970")


def as_iso(text: str) -> str:
    """Convert a date to ISO 8601: slashes become hyphens, and a missing day becomes the first."""
    return text.replace("/", "-") + ("-01" if re.fullmatch(r"\d{4}[-/]\d\d", text) else "")


def category_of(value: Any) -> str:
    """Return a field of a row as the name of a category. Booleans and numbers have names too.

    True, "True" and "true" are one category, since the same value is `true` in JSON and often `True` in a CSV file.
    """
    if isinstance(value, dict | list):
        raise BadRow(f"{quoted(value)} is not a category")
    name = value.strip() if isinstance(value, str) else str(value)
    return lower if (lower := name.lower()) in TRUTH_VALUES else name


# The function that reads the values of a column, by kind.
READERS: dict[Kind, Callable[[Any], Any]] = {
    "number": number_of,
    "boolean": boolean_of,
    "time": time_of,
    "category": lambda value: math.nan if is_missing(value) else category_of(value),
}


def quoted(value: Any) -> str:
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        return "it"  # thousands of digits, which Python may not even print
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def nested_values(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Iterate over the values of a JSON object with their names: sensor.temp for nested objects, axes.0 for lists."""
    unvisited: list[tuple[str, Any]] = list(reversed(row.items()))
    number = 0
    while unvisited:
        name, value = unvisited.pop()
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
        if inner:
            unvisited.extend(reversed([(f"{name}.{key}", part) for key, part in inner]))
            continue
        number += 1
        if number > MAX_ROW_VALUES:
            raise BadRow(f"it has more than {MAX_ROW_VALUES} values")
        yield name, value


def nested_value(row: dict[str, Any], name: str) -> Any:
    """Return a value inside a JSON object by its name; None if it does not exist.

    Args:
        row: a JSON object.
        name: the keys and list indices that lead to the value, joined by dots, as `nested_values` returns them.
    """
    if name in row or "." not in name:
        return row.get(name)
    value: Any = row
    for part in name.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and LIST_INDEX.fullmatch(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def are_sorted(values: Sequence[Any]) -> bool:
    """Return whether times never go back. Missing values, and values that are not times, are ignored.

    >>> are_sorted(["2024-05-01", "", "2024-05-02"]), are_sorted(["2024-05-02", "2024-05-01"])
    (True, False)
    """
    times = [time_of(value) for value in values if not is_missing(value) and can_read(time_of, value)]
    return all(before <= after for before, after in pairwise(times))


def varying(values: list[Any]) -> list[str]:
    """Return the parts of times that vary: the hour of the day, the day of the week, the gap between rows."""
    times = [time_of(value) for value in values if not is_missing(value) and can_read(time_of, value)]
    gaps = {after - before for before, after in pairwise(times)}
    cycles = {"hour": {time % DAY for time in times}, "weekday": {time // DAY for time in times}, "gap": gaps}
    return [name for name, different in cycles.items() if len(different) > 1]


def periods_of(values: list[Any]) -> tuple[int, ...]:
    """Return the number of rows per day and week, or per year if rows are weeks, months or quarters, from their times.

    >>> periods_of(["2024-05-01 00:00", "2024-05-01 00:30", "2024-05-01 01:00"])
    (48, 336)
    >>> periods_of(["2024-05-01", "2024-05-02", "2024-05-03"]), periods_of(["2024-01", "2024-02", "2024-03"])
    ((7,), (12,))
    """
    times = [time_of(value) for value in values if not is_missing(value) and can_read(time_of, value)]
    gaps = sorted(after - before for before, after in pairwise(times))
    gap = gaps[len(gaps) // 2] if gaps else 0.0
    if gap <= 0:
        return ()
    for rows, least, most in ((52, 7, 7), (12, 28, 31), (4, 90, 92)):
        if least * DAY <= gap <= most * DAY:
            return (rows,)
    lengths = (length / gap for length in CYCLES_OF_ROWS)
    return tuple(round(rows) for rows in lengths if rows.is_integer() and rows >= 2)


def as_time(value: Any) -> str | int | float | None:
    """Return a time as it was sent; None if the value cannot be a time."""
    if isinstance(value, str):
        return value.strip() if len(value) <= 40 else None
    return value if type(value) in (int, float) and abs(value) < 1e20 else None


def times_ahead(latest: Sequence[Any], count: int) -> list[Any] | None:
    """Return the times of the next rows, in the format of the latest ones.

    The times may be a constant number of seconds or of months apart.

    Args:
        latest: the times of the latest rows.
        count: the number of times to return.

    Returns:
        The times; None if the latest ones are not regular.

    >>> times_ahead(["2024/01/31 22:00", "2024/01/31 23:00", "2024/02/01 00:00"], 2)
    ['2024/02/01 01:00', '2024/02/01 02:00']
    >>> times_ahead(["2023-10-31", "2023-11-30", "2023-12-31"], 2)
    ['2024-01-31', '2024-02-29']
    >>> times_ahead([1700000000, 1700000060, 1700000120], 1)
    [1700000180]
    >>> times_ahead(["2023-10-31", "2023-11-30", "2023-12-01"], 2)
    """
    if len(latest) < 3 or None in latest:
        return None
    try:
        if not all(isinstance(time, str) for time in latest) or latest[-1].replace(".", "", 1).isdigit():
            return _numbers([float(time) for time in latest], count, whole="." not in str(latest[-1]))
        moments = [datetime.fromisoformat(as_iso(time)) for time in latest]
        ahead = _moments(moments, count)
        return None if ahead is None else [_written(moment, latest[-1]) for moment in ahead]
    except (ValueError, OverflowError, TypeError):
        return None  # not times, some with and some without a zone, or beyond the year 9999


def _numbers(times: list[float], count: int, *, whole: bool) -> list[Any] | None:
    gaps = [after - before for before, after in pairwise(times)]
    if gaps[0] <= 0 or max(gaps) - min(gaps) > 1e-4 * gaps[0]:
        return None
    gap = (times[-1] - times[0]) / len(gaps)
    return [round(times[-1] + step * gap, None if whole else 6) for step in range(1, count + 1)]


def _moments(moments: list[datetime], count: int) -> list[datetime] | None:
    """Return the next moments, if the latest are a constant time or number of months apart.

    With months, they are on the last day of each month or on the same day.
    """
    before, last = moments[-2:]
    gap, months = last - before, 12 * (last.year - before.year) + last.month - before.month

    def months_later(step: int, day: int) -> datetime:
        year, month = divmod(12 * last.year + last.month - 1 + step * months, 12)
        return last.replace(year=year, month=month + 1, day=min(day, calendar.monthrange(year, month + 1)[1]))

    for move in (lambda k: last + k * gap, lambda k: months_later(k, 31), lambda k: months_later(k, last.day)):
        if last > before and moments == [move(step) for step in range(1 - len(moments), 1)]:
            return [move(step) for step in range(1, count + 1)]
    return None


def _written(moment: datetime, like: str) -> str:
    """Return a moment in the format of another one."""
    if re.fullmatch(r"\d{4}[-/]\d\d([-/]\d\d)?", like):
        return moment.isoformat()[: len(like)].replace("-", like[4])
    clock = re.fullmatch(r"(\d{4}[-/]\d\d[-/]\d\d)(.)(\d\d:\d\d)(:\d\d)?([.,]\d+)?(.*)", like)
    if clock is None:
        return moment.isoformat()
    spec = "minutes" if not clock[4] else "seconds" if not clock[5] else "microseconds" if len(clock[5]) > 4 else ""
    text = moment.isoformat(clock[2], spec or "milliseconds")
    text = text[:10].replace("-", like[4]) + text[10:]
    return text.removesuffix("+00:00") + "Z" if clock[6] == "Z" else text
