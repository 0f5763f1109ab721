"""The formats of rows: how their lines are parsed and written."""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import msgspec

from norewind.streams.base_source import MAX_LINE_BYTES
from norewind.streams.stream import BadRow
from norewind.streams.table.columns import nested_value, nested_values
from norewind.streams.table.conversion import Getter

# The names of `FORMATS`.
FormatName = Literal["csv", "jsonl"]
# Delimiters other than the comma that are common in CSV files.
DELIMITERS = ";\t|"
JSON_DECODER = msgspec.json.Decoder(dict[str, Any])
# A field with quotes may be as long as one without.
csv.field_size_limit(max(csv.field_size_limit(), 2 * MAX_LINE_BYTES))


@dataclass(frozen=True)
class ReadOptions:
    """How the rows of a table are read.

    Attributes:
        format: "csv", or "jsonl" for one JSON object per line (see `FORMATS`).
        header: whether the first line of a CSV file names the columns. Otherwise they are named 1, 2 and so on.
        delimiter: the character between the fields of a CSV file.
        classes: whether the target is a class, written as text, a boolean or a number.
        previous_targets: with a horizon of 0, whether the targets of the previous row are inputs too.
        with_scales: with a horizon of 1 or more, whether the last inputs say by what the targets are standardised, if
            all of them are inputs.
        missing: how to treat a missing input. It is replaced by the latest value of its column ("last") or by the mean
            so far ("mean"), it is an error ("stop"), or the row is skipped and counted ("skip"). A value is missing if
            its field is empty, NA, NaN or null, or if a JSON object lacks its key. A missing target is NaN, and is not
            learned from.
        calendar: whether the calendar of future rows follows the inputs, if the times of rows are evenly spaced.
        holidays: the country whose holidays are part of the calendar; None for none.
        known_future: columns whose values in the next rows are read ahead, and follow the inputs too. Rows at the end
            of a source that have no targets are only read ahead.
        bad: how to treat rows that cannot be read otherwise. They are errors ("stop"), or are skipped and counted
            ("skip").
    """

    format: FormatName = "csv"
    header: bool = True
    delimiter: str = ","
    classes: bool = False
    previous_targets: bool = False
    with_scales: bool = False
    missing: Literal["last", "mean", "stop", "skip"] = "last"
    bad: Literal["stop", "skip"] = "stop"
    calendar: bool = False
    holidays: str | None = None
    known_future: tuple[str, ...] = ()


