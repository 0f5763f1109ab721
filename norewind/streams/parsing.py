"""Rows of numbers from lines of CSV or JSON."""

import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from norewind.streams.columns import (
    BadRow,
    Kind,
    MissingValue,
    at,
    boolean_of,
    category_of,
    is_missing,
    leaves,
    number_of,
    time_of,
)
from norewind.streams.position import Progress, damaged
from norewind.streams.reading import LONGEST, Source
from norewind.streams.stream import StreamError, check_choice

FIRST_ROWS = 100
CATEGORIES = 16
"""The number of values of a column that are told apart; all further ones count as one."""
ANOTHER = "(another)"
"""What these are called."""
SECONDS = 1.0
"""Seconds to wait, after the first row of a pipe, for more rows that determine what its columns hold."""


@dataclass(frozen=True)
class Dialect:
    """How rows are written.

    - `format`: "csv", or "jsonl" for one JSON object per line. A quoted field of a CSV file
      cannot contain a line break.
    - `header`: whether the first line of a CSV file names the columns. Otherwise they are
      called 1, 2 and so on.
    - `delimiter`: the character between the fields of a CSV file.
    - `classes`: the target is a class, whatever it is written as (text, true, 0 or 1).
    - `before`: with a horizon of 0, the targets of the row before are inputs too.
    """

    format: Literal["csv", "jsonl"] = "csv"
    header: bool = True
    delimiter: str = ","
    classes: bool = False
    before: bool = False


CSV = Dialect()
# A field with quotes may be as long as one without.
csv.field_size_limit(max(csv.field_size_limit(), 2 * LONGEST))


class Line(NamedTuple):
    """A row as read: the numbers of the columns in use, its line, copied columns as JSON text, its time, its key."""

    values: list[float]
    number: int
    copied: str | None
    time: Any
    key: bytes | None = None


READ: dict[Kind, Callable[[Any], float]] = {"number": number_of, "boolean": boolean_of, "time": time_of}


