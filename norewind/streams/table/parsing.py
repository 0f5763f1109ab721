"""Rows of numbers, parsed from lines of CSV or JSON."""

import csv
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import msgspec

from norewind.streams.source import MAX_LINE_BYTES, BaseSource
from norewind.streams.stream import BadRow, MissingValue, StreamError, check_choice
from norewind.streams.table.columns import at, leaves
from norewind.streams.table.conversion import Conversion, Getter, Rows, joined_rows

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
csv.field_size_limit(max(csv.field_size_limit(), 2 * MAX_LINE_BYTES))


class RowReader:
    """Reads the rows of a source as numbers, with NaN for missing values.

    A parsed row is a list of fields for CSV, and a dict by column for JSON and rows from
    Python; `getters` return the values in it. A bad row is an error, or is skipped and
    counted, depending on the dialect. After an error, the next attempt fails at the same
    row again.

    Args:
        source: the source of the rows.
        dialect: their format.

    Attributes:
        columns: the names of all columns, known after `read_header` or `first_rows`.
        getters: for each of them, the function that returns its value in a parsed row.
        conversion: how rows are converted to numbers; set by the stream.

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
        self.getters: dict[str, Getter] = {}
        self.conversion: Conversion
        self._batch = 1
        self._source, self._dialect = source, dialect
        self.is_csv = dialect.format == "csv" and not source.has_rows

    def name_columns(self, names: Sequence[str]) -> None:
        """Set the names of the columns.

        Args:
            names: the names; for CSV in the order of the fields.
        """
        self.columns = list(names)
        # Changed in place, since the conversion uses it too.
        for place, name in enumerate(names):
            self.getters[name] = itemgetter(place) if self.is_csv else _by_name(name)

    def read_header(self) -> None:
        """Read the header of a CSV file, if it has one."""
        if not self.is_csv or not self._dialect.header:
            return
        line = self._first()
        try:
            fields = self._source.parse(line, lambda text: _fields(text, self._dialect.delimiter))
            self.name_columns(_names(fields))
        except BadRow as problem:
            raise self._error(line, problem, "Fix the header.") from None
        self._source.drop([line])

    def first_rows(self) -> list[Any]:
        """Return the first good rows, at least one, and name the columns. The rows stay in the source for `take`."""
        rows = []
        while not rows:
            record = self._first()
            try:
                rows += self._parsed([record])
            except BadRow as problem:
                self._skip(record, problem)
        if self.is_csv and not self.columns:
            self.name_columns(_names([""] * len(rows[0])))
        for record in self._source.preview(FIRST_ROWS)[1:]:
            with suppress(BadRow):  # reported when `take` reaches it
                if not self._is_blank(record):
                    rows += self._parsed([record])
        if not self.is_csv:
            self.name_columns(self._keys_of(rows))
        return rows

    def _first(self) -> Any:
        """The next record that is not blank."""
        self._source.set_patience(None)
        while records := self._source.peek():
            if not self._is_blank(records[0]):
                return records[0]
            self._source.drop(records)
        raise self.too_short()

    def _is_blank(self, record: Any) -> bool:
        """Whether a record is a blank line. In CSV, a line of spaces is not: they may be fields or delimiters."""
        if not isinstance(record, bytes):
            return False
        return record in (b"", b"\r") if self.is_csv else not record.strip()

    def _keys_of(self, rows: list[dict[str, Any]]) -> list[str]:
        """Return all keys of JSON objects, and those inside nested values, unless these are bad rows."""
        try:
            names = dict.fromkeys(name for row in rows for name, _ in leaves(row))
        except BadRow as problem:
            remedy = "Leave some out, or put them into a list inside a column."
            raise self._error(self._first(), problem, remedy) from None
        for name in names:
            if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
                raise self._error(self._first(), BadRow(f"the key {name!r} has half a character"), "Rename it.")
        outer = {name for name in names if "." not in name}
        return [name for name in names if name in outer or name.split(".")[0] not in outer]

    def take(self, count: int, patience: float | None) -> tuple[Rows, StreamError | None]:
        """Return the next rows.

        Args:
            count: the maximum number of rows.
            patience: how many seconds to wait for them; None to wait indefinitely.

        Returns:
            The rows, and the error that ended them, if any: the next call finds it again.
        """
        self._source.set_patience(patience)
        parts, left, ended_by = [self.conversion.none], count, None
        try:
            while left and (records := self._source.peek(min(left, self._batch))):
                try:
                    parts.append(self._next(records))
                    left -= len(parts[-1].values)
                    self._batch = min(2 * self._batch, max(1, BATCH // len(self.columns)))
                except BadRow as problem:
                    # One of them is unusual: they are read in ever smaller batches up to there.
                    self._batch = max(1, len(records) // 2)
                    if len(records) == 1:
                        self._skip(records[0], problem)
        except StreamError as error:
            ended_by = error
        return joined_rows(parts[1:] or parts), ended_by

    def _next(self, records: list[Any]) -> Rows:
        """Convert records and move past them, all or none."""
        rows, passed = self.conversion.none, 1
        if not self._is_blank(records[0]):
            rows, passed = self.conversion.convert(self._parsed(records), self._source.line_numbers(records))
        self._source.drop(records[:passed])
        if len(rows.values):
            self._source.progress.mark()
        return rows

    def _parsed(self, records: list[Any]) -> Sequence[Any]:
        """Parse records: lines are parsed together, unless there is only one, whose problem is then explained."""
        if len(records) == 1 or not isinstance(records[0], bytes):
            return [self._source.parse(record, self._row) for record in records]
        try:
            return self._parsed_together(records) if self.is_csv else list(map(JSON.decode, records))
        except (UnicodeDecodeError, RecursionError, msgspec.DecodeError) as problem:
            raise BadRow(str(problem)) from None

    def _parsed_together(self, records: list[bytes]) -> list[list[str]]:
        """Return the fields of lines of CSV."""
        block, delimiter = b"\n".join(records), self._dialect.delimiter
        texts = block.decode().split("\n")
        if b'"' in block or b"\r" in block:
            fields = [_fields(line.removesuffix("\r"), delimiter) for line in texts]
        else:
            fields = [line.split(delimiter) for line in texts]
        # A blank line has one field.
        has_blank = len(self.columns) == 1 and (b"" in records or b"\r" in records)
        if has_blank or set(map(len, fields)) != {len(self.columns)}:
            raise BadRow("one of them is blank, or has another number of fields")
        return fields

    def _row(self, text: str) -> Any:
        if not self.is_csv:
            return _object(text)
        fields = _fields(text, self._dialect.delimiter)
        if self.columns and len(fields) != len(self.columns):
            raise BadRow(f"it has {len(fields)} fields, but there are {len(self.columns)} columns")
        return fields

    def from_dicts(self, rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
        """Return rows that are not in the source in the form of parsed rows.

        Args:
            rows: the rows, as dicts by column.
        """
        return [[row.get(name) for name in self.columns] for row in rows] if self.is_csv else rows

    def written(self, row: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return a row as it would be read from a file, and its line in that file, with its newline.

        Args:
            row: the row, as a dict by column.

        Raises:
            BadRow: the row cannot be written to a file, or cannot be read back.
        """
        text = io.StringIO()
        try:
            if self._dialect.format == "jsonl":
                text.write(json.dumps(row, ensure_ascii=False) + "\n")
            else:
                row = {name: _field(at(row, name)) for name in self.columns}
                csv.writer(text, delimiter=self._dialect.delimiter, lineterminator="\n").writerow(row.values())
            line = text.getvalue().encode()
        except RecursionError:
            raise BadRow("it is nested too deeply") from None
        except UnicodeEncodeError:
            raise BadRow("it has half a character, which UTF-8 cannot hold") from None
        rows, _ = self.conversion.convert(self.from_dicts([row]), None, new=False)
        if not len(rows.values):
            raise BadRow("its key belongs to another shard")
        if len(line) > MAX_LINE_BYTES:
            raise BadRow(f"it is longer than {MAX_LINE_BYTES} bytes")
        return row, line

    def too_short(self) -> StreamError:
        source = self._source
        if not source.ended:
            return StreamError(f"{source.name}: stopped before its first row arrived.")
        return source.progress.too_short(source.name, "rows: 0", "a row", source.unfinished)

    def _skip(self, record: Any, problem: BadRow) -> None:
        option = "missing" if isinstance(problem, MissingValue) else "bad"
        if getattr(self._dialect, option) != "skip":
            raise self._error(record, problem, f"Fix it, or skip and count such rows (--{option} skip).") from None
        self._source.progress.skip(problem.counted_as)
        self._source.report(record, str(problem))
        self._source.drop([record])

    def _error(self, record: Any, problem: BadRow, remedy: str) -> StreamError:
        return StreamError(f"{self._source.name}, {self._source.location(record)} is bad: {problem}. {remedy}")


def _by_name(name: str) -> Getter:
    """Return the getter of a column of dicts."""
    return (lambda row: at(row, name)) if "." in name else (lambda row: row.get(name))


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
