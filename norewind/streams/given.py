"""Rows from Python: dicts instead of lines."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from itertools import islice
from typing import Any

from norewind.streams.position import Progress
from norewind.streams.reading import BaseLines, BaseSource
from norewind.streams.stream import StreamError

SIMPLE = (float, int, str, bool, type(None))


class Given(BaseSource, BaseLines):
    """Rows in place of a `Source`: from an iterable, and from `put`. Each counts as one line of one byte.

    With `lasts`, more may be put in when there are none left; otherwise that is the end.
    """

    name, has_rows = "the table", True

    def __init__(self, rows: Iterable[dict[str, Any]] = (), *, lasts: bool = False):
        self._rows, self._waiting, self._lasts = iter(rows), deque(), lasts

    def put(self, row: dict[str, Any]) -> None:
        self._waiting.append(row)

    def discard(self) -> None:
        """Forget the next row, as if it had never been put in."""
        self._waiting.popleft()

    def lines(self, start: dict[str, Any]) -> "Given":
        self.progress = Progress(start)
        return self

    def ahead(self, fragments: Iterator[bytes] | None, count: int) -> list[dict[str, Any]]:
        if len(self._waiting) < count:
            self._waiting.extend(islice(self._rows, count - len(self._waiting)))
        self.ended = not self._waiting and not self._lasts
        return list(islice(self._waiting, count))

    def peek(self, fragments: Iterator[bytes] | None = None) -> dict[str, Any] | None:
        return self._waiting[0] if self._waiting else next(iter(self.ahead(fragments, 1)), None)

    def in_one_go(self) -> bool:
        return True

    def move(self, size: int) -> None:
        for _ in range(size):
            self._waiting.popleft()
        self.progress.read(b"\n" * size)


def plain(value: Any) -> Any:
    """A value as JSON has it: NumPy's and pandas's numbers, times and missing values, decimals, lists."""
    if type(value) in SIMPLE:
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
        return plain(value.tolist())
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "__float__"):
        try:
            return float(value)
        except (TypeError, ValueError, ArithmeticError):
            return math.nan if value != value else str(value)
    raise StreamError(f"a row holds a {type(value).__name__}, which is no number, text, time or None: convert it.")