class LineFormat(ABC):
    """The interface of formats with one row per line. By default, a parsed row is a dict by column.

    Args:
        read_options: the options of the format, such as the delimiter.

    Attributes:
        suffixes: the suffixes of files in this format.
        column_hint: what to add to the message that a column does not exist.
        has_header: whether the first line names the columns.
    """

    suffixes: tuple[str, ...] = ()
    column_hint = ""
    has_header = False

    def __init__(self, read_options: ReadOptions):  # noqa: B027 (not every format has options)
        pass

    @abstractmethod
    def parse(self, text: str, columns: Sequence[str]) -> Any:
        """Parse a line.

        Args:
            text: the line, without its end.
            columns: the names of all columns; empty if they are not known yet.

        Raises:
            BadRow: the line is bad; the message says why.
        """

    @abstractmethod
    def parse_lines(self, lines: Sequence[bytes], columns: Sequence[str]) -> Sequence[Any]:
        """Parse many lines, as fast as possible.

        Args:
            lines: the lines, which may end in a carriage return.
            columns: the names of all columns.

        Raises:
            BadRow: one of the lines is bad or blank. They are then parsed one by one.
        """

    @abstractmethod
    def write(self, row: dict[str, Any], columns: Sequence[str]) -> tuple[dict[str, Any], str]:
        """Return a row as it would be read from a file, and its line in that file, with its newline.

        Args:
            row: its values by column.
            columns: the names of all columns.

        Raises:
            BadRow: the format cannot express the row.
        """

    def is_blank(self, line: bytes) -> bool:
        """Return whether to ignore a line, because it is blank.

        Args:
            line: the line, which may end in a carriage return.
        """
        return not line.strip()

    def columns(self, rows: Sequence[Any]) -> list[str]:
        """Return the names of all columns: by default all keys, also those inside nested values.

        Args:
            rows: the first parsed rows; only the first line if `has_header`.

        Raises:
            BadRow: the names cannot be used; the message ends with a remedy.
        """
        try:
            names = dict.fromkeys(name for row in rows for name, _ in nested_values(row))
        except BadRow as problem:
            raise BadRow(f"{problem}. Leave some out, or put them into a list inside a column") from None
        for name in names:
            if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
                raise BadRow(f"the key {name!r} has an unpaired surrogate. Rename it")
        outer = {name for name in names if "." not in name}
        return [name for name in names if name in outer or name.split(".")[0] not in outer]

    def getter(self, column: str, place: int) -> Getter:
        """Return the function that returns the value of a column in a parsed row.

        Args:
            column: the name of the column.
            place: its index among all columns.
        """
        return (lambda row: nested_value(row, column)) if "." in column else (lambda row: row.get(column))

    def from_dicts(self, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Sequence[Any]:
        """Return rows from elsewhere in the form of parsed rows.

        Args:
            rows: the rows, as dicts by column.
            columns: the names of all columns.
        """
        return rows


class CsvLines(LineFormat):
    """Lines of CSV, each parsed to a list of fields. A quoted field cannot contain a line break."""

    suffixes = (".csv", ".tsv")

    def __init__(self, read_options: ReadOptions):
        self.has_header, self._delimiter = read_options.header, read_options.delimiter

    def columns(self, rows: Sequence[list[str]]) -> list[str]:
        fields = rows[0] if self.has_header else [""] * len(rows[0])
        names = [field.strip() or str(number) for number, field in enumerate(fields, 1)]
        if len(set(names)) < len(names):
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise BadRow(f"the header names the column {twice!r} twice; column names must be unique")
        return names

    def getter(self, column: str, place: int) -> Getter:
        return itemgetter(place)

    def is_blank(self, line: bytes) -> bool:
        # A line of spaces is not blank: they may be fields or delimiters.
        return line in (b"", b"\r")

    def parse(self, text: str, columns: Sequence[str]) -> list[str]:
        fields = self._fields(text)
        if columns and len(fields) != len(columns):
            raise BadRow(
                f"it has {len(fields)} fields, but there are {len(columns)} columns{_other_delimiter(columns)}"
            )
        return fields

    def parse_lines(self, lines: Sequence[bytes], columns: Sequence[str]) -> list[list[str]]:
        block = b"\n".join(lines)
        try:
            texts = block.decode().split("\n")
        except UnicodeDecodeError as problem:
            raise BadRow(str(problem)) from None
        if b'"' in block or b"\r" in block:
            rows = [self._fields(text.removesuffix("\r")) for text in texts]
        else:
            rows = [text.split(self._delimiter) for text in texts]
        # A blank line has one field.
        has_blank = len(columns) == 1 and (b"" in lines or b"\r" in lines)
        if has_blank or set(map(len, rows)) != {len(columns)}:
            raise BadRow("one of the lines is blank or has the wrong number of fields")
        return rows

    def from_dicts(self, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[list[Any]]:
        return [[row.get(name) for name in columns] for row in rows]

    def write(self, row: dict[str, Any], columns: Sequence[str]) -> tuple[dict[str, Any], str]:
        text, row = io.StringIO(), {name: _csv_field(nested_value(row, name)) for name in columns}
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerow(row.values())
        return row, text.getvalue()

    def _fields(self, text: str) -> list[str]:
        if '"' not in text:
            return text.split(self._delimiter)
        try:
            return next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            raise BadRow(f"its quotes do not match ({error}); a quoted field cannot contain a line break") from None


def _other_delimiter(columns: Sequence[str]) -> str:
    """Return a hint if the header seems to have another delimiter; otherwise nothing."""
    sign = next((sign for sign in DELIMITERS if len(columns) == 1 and sign in columns[0]), None)
    return f": the header has {sign!r} between its parts, so pass delimiter={json.dumps(sign)}" if sign else ""


def _csv_field(value: Any) -> Any:
    """Return a JSON value as a field of a CSV file. Objects and lists stay as they are, and are rejected when read."""
    if isinstance(value, dict | list):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "" if value is None else str(value)
    if "\n" in text or "\r" in text:
        raise BadRow("a field of a CSV file cannot contain a line break")
    return text


class JsonLines(LineFormat):
    """Lines with one JSON object each."""

    suffixes = (".jsonl", ".ndjson")
    column_hint = " (a key may be null at first, but must be present in one of the first lines)"

    def parse(self, text: str, columns: Sequence[str]) -> dict[str, Any]:
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

    def parse_lines(self, lines: Sequence[bytes], columns: Sequence[str]) -> list[dict[str, Any]]:
        try:
            return list(map(JSON_DECODER.decode, lines))
        except (UnicodeDecodeError, RecursionError, msgspec.DecodeError) as problem:
            raise BadRow(str(problem)) from None

    def write(self, row: dict[str, Any], columns: Sequence[str]) -> tuple[dict[str, Any], str]:
        return row, json.dumps(row, ensure_ascii=False) + "\n"


# All formats of rows. The command line, `RowStream` and the settings know them by these names.
FORMATS: dict[FormatName, type[LineFormat]] = {"csv": CsvLines, "jsonl": JsonLines}
# The format whose parsed rows are dicts by column, as are rows from Python and the messages of a topic.
DICT_FORMAT: FormatName = "jsonl"