class RowReader:
    """The rows of a source as lists of numbers, with NaN for missing values.

    `columns` are the names of all columns, known once `read_header` or `first_rows` was
    called. A category is the number of its place in `categories`, by column, which grow as
    they appear. A bad row is an error, or is skipped and counted, depending on `missing` and
    `bad`. After an error, the next attempt fails at the same row again.
    """

    def __init__(self, source: Source, progress: Progress, dialect: Dialect, *, missing: str, bad: str):
        check_choice("format", dialect.format, ("csv", "jsonl"))
        check_choice("missing", missing, ("last", "mean", "fail", "skip"))
        check_choice("bad", bad, ("fail", "skip"))
        if len(dialect.delimiter) != 1 or dialect.delimiter in '"\r\n':
            raise StreamError(f"the delimiter must be one character, no quote or line break: {dialect.delimiter!r}.")
        self.columns: list[str] = []
        self.categories: dict[str, dict[str, int]] = {}
        # What finds a row's key; rows that have none are left out.
        self.key_of: Callable[[dict[str, Any]], bytes | None] | None = None
        self._source, self._progress, self._lines = source, progress, source.lines(progress)
        self.dialect, self._is_csv = dialect, dialect.format == "csv" and not source.has_rows
        self._missing, self._bad = missing, bad

    def choose(self, kinds: dict[str, Kind], required: list[str], copied: list[str], clock: str | None) -> None:
        """Choose the columns to read with their kinds, those that may not be missing, those to copy, and the time."""
        self._clock = clock
        self._used, self._copied = [(name, READ.get(kind)) for name, kind in kinds.items()], copied
        place = {name: number for number, name in enumerate(kinds)}
        self._required = [place[name] for name in required] if self._missing in ("fail", "skip") else []
        for name, kind in kinds.items():
            if kind == "category":
                self.categories.setdefault(name, {})

    def restore(self, categories: dict[str, list[str]], columns: set[str]) -> None:
        """Go on with the categories of these columns."""
        if len(set(self.columns)) < len(self.columns):
            raise damaged("two of its columns have one name")
        if set(categories) != columns:
            raise damaged("its categories are not those of its columns")
        for name, known in categories.items():
            self.categories[name] = {value: number for number, value in enumerate(known)}
            if len(self.categories[name]) < len(known):
                raise damaged(f"its categories name one of {name!r} twice")
            if len(known) > CATEGORIES:
                raise damaged(f"it has {len(known)} categories of {name!r}, more than {CATEGORIES}")

    def read_header(self) -> None:
        if not self._is_csv or not self.dialect.header:
            return
        line = self._first_line(self._source.fragments(None))
        try:
            self.columns = _names(_fields(self._lines.text(line), self.dialect.delimiter))
        except BadRow as problem:
            raise self._error(problem, "Fix the header.") from None
        self._lines.drop()

    def first_rows(self) -> list[dict[str, Any]]:
        """The first good rows, at least one, by column. They are not dropped: `rows` starts with them."""
        fragments = self._source.fragments(None)
        while True:
            line = self._first_line(fragments)
            try:
                rows = [self._row(line)]
                break
            except BadRow as problem:
                self._skip(problem)
        self.columns = self.columns or list(rows[0])
        # A file is there; who sends rows to a pipe one by one may wait for the answer to the first.
        patience = SECONDS if self._source.size is None else None
        for line in self._lines.ahead(self._source.fragments(patience), FIRST_ROWS)[1:]:
            try:
                if not self._is_blank(line):
                    rows.append(self._row(line))
            except BadRow:
                continue  # said when its turn comes
        if not self._is_csv:
            self._columns_of(rows)
        return rows

    def _columns_of(self, rows: list[dict[str, Any]]) -> None:
        """Name the columns of JSON objects: all keys, and inside of nested values unless they are bad rows."""
        names: dict[str, None] = {}
        for row in rows:
            try:
                names |= dict.fromkeys(name for name, _ in leaves(row))
            except BadRow as problem:
                raise self._error(problem, "Leave some out, or put them into a list inside a column.") from None
        outer = {name for name in names if "." not in name}
        self.columns = [name for name in names if name in outer or name.split(".")[0] not in outer]
        for name in names:
            if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
                raise self._error(BadRow(f"the key {name!r} has half a character"), "Rename it.")

    def rows(self, fragments: Iterator[bytes]) -> Iterator[Line]:
        """The rows, until there are no more fragments."""
        while (line := self._lines.peek(fragments)) is not None:
            number = self._lines.number()
            try:
                row = None if self._is_blank(line) else self._row(line)
                key = None if row is None or self.key_of is None else self.key_of(row)
                used = row is not None and (self.key_of is None or key is not None)
                values = self.values(row) if row is not None and used else None
            except BadRow as problem:
                self._skip(problem)
                continue
            self._lines.drop()
            if values and row is not None:
                time = None if self._clock is None else at(row, self._clock)
                yield Line(values, number, self._copy(row), time, key)

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
        return self._lines.may_be_blank and (line in (b"", b"\r") if self._is_csv else not line.strip())

    def _row(self, line: Any) -> dict[str, Any]:
        if self._source.has_rows:
            return line
        return {**self._parsed(self._lines.text(line)), **self._lines.beside(line)}

    def _parsed(self, text: str) -> dict[str, Any]:
        if not self._is_csv:
            return _object(text)
        fields = _fields(text, self.dialect.delimiter)
        names = self.columns or [str(number) for number in range(1, len(fields) + 1)]
        if len(fields) != len(names):
            raise BadRow(f"it has {len(fields)} fields, but there are {len(names)} columns")
        return dict(zip(names, fields, strict=True))

    def read_line(self, line: bytes) -> dict[str, Any]:
        """The row in a line, if it is good; nothing is remembered of it."""
        row = self._parsed(line.decode())
        self.values(row, new=False)
        return row

    def values(self, row: dict[str, Any], *, new: bool = True) -> list[float]:
        """The numbers of the columns in use. Categories that appear are remembered, or without `new` only numbered."""
        values = []
        try:
            for name, read in self._used:
                value = row.get(name) if self._is_csv else at(row, name)
                values.append(read(value) if read else math.nan if is_missing(value) else category_of(value))
        except BadRow as problem:
            raise BadRow(f"column {self._used[len(values)][0]!r}: {problem}") from None
        for place in self._required:
            if values[place] != values[place]:
                raise MissingValue(f"column {self._used[place][0]!r} has no value")
        if self.categories:
            # Not before the row is known to be good.
            values = [self._number(name, value, new) for (name, _), value in zip(self._used, values, strict=True)]
        return values

    def _number(self, column: str, value: float | str, new: bool) -> float:
        """The number of a category; those that come when there are too many share one."""
        if not isinstance(value, str):
            return value
        known = self.categories[column]
        if new and value not in known and len(known) < CATEGORIES:
            known[value] = len(known)
        return float(known.get(value, len(known)))

    def _copy(self, row: dict[str, Any]) -> str | None:
        if not self._copied:
            return None
        values = {name: row.get(name) if self._is_csv else at(row, name) for name in self._copied}
        # JSON has no NaN; Python reads it all the same.
        return json.dumps({name: None if value != value else value for name, value in values.items()})

    def _skip(self, problem: BadRow) -> None:
        option, policy = ("missing", self._missing) if isinstance(problem, MissingValue) else ("bad", self._bad)
        if policy != "skip":
            raise self._error(problem, f"Fix it, or skip and count such rows (--{option} skip).") from None
        self._progress.skip(problem.counted_as)
        self._lines.skip(str(problem))

    def _error(self, problem: BadRow, remedy: str) -> StreamError:
        cut = " (the last line has no newline: it may be cut off)" if self._lines.is_cut() else ""
        return StreamError(f"{self._source.name}, {self._lines.place()} is bad: {problem}{cut}. {remedy}")


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
        other = "" if text.lstrip().startswith("{") else ". These rows are read as JSON lines, as the first ones were"
        raise BadRow(f"it is not valid JSON ({error.msg} at character {error.pos + 1}){other}") from None
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, brackets nested thousands deep.
        raise BadRow(f"its JSON cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise BadRow(f'it is a JSON {type(value).__name__}, not an object such as {{"name": 1.5}}')
    return value
