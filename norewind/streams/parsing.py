"""Rows of numbers from lines of CSV or JSON."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from norewind.streams.position import Progress
from norewind.streams.reading import LONGEST, Lines, Source
from norewind.streams.stream import StreamError, check_choice

# Larger numbers do not fit 32-bit floats, and their squares would not fit 64-bit ones.
LARGEST = 3e38
# Besides NaN, which `float` reads itself.
MISSING = frozenset(["", "na", "null"])


@dataclass(frozen=True)
class Dialect:
    """How rows are written.

    - `format`: "csv", or "jsonl" for one JSON object per line. A quoted field of a CSV file
      cannot contain a line break.
    - `header`: whether the first line of a CSV file names the columns. Otherwise they are
      called 1, 2 and so on.
    - `delimiter`: the character between the fields of a CSV file.
    """

    format: Literal["csv", "jsonl"] = "csv"
    header: bool = True
    delimiter: str = ","


CSV = Dialect()


class BadRow(ValueError):
    """What is wrong with a row; the reader adds where it is."""

    counted_as = "bad rows"


class MissingValue(BadRow):
    """A row without a value that it needs."""

    counted_as = "rows with missing values"


class RowReader:
    """The rows of a source as lists of numbers, with NaN for missing values.

    `columns` are the names of all columns, known once `read_header` or `first_row` was called. A
    bad row is an error, or is skipped and counted, depending on `missing` and `bad`. After
    an error, the next attempt fails at the same row again.
    """

    def __init__(self, source: Source, progress: Progress, dialect: Dialect, *, missing: str, bad: str):
        check_choice("format", dialect.format, ("csv", "jsonl"))
        check_choice("missing", missing, ("last", "mean", "fail", "skip"))
        check_choice("bad", bad, ("fail", "skip"))
        if len(dialect.delimiter) != 1 or dialect.delimiter in '"\r\n':
            raise StreamError(f"the delimiter must be one character, no quote or line break: {dialect.delimiter!r}.")
        self.columns: list[str] = []
        self._source, self._progress, self._lines = source, progress, Lines(source, progress)
        self._dialect, self._is_csv = dialect, dialect.format == "csv"
        self._missing, self._bad = missing, bad

    def choose(self, used: list[str], required: list[str]) -> None:
        """Choose the columns to read (`used`), and those of them whose values may not be missing (`required`)."""
        self._used = used
        self._required = [used.index(name) for name in required] if self._missing in ("fail", "skip") else []

    def read_header(self) -> None:
        if not self._is_csv or not self._dialect.header:
            return
        line = self._first_line(self._source.fragments(None))
        try:
            self.columns = _names(_fields(self._text(line), self._dialect.delimiter))
        except BadRow as problem:
            raise self._error(problem, "Fix the header.") from None
        self._lines.drop()

    def first_row(self) -> dict[str, Any]:
        """The fields of the first good row, by column. The row is not dropped: `rows` starts with it."""
        fragments = self._source.fragments(None)
        while True:
            line = self._first_line(fragments)
            try:
                row = self._row(self._text(line))
            except BadRow as problem:
                self._skip(problem)
                continue
            for name in row:
                if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
                    raise self._error(BadRow(f"the key {name!r} has half a character"), "Rename it.")
            self.columns = list(row)
            return row

    def rows(self, fragments: Iterator[bytes]) -> Iterator[list[float]]:
        """The numbers of the columns in use, row by row, until there are no more fragments."""
        while (line := self._lines.peek(fragments)) is not None:
            try:
                values = None if self._is_blank(line) else self._values(self._text(line))
            except BadRow as problem:
                self._skip(problem)
                continue
            self._lines.drop()
            if values:
                yield values

    def too_short(self) -> StreamError:
        if not self._source.ended:
            return StreamError(f"{self._source.name}: stopped before its first row came.")
        return self._progress.too_short(self._source.name, "rows: 0", "a row", self._source.unfinished)

    def _first_line(self, fragments: Iterator[bytes]) -> bytes:
        while (line := self._lines.peek(fragments)) is not None:
            if not self._is_blank(line):
                return line
            self._lines.drop()
        raise self.too_short()

    def _is_blank(self, line: bytes) -> bool:
        """In CSV, spaces are a field, or separate empty ones."""
        return line in (b"", b"\r") if self._is_csv else not line.strip()

    def _text(self, line: bytes) -> str:
        if self._progress.here.inside:
            raise BadRow("it continues a line that had no newline yet when the run read it")
        if len(line) > LONGEST:
            raise BadRow(f"it is longer than {LONGEST} bytes")
        offset = self._progress.here.offset
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise BadRow(f"it is not valid UTF-8, at byte {offset + error.start}") from None
        if offset == 0:
            text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")  # the byte order mark
        return text.removesuffix("\r")

    def _row(self, text: str) -> dict[str, Any]:
        if not self._is_csv:
            return _object(text)
        fields = _fields(text, self._dialect.delimiter)
        names = self.columns or [str(number) for number in range(1, len(fields) + 1)]
        if len(fields) != len(names):
            raise BadRow(f"it has {len(fields)} fields, but there are {len(names)} columns")
        return dict(zip(names, fields, strict=True))

    def _values(self, text: str) -> list[float]:
        row = self._row(text)
        values = []
        try:
            for name in self._used:
                values.append(number_of(row.get(name)))
        except BadRow as problem:
            raise BadRow(f"column {self._used[len(values)]!r}: {problem}") from None
        for place in self._required:
            if values[place] != values[place]:
                raise MissingValue(f"column {self._used[place]!r} has no value")
        return values

    def _skip(self, problem: BadRow) -> None:
        option, policy = ("missing", self._missing) if isinstance(problem, MissingValue) else ("bad", self._bad)
        if policy != "skip":
            raise self._error(problem, f'Fix it, or skip and count such rows ({option} = "skip").') from None
        self._progress.skip(problem.counted_as)
        self._lines.drop()

    def _error(self, problem: BadRow, remedy: str) -> StreamError:
        offset, _, lines, *_ = self._progress.here
        cut = " (the last line has no newline: it may be cut off)" if self._lines.is_cut() else ""
        return StreamError(f"{self._source.name}, line {lines + 1} (byte {offset}) is bad: {problem}{cut}. {remedy}")


def number_of(value: Any) -> float:
    """A field of a row as a number; NaN if it is missing."""
    if value is None:
        return math.nan
    # Python would read 1_000 and the digits of other scripts as numbers; True is a kind of int.
    is_text = type(value) is str
    if type(value) not in (str, float, int) or (is_text and ("_" in value or not value.strip().isascii())):
        raise BadRow(f"{_shown(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf  # an integer of hundreds of digits
    except ValueError:
        if value.strip().lower() in MISSING:
            return math.nan
        raise BadRow(f"{_shown(value)} is not a number") from None
    if abs(number) > LARGEST:
        raise BadRow(f"{_shown(value)} is too large: numbers may go to ±{LARGEST:g}")
    return number


def is_number(value: Any) -> bool:
    try:
        return not math.isnan(number_of(value))
    except BadRow:
        return False


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LARGEST:
        return "it"  # thousands of digits, which Python may even refuse to print
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _fields(text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise BadRow(f"its quotes do not match ({error}); a quoted field cannot contain a line break") from None


def _names(fields: list[str]) -> list[str]:
    """The names of the columns in a header. A column without a name is called by its number, from 1."""
    names = [field.strip() or str(number) for number, field in enumerate(fields, 1)]
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise BadRow(f"the header names the column {twice!r} twice; every column needs a name of its own")
    return names


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRow(f"it is not valid JSON ({error.msg} at character {error.pos + 1})") from None
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, brackets nested thousands deep.
        raise BadRow(f"its JSON cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise BadRow(f'it is a JSON {type(value).__name__}, not an object such as {{"name": 1.5}}')
    return value
