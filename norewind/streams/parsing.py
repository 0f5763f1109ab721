"""Rows of numbers from lines of CSV or JSON."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import msgspec

from norewind.streams.columns import BadRow, MissingValue, at, leaves
from norewind.streams.conversion import Conversion, Rows, converted, joined_rows
from norewind.streams.reading import LONGEST, BaseSource
from norewind.streams.stream import StreamError, check_choice

FIRST_ROWS = 100
# Seconds to wait, after the first row of a pipe, for more rows that determine what its columns hold.
SECONDS = 1.0
# Fewer rows are read faster one by one.
FEW = 4
# How many fields are converted at a time: lists of them take far more memory than arrays of numbers.
BATCH = 20_000
JSON = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class Dialect:
    """How rows are written, and how they are read.

    - `format`: "csv", or "jsonl" for one JSON object per line. A quoted field of a CSV file
      cannot contain a line break.
    - `header`: whether the first line of a CSV file names the columns. Otherwise they are
      called 1, 2 and so on.
    - `delimiter`: the character between the fields of a CSV file.
    - `classes`: the target is a class, whatever it is written as (text, true, 0 or 1).
    - `before`: with a horizon of 0, the targets of the row before are inputs too.
    - `missing`: what to do about a missing input. It is replaced by the newest value of its
      column ("last") or by the mean so far ("mean"), it is an error ("fail"), or the row is
      skipped and counted ("skip"). A value is missing if its field is empty, NA, NaN or
      null, or if a JSON object lacks its key. A missing target is NaN, and not learned from.
    - `bad`: what to do about anything else that is not a row of numbers. It is an error
      ("fail"), or is skipped and counted ("skip").
    """

    format: Literal["csv", "jsonl"] = "csv"
    header: bool = True
    delimiter: str = ","
    classes: bool = False
    before: bool = False
    missing: Literal["last", "mean", "fail", "skip"] = "last"
    bad: Literal["fail", "skip"] = "fail"


CSV = Dialect()
# A field with quotes may be as long as one without.
csv.field_size_limit(max(csv.field_size_limit(), 2 * LONGEST))


class RowReader:
    """The rows of a source as numbers, with NaN for missing values.

    `columns` are the names of all columns, known once `read_header` or `first_rows` was
    called; `conversion` says what becomes of them. A bad row is an error, or is skipped and
    counted, depending on the dialect. After an error, the next attempt fails at the
    same row again.
    """

    def __init__(self, source: BaseSource, start: dict[str, Any], dialect: Dialect):
        check_choice("format", dialect.format, ("csv", "jsonl"))
        check_choice("missing", dialect.missing, ("last", "mean", "fail", "skip"))
        check_choice("bad", dialect.bad, ("fail", "skip"))
        if len(dialect.delimiter) != 1 or dialect.delimiter in '"\r\n':
            raise StreamError(f"the delimiter must be one character, no quote or line break: {dialect.delimiter!r}.")
        self.columns: list[str] = []
        self.conversion: Conversion
        self._source, self._lines = source, source.lines(start)
        self.progress = self._lines.progress
        self.dialect, self.is_csv = dialect, dialect.format == "csv" and not source.has_rows

    def read_header(self) -> None:
        if not self.is_csv or not self.dialect.header:
            return
        line = self._first_line(self._source.fragments(None))
        try:
            self.columns = self._lines.row(line, lambda text: _names(_fields(text, self.dialect.delimiter)))
        except BadRow as problem:
            raise self._error(problem, "Fix the header.") from None
        self._lines.drop()

    def first_rows(self) -> list[dict[str, Any]]:
        """The first good rows, at least one, by column. They are not dropped: `rows` starts with them."""
        fragments = self._source.fragments(None)
        while True:
            line = self._first_line(fragments)
            try:
                rows = [self._lines.row(line, self._parsed)]
                break
            except BadRow as problem:
                self._skip(problem)
        self.columns = self.columns or list(rows[0])
        # A file is there; who sends rows to a pipe one by one may wait for the answer to the first.
        patience = SECONDS if self._source.size is None else None
        for line in self._lines.ahead(self._source.fragments(patience), FIRST_ROWS)[1:]:
            try:
                if not self._is_blank(line):
                    rows.append(self._lines.row(line, self._parsed))
            except BadRow:
                continue  # said when its turn comes
        if not self.is_csv:
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

    def take(self, count: int, fragments: Iterator[bytes]) -> tuple[Rows, StreamError | None]:
        """The next rows, up to `count` or the end of the fragments, and the problem that ended them, if any did."""
        parts: list[Rows] = []
        left, problem = count, None
        try:
            while left and (line := self._lines.peek(fragments)) is not None:
                if part := (self._several(left, fragments) if left >= FEW else None) or self._one(line):
                    parts.append(part)
                    left -= len(part.lines)
        except StreamError as error:
            problem = error  # what came before is returned first; the next call finds it again
        return joined_rows(parts, self.conversion.columns), problem

    def _one(self, line: bytes) -> Rows | None:
        """Read the next line; None if there is no row in it, or none to take."""
        rows = None
        try:
            if not self._is_blank(line):
                rows = self.conversion.row(self._lines.row(line, self._parsed), self._lines.number())
        except BadRow as problem:
            return self._skip(problem)
        self._lines.drop()
        if rows is not None:
            self.progress.mark()
        return rows

    def _several(self, count: int, fragments: Iterator[bytes]) -> Rows | None:
        """Read lines up to the first that is unusual; None if this is the next one."""
        lines, key = self._lines, self.conversion.key
        if not lines.in_one_go():
            return None
        count = max(1, min(count, BATCH // len(self.columns)))
        if self._source.has_rows:
            some, ends = lines.ahead(fragments, count), range(1, count + 1)
        else:
            some, ends = self._parts(count)
        place = {name: number for number, name in enumerate(self.columns)}

        def column(name: str) -> list[Any]:
            return [row[place[name]] for row in some] if self.is_csv else [at(row, name) for row in some]

        rows = self.conversion.rows(len(some), column, lines.number())
        if not len(rows.values):
            return None
        last = end = ends[len(rows.values) - 1]
        if key is not None and key.shards > 1:
            places = [place for place, one in enumerate(rows.keys) if key.takes(one)]
            last = ends[places[-1]] if places else 0
            rows = rows.only(places)
        if last:
            lines.move(last)
            self.progress.mark()
        if last < end:
            lines.move(end - last)  # rows of other shards
        return rows

    def _parts(self, count: int) -> tuple[list[Any], list[int]]:
        """The fields or the objects in the next lines, up to the first that is unusual, and how far each line goes."""
        lines = self._lines.block[self._lines.at :].split(b"\n", count)[:-1]
        ends = list(accumulate(len(line) + 1 for line in lines))
        if not self.is_csv:
            return converted(JSON.decode, lines), ends
        block, width = self._lines.block[self._lines.at : self._lines.at + ends[-1]], len(self.columns)
        try:
            texts = block.decode().split("\n")[:-1]
        except UnicodeDecodeError:
            return [], ends
        if b'"' in block or b"\r" in block:
            fields = converted(lambda line: _fields(line.removesuffix("\r"), self.dialect.delimiter), texts)
        else:
            fields = [line.split(self.dialect.delimiter) for line in texts]
        # A blank line has one field.
        if set(map(len, fields)) != {width} or width == 1:
            good = (len(row) == width and line not in (b"", b"\r") for line, row in zip(lines, fields, strict=False))
            fields = fields[: [*good, False].index(False)]
        return fields, ends

    def too_short(self) -> StreamError:
        if not self._source.ended:
            return StreamError(f"{self._source.name}: stopped before its first row came.")
        return self.progress.too_short(self._source.name, "rows: 0", "a row", self._source.unfinished)

    def _first_line(self, fragments: Iterator[bytes]) -> bytes:
        while (line := self._lines.peek(fragments)) is not None:
            if not self._is_blank(line):
                return line
            self._lines.drop()
        raise self.too_short()

    def _is_blank(self, line: bytes) -> bool:
        """In CSV, spaces are a field, or separate empty ones."""
        return self._lines.may_be_blank and (line in (b"", b"\r") if self.is_csv else not line.strip())

    def _parsed(self, text: str) -> dict[str, Any]:
        if not self.is_csv:
            return _object(text)
        fields = _fields(text, self.dialect.delimiter)
        names = self.columns or [str(number) for number in range(1, len(fields) + 1)]
        if len(fields) != len(names):
            raise BadRow(f"it has {len(fields)} fields, but there are {len(names)} columns")
        return dict(zip(names, fields, strict=True))

    def _skip(self, problem: BadRow) -> None:
        option = "missing" if isinstance(problem, MissingValue) else "bad"
        if getattr(self.dialect, option) != "skip":
            raise self._error(problem, f"Fix it, or skip and count such rows (--{option} skip).") from None
        self.progress.skip(problem.counted_as)
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
