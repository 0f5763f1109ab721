"""Rows that are in Python already: dicts in place of lines."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from itertools import islice
from typing import Any

from norewind.streams.columns import BadRow
from norewind.streams.parsing import Dialect, Line, RowReader
from norewind.streams.position import Mark, Progress
from norewind.streams.stream import StreamError

SIMPLE = (float, int, str, bool, type(None))


class Given:
    """Rows in place of a `Source`: from an iterable, and from `put`. Each counts as one line of one byte.

    With `lasts`, more may be put in when there are none left; otherwise that is the end.
    """

    name, size, complete, unfinished = "the table", None, True, 0

    def __init__(self, rows: Iterable[dict[str, Any]] = (), *, lasts: bool = False):
        self._rows, self._waiting, self._lasts = iter(rows), deque(), lasts
        self.ended = False

    def put(self, row: dict[str, Any]) -> None:
        self._waiting.append(row)

    def fragments(self, patience: float | None) -> Iterator[bytes]:
        return iter(())

    def go_to(self, place: Mark) -> None:
        """Nothing to do: the rows start where the run stopped."""

    def close(self) -> None:
        pass

    def ahead(self, count: int) -> list[dict[str, Any]]:
        if len(self._waiting) < count:
            self._waiting.extend(islice(self._rows, count - len(self._waiting)))
        self.ended = not self._waiting and not self._lasts
        return list(islice(self._waiting, count))

    def peek(self) -> dict[str, Any] | None:
        return self._waiting[0] if self._waiting else next(iter(self.ahead(1)), None)

    def drop(self) -> None:
        self._waiting.popleft()


class _Lines:
    """What `Lines` is to lines of a file."""

    def __init__(self, given: Given, progress: Progress):
        self._given, self._progress = given, progress

    def peek(self, fragments: Iterator[bytes]) -> Any:
        return self._given.peek()

    def ahead(self, fragments: Iterator[bytes], count: int) -> list[Any]:
        return self._given.ahead(count)

    def drop(self) -> None:
        self._given.drop()
        self._progress.read(b"\n")

    def is_cut(self) -> bool:
        return False


class GivenReader(RowReader):
    """The reader of given rows: they need no parsing, and are judged and checked as those of a file."""

    def __init__(self, given: Given, progress: Progress, dialect: Dialect, *, missing: str, bad: str):
        super().__init__(given, progress, dialect, missing=missing, bad=bad)  # pyright: ignore[reportArgumentType]
        self._lines, self._is_csv = _Lines(given, progress), False

    def looked_at(self, row: dict[str, Any]) -> Line:
        """A row that is not taken: categories that are new stay unknown."""
        known = {name: dict(numbers) for name, numbers in self.categories.items()}
        try:
            return Line(self._values(row), self._progress.here.lines + 1, self._copy(row))
        except BadRow as problem:
            raise StreamError(f"the row is bad: {problem}.") from None
        finally:
            self.categories = known

    def _is_blank(self, line: Any) -> bool:
        return False

    def _text(self, line: Any) -> Any:
        return line

    def _row(self, text: Any) -> dict[str, Any]:
        return text

    def _error(self, problem: BadRow, remedy: str) -> StreamError:
        return StreamError(f"row {self._progress.here.lines + 1} is bad: {problem}. {remedy}")


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
