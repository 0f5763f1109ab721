"""Lines of CSV or JSON as rows of numbers."""

from collections.abc import Iterator
from typing import Any, Literal

from norewind.streams.csv import check_delimiter, fields_of, names_of
from norewind.streams.json import object_of
from norewind.streams.lines import LONGEST, Lines
from norewind.streams.numbers import BadRow, MissingValue, number_of
from norewind.streams.place import Place, counted
from norewind.streams.source import Source
from norewind.streams.stream import StreamError, check_choice


class RowReader:
    """Rows of a source, one after the other, as numbers of the columns in `used`, NaN where missing.

    `columns` are the names of all columns, known after `begin`. The columns that are
    `required` (those of the inputs) may have to have a value, see `missing`. A bad row is
    an error, which stays at hand, or skipped and counted, according to `missing` and `bad`.
    """

    def __init__(
        self,
        source: Source,
        *,
        format: Literal["csv", "jsonl"],
        delimiter: str,
        missing: Literal["last", "mean", "fail", "skip"],
        bad: Literal["fail", "skip"],
    ):
        check_choice("format", format, ("csv", "jsonl"))
        check_choice("missing", missing, ("last", "mean", "fail", "skip"))
        check_choice("bad", bad, ("fail", "skip"))
        check_delimiter(delimiter)
        self.columns: list[str] = []
        self.used: list[str] = []
        self._source, self._is_csv, self._delimiter = source, format == "csv", delimiter
        self._missing, self._bad = missing, bad
        self._lines, self._counts, self._inside = Lines(source, Place()), {}, False

    def choose(self, used: list[str], required: list[str]) -> None:
        """The columns whose numbers are wanted."""
        self.used = used
        self._places = [self.columns.index(name) for name in used]
        self._required = [used.index(name) for name in required] if self._missing in ("fail", "skip") else []

    def go_to(self, place: Place, counts: dict[str, int], inside: bool) -> None:
        """Go on where another reader was, perhaps inside of a line that had no newline yet."""
        self._source.go_to(place)
        self._lines, self._counts, self._inside = Lines(self._source, place), counts, inside

    def reached(self) -> tuple[Place, dict[str, int], bool]:
        """Where to go on behind the last row, for `go_to`."""
        return self._lines.place, self._counts, self._inside or self._lines.inside

    def begin(self, header: bool) -> None:
        """Read the names of the columns, if there is a header; otherwise they are known with the first row."""
        if not self._is_csv or not header:
            return
        line = self._first_line(self._source.fragments(None))
        try:
            self.columns = names_of(fields_of(self._text(line), self._delimiter))
        except BadRow as problem:
            raise self._error(problem, "Mend the header.") from None
        self._lines.drop()

    def first_row(self) -> dict[str, Any]:
        """The fields of the first row that has them, by column; it stays at hand."""
        fragments = self._source.fragments(None)
        while True:
            line = self._first_line(fragments)
            try:
                row = self._row(self._text(line))
            except BadRow as problem:
                self._skip(problem)
                continue
            self.columns = list(row)
            return row

    def rows(self, fragments: Iterator[bytes]) -> Iterator[list[float]]:
        """The rows that are there, until no more fragments come. What was handed out is left behind."""
        while (line := self._lines.peek(fragments)) is not None:
            try:
                values = None if _is_blank(line) else self._values(self._text(line))
            except BadRow as problem:
                self._skip(problem)
                continue
            self._drop()
            if values:
                yield values

    def too_short(self, rows: int) -> StreamError:
        """The error for a stream that ends (or is stopped) before its first sample."""
        place, name = self._lines.place, self._source.name
        if not self._source.ended:
            return StreamError(f"{name}: stopped before its first row came.")
        if place.offset == 0:
            return StreamError(f"{name} is empty. Give it something to learn from.")
        skipped = "".join(f", {count} {reason} skipped" for reason, count in self._counts.items())
        return StreamError(
            f"{name} ends at byte {place.offset} with {rows} rows{skipped}, too few for a sample: it needs a row and, "
            "for its target, the one that is `horizon` rows later."
        )

    def _first_line(self, fragments: Iterator[bytes]) -> bytes:
        while (line := self._lines.peek(fragments)) is not None:
            if not _is_blank(line):
                return line
            self._lines.drop()
        raise self.too_short(0)

    def _text(self, line: bytes) -> str:
        place = self._lines.place
        if self._inside:
            raise BadRow("it goes on with a line that had no newline yet when the run read it")
        if len(line) > LONGEST:
            raise BadRow(f"it is longer than {LONGEST} bytes")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise BadRow(f"it is not valid UTF-8, at byte {place.offset + error.start}") from None
        if place.offset == 0:
            text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")  # the byte order mark
        return text.removesuffix("\r")

    def _row(self, text: str) -> dict[str, Any]:
        if not self._is_csv:
            return object_of(text)
        fields = fields_of(text, self._delimiter)
        names = self.columns or [str(number) for number in range(1, len(fields) + 1)]
        return dict(zip(names, _as_many(fields, len(names)), strict=True))

    def _values(self, text: str) -> list[float]:
        if self._is_csv:
            row = _as_many(fields_of(text, self._delimiter), len(self.columns))
            fields = [row[place] for place in self._places]
        else:
            row = object_of(text)
            fields = [row.get(name) for name in self.used]
        values = []
        try:
            for field in fields:
                values.append(number_of(field))
        except BadRow as problem:
            raise BadRow(f"column {self.used[len(values)]!r}: {problem}") from None
        for place in self._required:
            if values[place] != values[place]:
                raise MissingValue(f"column {self.used[place]!r} has no value")
        return values

    def _drop(self) -> None:
        self._lines.drop()
        self._inside = False

    def _skip(self, problem: BadRow) -> None:
        option, policy = ("missing", self._missing) if isinstance(problem, MissingValue) else ("bad", self._bad)
        if policy != "skip":
            raise self._error(problem, f'Mend it, or skip and count such rows ({option} = "skip").') from None
        self._counts = counted(self._counts, problem.counted_as)
        self._drop()

    def _error(self, problem: BadRow, remedy: str) -> StreamError:
        place, is_cut = self._lines.place, self._source.ended and self._lines.is_cut()
        cut = " (the last line has no newline: it may be cut off)" if is_cut else ""
        return StreamError(
            f"{self._source.name}, line {place.lines + 1} (byte {place.offset}) is bad: {problem}{cut}. {remedy}"
        )


def _is_blank(line: bytes) -> bool:
    return not line or line == b"\r"


def _as_many(fields: list[str], columns: int) -> list[str]:
    if len(fields) != columns:
        raise BadRow(f"it has {len(fields)} fields, but there are {columns} columns")
    return fields
