"""Rows from Python: dicts instead of lines."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from itertools import islice
from typing import Any

from norewind.streams.base_source import BaseSource
from norewind.streams.stream import StreamError

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
