"""Rows from Python: dicts instead of lines."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from itertools import islice
from typing import Any

from norewind.streams.position import Mark, Progress
from norewind.streams.stream import StreamError

SIMPLE = (float, int, str, bool, type(None))


class Given:
    """Rows in place of a `Source`: from an iterable, and from `put`. Each counts as one line of one byte.

    With `lasts`, more may be put in when there are none left; otherwise that is the end.
    """

    name, size, complete, unfinished = "the table", None, True, 0
    has_rows = True

    def __init__(self, rows: Iterable[dict[str, Any]] = (), *, lasts: bool = False):
        self._rows, self._waiting, self._lasts = iter(rows), deque(), lasts
        self.ended = False

    def put(self, row: dict[str, Any]) -> None:
        self._waiting.append(row)

    def progress(self, start: dict[str, Any]) -> Progress:
        return Progress(start)

    def lines(self, progress: Progress) -> "GivenLines":
        return GivenLines(self, progress)

    def fragments(self, patience: float | None) -> Iterator[bytes]:
        return iter(())

    def go_to(self, place: Mark) -> None:
        """Nothing to do: the rows start where the run stopped."""

    def show(self, position: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass

    def ahead(self, count: int) -> list[dict[str, Any]]:
        if len(self._waiting) < count:
            self._waiting.extend(islice(self._rows, count - len(self._waiting)))
        self.ended = not self._waiting and not self._lasts
        return list(islice(self._waiting, count))

    def peek(self) -> dict[str, Any] | None:
        return self._waiting[0] if self._waiting else next(iter(self.ahead(1)), None)

    def drop(self, count: int = 1) -> bytes:
        """Move past rows, and return the bytes that they count as."""
        for _ in range(count):
            self._waiting.popleft()
        return b"\n" * count


class GivenLines:
    """What `Lines` is to lines of a file."""

    may_be_blank = False

    def __init__(self, given: Given, progress: Progress):
        self._given, self._progress = given, progress

    def peek(self, fragments: Iterator[bytes]) -> Any:
        return self._given.peek()

    def ahead(self, fragments: Iterator[bytes], count: int) -> list[Any]:
        return self._given.ahead(count)

    def in_one_go(self) -> bool:
        return True

    def drop(self) -> None:
        self.move(1)

    def move(self, count: int) -> None:
        """Move past so many rows."""
        self._progress.read(self._given.drop(count))

    def skip(self, why: str) -> None:
        self.drop()

    def number(self) -> int:
        return self._progress.here.lines + 1

    def place(self) -> str:
        return f"row {self.number()}"

    def is_cut(self) -> bool:
        return False


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
    if hasattr(value, "tolist"):
        return plain(_iso(value) if getattr(getattr(value, "dtype", None), "kind", "") in "mM" else value.tolist())
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "__float__"):
        try:
            return float(value)
        except (TypeError, ValueError, ArithmeticError):
            return math.nan if value != value else str(value)
    raise StreamError(f"a row holds a {type(value).__name__}, which is no number, text, time or None: convert it.")


def _iso(value: Any) -> Any:
    """NumPy's times as text."""
    return (
        [None if part == "NaT" else part for part in value.astype(str).tolist()]
        if value.ndim
        else (None if str(value) == "NaT" else str(value))
    )
