"""Rows of numbers, parsed from lines of CSV or JSON."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import msgspec

from norewind.streams.base_source import BaseSource
from norewind.streams.source import LONGEST
from norewind.streams.stream import BadRow, MissingValue, StreamError, check_choice
from norewind.streams.table.columns import at, leaves
from norewind.streams.table.conversion import Conversion, Rows, converted, joined_rows

FIRST_ROWS = 100
# How many fields are converted at a time, since lists of fields take far more memory than arrays of numbers.
BATCH = 20_000
JSON = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class Dialect:
    """The format of rows and how to read them.

    Attributes:
        format: "csv", or "jsonl" for one JSON object per line. A quoted field of CSV cannot contain a line break.
        header: whether the first line of a CSV file names the columns. Otherwise they are named 1, 2 and so on.
        delimiter: the character between the fields of a CSV file.
        classes: whether the target is a class, in whatever form (text, true, 0 or 1).
        before: with a horizon of 0, whether the targets of the previous row are inputs too.
        missing: how to treat a missing input. It is replaced by the newest value of its column ("last") or by the mean
            so far ("mean"), it is an error ("fail"), or the row is skipped and counted ("skip"). A value is missing if
            its field is empty, NA, NaN or null, or if a JSON object lacks its key. A missing target is NaN, and is not
            learned from.
        bad: how to treat rows that cannot be read otherwise. They are errors ("fail"), or are skipped and counted
            ("skip").
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
    """Reads the rows of a source as numbers, with NaN for missing values.

    A bad row is an error, or is skipped and counted, depending on the dialect. After an
    error, the next attempt fails at the same row again.

    Args:
        source: the source of the rows.
        dialect: their format.

    Attributes:
        columns: the names of all columns, known after `read_header` or `first_rows`.
        conversion: how they are converted to numbers.

    Raises:
        StreamError: an option of the dialect is invalid.
    """

    def __init__(self, source: BaseSource, dialect: Dialect):
        check_choice("format", dialect.format, ("csv", "jsonl"))
        check_choice("missing", dialect.missing, ("last", "mean", "fail", "skip"))
        check_choice("bad", dialect.bad, ("fail", "skip"))
        if len(dialect.delimiter) != 1 or dialect.delimiter in '"\r\n':
            raise StreamError(f"the delimiter must be one character, not a quote or line break: {dialect.delimiter!r}.")
        self.columns: list[str] = []
        self.conversion: Conversion
        self._source = source
        self.dialect, self.is_csv = dialect, dialect.format == "csv" and not source.has_rows

    def read_header(self) -> None:
        """Read the header of a CSV file, if it has one."""
        if not self.is_csv or not self.dialect.header:
            return
        line = self._first()
        try:
            fields = self._source.parse(line, lambda text: _fields(text, self.dialect.delimiter))
            self.columns = _names(fields)
        except BadRow as problem:
            raise self._error(line, problem, "Fix the header.") from None
        self._source.drop([line])

    def first_rows(self) -> list[dict[str, Any]]:
        """Return the first good rows, at least one, as dicts by column. They stay in the source for `take`."""
        rows = []
        while not rows:
            record = self._first()
            try:
                rows.append(self._source.parse(record, self._parsed))
            except BadRow as problem:
                self._skip(record, problem)
        self.columns = self.columns or list(rows[0])
        for record in self._source.ahead(FIRST_ROWS)[1:]:
            try:
                if not self._source.is_blank(record, csv=self.is_csv):
                    rows.append(self._source.parse(record, self._parsed))
            except BadRow:
                continue  # reported when `take` reaches it
        if not self.is_csv:
            self._name_columns(rows)
        return rows

    def _first(self) -> Any:
        """The next record that is not blank."""
        self._source.set_patience(None)
        while records := self._source.peek():
            if not self._source.is_blank(records[0], csv=self.is_csv):
                return records[0]
            self._source.drop(records)
        raise self.too_short()

    def _name_columns(self, rows: list[dict[str, Any]]) -> None:
        """Name the columns of JSON objects: all keys, and those inside nested values unless they are bad rows."""
        names: dict[str, None] = {}
        for row in rows:
            try:
                names |= dict.fromkeys(name for name, _ in leaves(row))
            except BadRow as problem:
                remedy = "Leave some out, or put them into a list inside a column."
                raise self._error(self._first(), problem, remedy) from None
        outer = {name for name in names if "." not in name}
        self.columns = [name for name in names if name in outer or name.split(".")[0] not in outer]
        for name in names:
            if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
                raise self._error(self._first(), BadRow(f"the key {name!r} has half a character"), "Rename it.")

    def take(self, count: int, patience: float | None) -> tuple[Rows, StreamError | None]:
        """Return the next rows.

        Args:
            count: the maximum number of rows.
            patience: how many seconds to wait for them; None to wait indefinitely.

        Returns:
            The rows, and the error that ended them, if any: the next call finds it again.
        """
        self._source.set_patience(patience)
        parts, left, ended_by = [], count, None
        most = max(1, BATCH // len(self.columns))
        try:
            while left and (records := self._source.peek(min(left, most))):
                if self._source.is_blank(records[0], csv=self.is_csv):
                    self._source.drop(records[:1])
                    continue
                try:
                    rows = self._next(records)
                except BadRow as problem:
                    self._skip(records[0], problem)
                    continue
                parts.append(rows)
                left -= len(rows.lines)
        except StreamError as error:
            ended_by = error
        return joined_rows(parts or [self.conversion.none]), ended_by

    def _next(self, records: list[Any]) -> Rows:
        """Convert records and move past them, up to the first unusual one, which is converted on its own."""
        lines = self._source.numbers(records)
        rows, passed = self.conversion.none, 0
        if len(records) > 1:
            count, column = self._columns_of(records)
            rows, passed = self.conversion.rows(column, lines[:count])
        if not passed:
            rows, passed = self.conversion.row(self._source.parse(records[0], self._parsed), lines[:1]), 1
        self._source.drop(records[:passed])
        if len(rows.lines):
            self._source.progress.mark()
        return rows

    def _columns_of(self, records: list[Any]) -> tuple[int, Callable[[str], Sequence[Any]]]:
        """Return the number of records before the first unusual one, and a function from a name to their values."""
        if self.is_csv:
            fields = self._fields_of(records)
            places = {name: place for place, name in enumerate(self.columns)}
            return len(fields), lambda name: list(map(itemgetter(places[name]), fields))
        rows = records
        if not self._source.has_rows:
            is_text = isinstance(records[0], bytes)
            decode = JSON.decode if is_text else lambda record: self._source.parse(record, self._parsed)
            rows = converted(decode, records)
        return len(rows), lambda name: [at(row, name) for row in rows]

    def _fields_of(self, lines: list[bytes]) -> list[list[str]]:
        """Return the fields of lines of CSV, up to the first unusual line."""
        block, width = b"\n".join(lines), len(self.columns)
        try:
            texts = block.decode().split("\n")
        except UnicodeDecodeError:
            return []
        if b'"' in block or b"\r" in block:
            fields = converted(lambda line: _fields(line.removesuffix("\r"), self.dialect.delimiter), texts)
        else:
            fields = [line.split(self.dialect.delimiter) for line in texts]
        # A blank line has one field.
        if set(map(len, fields)) != {width} or width == 1:
            good = (len(row) == width and line not in (b"", b"\r") for line, row in zip(lines, fields, strict=False))
            fields = fields[: [*good, False].index(False)]
        return fields

    def written(self, row: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return a row as it would be read from a file, and its line in that file, with its newline.

        Args:
            row: the row, as a dict by column.

        Raises:
            BadRow: the row cannot be written to a file, or cannot be read back.
        """
        text = io.StringIO()
        try:
            if self.dialect.format == "jsonl":
                text.write(json.dumps(row, ensure_ascii=False) + "\n")
            else:
                row = {name: _field(at(row, name)) for name in self.columns}
                csv.writer(text, delimiter=self.dialect.delimiter, lineterminator="\n").writerow(row.values())
            line = text.getvalue().encode()
        except RecursionError:
            raise BadRow("it is nested too deeply") from None
        except UnicodeEncodeError:
            raise BadRow("it has half a character, which UTF-8 cannot hold") from None
        self.conversion.values(row, new=False)
        if self.conversion.key is not None and self.conversion.key_of(row) is None:
            raise BadRow("its key belongs to another shard")
        if len(line) > LONGEST:
            raise BadRow(f"it is longer than {LONGEST} bytes")
        return row, line

    def too_short(self) -> StreamError:
        source = self._source
        if not source.ended:
            return StreamError(f"{source.name}: stopped before its first row arrived.")
        return source.progress.too_short(source.name, "rows: 0", "a row", source.unfinished)

    def _parsed(self, text: str) -> dict[str, Any]:
        if not self.is_csv:
            return _object(text)
        fields = _fields(text, self.dialect.delimiter)
        names = self.columns or [str(number) for number in range(1, len(fields) + 1)]
        if len(fields) != len(names):
            raise BadRow(f"it has {len(fields)} fields, but there are {len(names)} columns")
        return dict(zip(names, fields, strict=True))

    def _skip(self, record: Any, problem: BadRow) -> None:
        option = "missing" if isinstance(problem, MissingValue) else "bad"
        if getattr(self.dialect, option) != "skip":
            raise self._error(record, problem, f"Fix it, or skip and count such rows (--{option} skip).") from None
        self._source.progress.skip(problem.counted_as)
        self._source.report(record, str(problem))
        self._source.drop([record])

    def _error(self, record: Any, problem: BadRow, remedy: str) -> StreamError:
        return StreamError(f"{self._source.name}, {self._source.place(record)} is bad: {problem}. {remedy}")


def _fields(text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise BadRow(f"its quotes do not match ({error}); a quoted field cannot contain a line break") from None


def _field(value: Any) -> Any:
    """Return a JSON value as a field of a CSV file. Objects and lists stay as they are, and are rejected when read."""
    if isinstance(value, dict | list):
        return value
    text = "" if value is None else str(value)
    if "\n" in text or "\r" in text:
        raise BadRow("a field of a CSV file cannot contain a line break")
    return text


def _names(fields: list[str]) -> list[str]:
    """Return the names of the columns in a header. A column without a name is named by its number, counted from 1."""
    names = [field.strip() or str(number) for number, field in enumerate(fields, 1)]
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise BadRow(f"the header names the column {twice!r} twice; every column needs a different name")
    return names


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        other = "" if text.lstrip().startswith("{") else ". These rows are read as JSON lines, like the first ones"
        raise BadRow(f"it is not valid JSON ({error.msg} at character {error.pos + 1}){other}") from None
    except (ValueError, RecursionError) as error:
        # Numbers with thousands of digits, or brackets nested thousands deep.
        raise BadRow(f"its JSON cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise BadRow(f'it is a JSON {type(value).__name__}, not an object such as {{"name": 1.5}}')
    return value
