"""Rows of numbers from lines of CSV or JSON."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np

from norewind.streams.clock import REMEMBERED
from norewind.streams.columns import ANOTHER, CATEGORIES, BadRow, Kind, MissingValue, at, leaves
from norewind.streams.conversion import Conversion, Key, Rows, joined_rows
from norewind.streams.csv_blocks import CsvBlocks
from norewind.streams.position import Progress, damaged
from norewind.streams.reading import LONGEST, Source
from norewind.streams.stream import StreamError, check_choice

__all__ = ["ANOTHER", "CATEGORIES", "CSV", "Dialect", "RowReader"]

FIRST_ROWS = 100
SECONDS = 1.0
"""Seconds to wait, after the first row of a pipe, for more rows that determine what its columns hold."""
FEW = 4
"""Fewer rows are read faster one by one."""
MANY = 4_000
"""The most rows that are converted at a time."""
BATCH = 20_000
"""How many numbers are kept in lists before they become arrays, which take far less memory."""
JSON = msgspec.json.Decoder()


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


class RowReader:
    """The rows of a source as numbers, with NaN for missing values.

    `columns` are the names of all columns, known once `read_header` or `first_rows` was
    called. A bad row is an error, or is skipped and counted, depending on `missing` and
    `bad`. After an error, the next attempt fails at the same row again.
    """

    def __init__(self, source: Source, progress: Progress, dialect: Dialect, *, missing: str, bad: str):
        check_choice("format", dialect.format, ("csv", "jsonl"))
        check_choice("missing", missing, ("last", "mean", "fail", "skip"))
        check_choice("bad", bad, ("fail", "skip"))
        if len(dialect.delimiter) != 1 or dialect.delimiter in '"\r\n':
            raise StreamError(f"the delimiter must be one character, no quote or line break: {dialect.delimiter!r}.")
        self.columns: list[str] = []
        self._source, self._progress, self._lines = source, progress, source.lines(progress)
        self.dialect, self._is_csv = dialect, dialect.format == "csv" and not source.has_rows
        self._missing, self._bad = missing, bad
        self._blocks: CsvBlocks | None = None

    def choose(
        self,
        kinds: dict[str, Kind],
        required: list[str],
        copied: list[str],
        clock: str | None,
        *,
        gaps: int = 0,
        key: Key | None = None,
    ) -> None:
        """Choose what to read of the columns; see `Conversion`."""
        required = required if self._missing in ("fail", "skip") else []
        self._conversion = Conversion(kinds, required, copied, clock, gaps=gaps, key=key, nested=not self._is_csv)

    def restore(self, categories: dict[str, list[str]]) -> None:
        """Go on with the categories of columns."""
        if set(categories) != set(self.categories):
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
        self._blocks = None

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

    def take(self, count: int, fragments: Iterator[bytes]) -> tuple[Rows, StreamError | None]:
        """The next rows, up to `count` or the end of the fragments, and the problem that ended them, if any did."""
        parts: list[Rows] = []
        loose: list[tuple] = []
        left, problem = count, None
        try:
            while left and (line := self._lines.peek(fragments)) is not None:
                if left >= FEW and (part := self._several(left, fragments)) is not None:
                    parts += [self._gathered(loose), part]
                    left -= len(part.values)
                elif (row := self._one(line)) is not None:
                    loose.append(row)
                    left -= 1
                    if len(loose) * self._conversion.columns >= BATCH:
                        parts.append(self._gathered(loose))
        except StreamError as error:
            problem = error  # what came before is returned first; the next call finds it again
        parts.append(self._gathered(loose))
        return parts[0] if len(parts) == 1 else joined_rows(parts), problem

    def _gathered(self, loose: list[tuple]) -> Rows:
        """Rows that were read one by one; the list is emptied."""
        convert, some = self._conversion, list(loose)
        loose.clear()
        return Rows(
            np.array([row[0] for row in some], np.float64) if some else np.empty((0, convert.columns)),
            np.array([row[1] for row in some], np.int64),
            [row[2] for row in some] if convert.copied else (),
            [row[3] for row in some[-REMEMBERED:]] if convert.clock is not None else (),
            [row[4] for row in some] if convert.key is not None else (),
        )

    def _one(self, line: bytes) -> tuple | None:
        """Read the next line. Returns its numbers, its number, what is copied, its time and its key, if it is used."""
        convert, number, key = self._conversion, self._lines.number(), None
        try:
            row = None if self._is_blank(line) else self._row(line)
            if row is not None and convert.key is not None:
                key = self.key_of(row)
                row = None if key is None else row
            values = None if row is None else convert.values(row)
        except BadRow as problem:
            self._skip(problem)
            return None
        self._lines.drop()
        if row is None:
            return None
        self._progress.mark()
        clock, copied = convert.clock, convert.copied
        return values, number, convert.copy(row) if copied else None, clock and at(row, clock), key

    def _several(self, count: int, fragments: Iterator[bytes]) -> Rows | None:
        """Read lines up to the first that is unusual; None if this is the next one."""
        lines, convert = self._lines, self._conversion
        if not lines.in_one_go() or not self.dialect.delimiter.isascii():
            return None
        if self._is_csv:
            self._blocks = self._blocks or CsvBlocks(self.columns, self.dialect.delimiter, convert)
            rows, ends = self._blocks.read(lines.block, lines.at, count, lines.number())
        else:
            if self._source.has_rows:
                some = lines.ahead(fragments, min(count, MANY))
                ends = range(1, len(some) + 1)
            else:
                some, ends = _objects(lines.block, lines.at, min(count, MANY))
            rows = convert.rows(some, lines.number())
        if not len(rows.values):
            return None
        last = end = int(ends[len(rows.values) - 1])
        if convert.key is not None and convert.key.shards > 1:
            places = [place for place, key in enumerate(rows.keys) if convert.key.takes(key)]
            last = int(ends[places[-1]]) if places else 0
            rows = rows.only(places)
        if last:
            lines.move(last)
            self._progress.mark()
        if last < end:
            lines.move(end - last)  # rows of other shards
        return rows

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
        """The numbers of a row; see `Conversion`."""
        return self._conversion.values(row, new=new)

    def key_of(self, row: dict[str, Any]) -> bytes | None:
        """The key of a row; None if it is in another shard."""
        key, taken = self._conversion.key_of(row), self._conversion.key
        return key if taken is not None and taken.takes(key) else None

    @property
    def categories(self) -> dict[str, dict[str, int]]:
        """The categories that are told apart, by column, with their numbers."""
        return self._conversion.categories

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


def _objects(block: bytes, at: int, count: int) -> tuple[list[dict[str, Any]], list[int]]:
    """JSON objects in the next lines of a block, up to the first that is none, and how far from here each line ends."""
    ends = [at]
    while len(ends) <= count and ends[-1] < len(block):
        ends.append(block.index(b"\n", ends[-1]) + 1)
    try:
        some = JSON.decode_lines(block[at : ends[-1]])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        some = []
    if len(some) < len(ends) - 1:  # a line that is bad, or blank
        some = []
        for start, end in pairwise(ends):
            try:
                some.append(JSON.decode(block[start:end]))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                break
    good = next((place for place, row in enumerate(some) if type(row) is not dict), len(some))
    return some[:good], [end - at for end in ends[1:]]
