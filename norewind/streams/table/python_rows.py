"""Rows from Python: dicts instead of lines."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from norewind.streams.base_source import BaseSource
from norewind.streams.stream import StreamError
from norewind.wording import first_few

Row = dict[str, Any]
JSON_TYPES = (float, int, str, bool, type(None))


class PythonRows(BaseSource):
    """Rows as dicts by column, from an iterable. Each counts as one line of one byte.

    Args:
        rows: the rows.
    """

    name, has_rows = "the table", True

    def __init__(self, rows: Iterable[dict[str, Any]] = ()):
        self._rows = iter(rows)
        self._waiting: deque[dict[str, Any]] = deque()

    def peek(self, count: int = 1) -> list[dict[str, Any]]:
        if len(self._waiting) < count:
            self._waiting.extend(islice(self._rows, count - len(self._waiting)))
        self.ended = not self._waiting
        return list(islice(self._waiting, count))

    def drop(self, records: Sequence[dict[str, Any]]) -> None:
        for _ in records:
            self._waiting.popleft()
        self.progress.read(b"\n" * len(records))


def plain(value: Any) -> Any:
    """Convert a value to its JSON form: numbers, times and missing values of NumPy and pandas, decimals, and lists.

    Raises:
        StreamError: the value has no such form.
    """
    if type(value) in JSON_TYPES:
        return value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        texts = value.astype(str).tolist()
        return [None if text == "NaT" else text for text in texts] if value.ndim else None if texts == "NaT" else texts
    if hasattr(value, "tolist"):
        found = value.tolist()
        return float(value) if type(found) is type(value) else plain(found)  # np.longdouble returns itself
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "__float__"):
        try:
            return float(value)
        except (TypeError, ValueError, ArithmeticError):
            return math.nan if value != value else str(value)
    raise StreamError(f"a row holds a {type(value).__name__}, which is not a number, text, time or None: convert it.")


def index_times(index: Any) -> tuple[str, Iterable[Any]] | None:
    """Return the name (or "time") and the values of a pandas index of times; None for any other index.

    Args:
        index: the index of a frame or a series.
    """
    kind = type(index).__name__
    if kind not in ("DatetimeIndex", "PeriodIndex"):
        return None
    return str(index.name or "time"), index.to_timestamp() if kind == "PeriodIndex" else index


def iterate_rows(data: Any, *, index: bool = True) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a pandas or Polars frame or series, an array, or any iterable of rows.

    Args:
        data: the rows.
        index: whether the times in the index of a pandas frame are a column too.

    Raises:
        StreamError: the data is not a collection of rows.
    """
    if hasattr(data, "to_frame"):  # a series; without a name, its column is called 1, as in an array
        data = data.to_frame(name=data.name or "1")
    if isinstance(data, Mapping):
        raise StreamError("fit takes many rows; learn_one takes one. Convert a dict of columns to a data frame first.")
    if hasattr(data, "iter_rows"):  # Polars
        return map(as_row, data.iter_rows(named=True))
    if hasattr(data, "itertuples"):  # pandas
        names = [str(name) for name in data.columns]
        _check_names(names)
        rows = (dict(zip(names, values, strict=True)) for values in data.itertuples(index=False, name=None))
        times = index_times(data.index) if index else None
        if times is None or times[0] in names:
            return map(as_row, rows)
        return (as_row({times[0]: time} | row) for time, row in zip(times[1], rows, strict=True))
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        kinds = "a data frame, an array or an iterable of dicts"
        raise StreamError(f"rows must be {kinds}, not a {type(data).__name__}. To read a file, pass its path.")
    return map(as_row, data)


def joined_with_targets(rows: Iterable[Row], targets: Iterable[Row], names: Sequence[str]) -> Iterator[Row]:
    """Join each row with its targets.

    Args:
        rows: rows by column, without their targets.
        targets: the targets of each of them, by column. A single one may have any name.
        names: the names of the targets.

    Raises:
        StreamError: there are not as many targets as rows, or a target is missing.

    >>> list(joined_with_targets([{"wind": 3}], [{"1": 10}], ["power"]))
    [{'wind': 3, 'power': 10}]
    """
    for row, target in zip_longest(rows, targets):
        if row is None or target is None:
            raise StreamError("fit: X and y must have the same number of rows.")
        found = dict(zip(names, target.values(), strict=False)) if len(names) == len(target) == 1 else target
        if absent := [name for name in names if name not in found]:
            raise StreamError(f"fit: y has no column {absent[0]!r}. It has {first_few([*map(repr, found)], 20)}.")
        yield row | {name: found[name] for name in names}


def as_row(row: Any) -> dict[str, Any]:
    """Convert a row to a dict by column. The columns of an array are called 1, 2, ..., as in a file without a header.

    Raises:
        StreamError: it is neither a mapping nor a vector.
    """
    if type(row) is dict or isinstance(row, Mapping):
        values = {
            name if type(name) is str else str(name): value if type(value) in JSON_TYPES else plain(value)
            for name, value in row.items()
        }
        if len(values) < len(row):
            _check_names(list(map(str, row)))
        return values
    if hasattr(row, "to_dict"):  # a row of pandas
        _check_names(list(map(str, row.index)))
        return as_row(row.to_dict())
    if isinstance(row, str | bytes) or not (hasattr(row, "__len__") or hasattr(row, "__float__")) or np.ndim(row) > 1:
        raise StreamError(f"a row must be a dict or a vector of numbers, not a {type(row).__name__}.")
    values = np.atleast_1d(np.asarray(row)).tolist()
    return {str(number): plain(value) for number, value in enumerate(values, 1)}


def _check_names(names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise StreamError(f"the column {twice[0]!r} appears twice; column names must be unique.")
