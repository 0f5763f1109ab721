"""Rows of numbers, read from lines in one of the formats, or from Python."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from norewind.streams.base_source import MAX_LINE_BYTES, BaseSource
from norewind.streams.stream import BadRow, MissingValue, StreamError, check_choice
from norewind.streams.table.conversion import Conversion, Getter, Rows, joined_rows
from norewind.streams.table.formats import DICT_FORMAT, FORMATS, ReadOptions
from norewind.streams.table.row_outlook import KNOWN_FUTURE, number_or_truth

FIRST_ROWS = 100
# How many fields are converted at a time, since lists of fields take far more memory than arrays of numbers.
BATCH_FIELDS = 20_000


class RowReader:
    """Reads the rows of a source as numbers, with NaN for missing values.

    What a parsed row is depends on the format; `getters` return the values in it. A bad row
    is an error, or is skipped and counted, depending on the options. After an error, the
    next attempt fails at the same row again.

    Args:
        source: the source of the rows.
        read_options: their format, and what to do with bad rows and missing values.

    Attributes:
        file_format: the format of files that the options name.
        columns: the names of all columns, known after `read_header` or `first_rows`.
        getters: for each of them, the function that returns its value in a parsed row.
        conversion: how rows are converted to numbers; set by the stream.
        only_planned: whether all remaining rows of the source are planned ones, without targets.

    Raises:
        StreamError: one of the options is invalid.
    """

    def __init__(self, source: BaseSource, read_options: ReadOptions):
        check_choice("format", read_options.format, tuple(FORMATS))
        check_choice("missing", read_options.missing, ("last", "mean", "stop", "skip"))
        check_choice("bad", read_options.bad, ("stop", "skip"))
        if len(read_options.delimiter) != 1 or read_options.delimiter in '"\r\n':
            raise StreamError(
                f"the delimiter must be one character, not a quote or line break: {read_options.delimiter!r}."
            )
        self.columns: list[str] = []
        self.getters: dict[str, Getter] = {}
        self.conversion: Conversion
        self._batch = 1
        self._source, self._read_options = source, read_options
        self._planned = read_options.known_future
        self._targets, self._horizon, self.only_planned = [], 0, False
        self._reads_ahead = False
        self.file_format = FORMATS[read_options.format](read_options)
        self._format = FORMATS[DICT_FORMAT](read_options) if source.has_rows else self.file_format

    def name_columns(self, names: Sequence[str]) -> None:
        """Set the names of the columns.

        Args:
            names: the names, in the order of the fields of a line.
        """
        self.columns = list(names)
        # Changed in place, since the conversion uses it too.
        for place, name in enumerate(names):
            self.getters[name] = self._format.getter(name, place)

    def read_header(self) -> None:
        """Name the columns by the header, if there is one, and move past it."""
        if not self._format.has_header:
            return
        line = self._first()
        try:
            self.name_columns(self._format.columns(self._parsed([line], [])))
        except BadRow as problem:
            raise self._error(line, f"{problem}. Fix the header") from None
        self._source.drop([line])

    def plan(self, targets: Sequence[str], horizon: int, *, ahead: bool) -> None:
        """Set what the planned columns, if there are any, are used for.

        Args:
            targets: the names of the targets.
            horizon: how many rows ahead they are forecast.
            ahead: whether to read the planned columns ahead.
        """
        self._targets, self._horizon = list(targets), horizon
        self._reads_ahead = ahead and bool(self._planned)

    def carries_plans(self, rows: Sequence[Any]) -> bool:
        """Return whether rows come with plans of the next ones, which are then not read ahead.

        Args:
            rows: the first rows.

        Raises:
            StreamError: the source cannot be read ahead, and none of these rows has a plan.
        """
        is_sent = any(isinstance(row, dict) and KNOWN_FUTURE in row for row in rows)
        if self._planned and not (is_sent or self._source.reads_ahead):
            example = f'"{KNOWN_FUTURE}": [{{"{self._planned[0]}": 1.5}}]'
            why = f"rows of {self._source.name} are not read ahead, so each needs the known values of the next ones"
            raise StreamError(f"known_future: {why}, as in {example}.")
        return bool(self._planned) and is_sent

    def first_rows(self) -> list[Any]:
        """Return the first good rows, at least one, and name the columns. The rows stay in the source for `take`."""
        rows = []
        while not rows:
            record = self._first()
            try:
                rows += self._parsed([record], self.columns)
            except BadRow as problem:
                self._skip(record, problem)
                self._source.drop([record])
        columns = self.columns or self._columns_of(rows)
        for record in self._source.preview(FIRST_ROWS)[1:]:
            with suppress(BadRow):  # reported when `take` reaches it
                if not self._is_blank(record):
                    rows += self._parsed([record], columns)
        self.name_columns(self.columns or self._columns_of(rows))
        return rows

    def _columns_of(self, rows: list[Any]) -> list[str]:
        if self._planned:  # of the next rows
            rows = [{name: row[name] for name in row if name != KNOWN_FUTURE} for row in rows]
        try:
            return self._format.columns(rows)
        except BadRow as problem:
            raise self._error(self._first(), str(problem)) from None

    def _first(self) -> Any:
        """Return the next record that is not blank."""
        self._source.set_timeout(None)
        while records := self._source.peek():
            if not self._is_blank(records[0]):
                return records[0]
            self._source.drop(records)
        raise self.too_short_error()

    def _is_blank(self, record: Any) -> bool:
        return isinstance(record, bytes) and self._format.is_blank(record)

    def take(self, count: int, timeout: float | None) -> tuple[Rows, StreamError | None]:
        """Return the next rows.

        Args:
            count: the maximum number of rows.
            timeout: how many seconds to wait for them; None to wait indefinitely.

        Returns:
            The rows, and the error that ended them, if any: the next call finds it again.
        """
        self._source.set_timeout(timeout)
        parts = [self.conversion.none]
        left = self._count_past(count) if self._reads_ahead else count
        ended_by = None
        try:
            while left and (records := self._source.peek(min(left, self._batch))):
                try:
                    rows, passed = self._next(records)
                    parts.append(rows)
                    # The number that can be taken counts records, some of which are blank.
                    left -= passed if self._reads_ahead else len(rows.values)
                    self._batch = min(2 * self._batch, max(1, BATCH_FIELDS // len(self.columns)))
                except BadRow as problem:
                    # One of them is unusual: approach it in smaller and smaller batches.
                    self._batch = max(1, len(records) // 2)
                    if len(records) == 1:
                        self._skip(records[0], problem)
                        self._source.drop(records)
                        left -= 1 if self._reads_ahead else 0
        except StreamError as error:
            ended_by = error
        return joined_rows(parts[1:] or parts), ended_by

    def _count_past(self, count: int) -> int:
        """Return how many of the next records can be taken: those with known rows ahead; at the end, all with targets.

        Rows without targets at the end of a source are only planned. They stay there.
        """
        size = count + self._horizon
        while True:
            records, at_end = self._source.read_ahead(size)
            past = min(count, len(records) if at_end else max(0, len(records) - self._horizon))
            if past and self._last_known(records[past - 1 :]) is not None:
                return past
            if len(records) < size:
                break
            size *= 2
        last = self._last_known(records)
        past = 0 if last is None else min(past, last + 1)
        self.only_planned = at_end and not past
        return past

    def _last_known(self, records: list[Any]) -> int | None:
        """Return the last of these records that has a target; None if there is none."""
        for place in range(len(records) - 1, -1, -1):
            if self._numbers(records[place], self._targets):
                return place
        return None

    def plan_ahead(self) -> np.ndarray | None:
        """Return the values of the planned columns in the next rows, as far as they are known (rows, columns).

        None if they are not read ahead.
        """
        if not self._reads_ahead:
            return None
        records, _ = self._source.read_ahead(self._horizon)
        rows = [self._numbers(record, self._planned, missing=True) for record in records]
        return np.array([row for row in rows if row], np.float64).reshape(-1, len(self._planned))

    def _numbers(self, record: Any, names: Sequence[str], *, missing: bool = False) -> list[float]:
        """Return the numbers of a record in some columns; none if it is not a good row.

        Args:
            record: the record.
            names: the columns.
            missing: whether to return NaN for missing numbers.
        """
        if self._is_blank(record):
            return []
        try:
            row = self._parsed([record], self.columns)[0]
            found = [number_or_truth(self.getters[name](row)) for name in names]
        except BadRow:
            return []
        return [number for number in found if missing or number == number]

    def _next(self, records: list[Any]) -> tuple[Rows, int]:
        """Convert records and move past them, all or none. Return the rows, and how many records that were."""
        rows, passed = self.conversion.none, 1
        if not self._is_blank(records[0]):
            parsed = self._parsed(records, self.columns)
            rows, passed = self.conversion.convert(parsed, self._source.line_numbers(records))
        self._source.drop(records[:passed])
        if len(rows.values):
            self._source.progress.mark()
        return rows, passed

    def take_row(self, row: dict[str, Any]) -> Rows:
        """Convert a row that is not in the source, and count it as if it had been the next one there.

        Args:
            row: its values by column.

        Returns:
            The row; no rows if it is bad and such rows are skipped.

        Raises:
            StreamError: the row is bad. It is not counted.
        """
        rows = self.conversion.none
        try:
            rows, _ = self.conversion.convert(self.from_dicts([row]), None)
        except BadRow as problem:
            self._skip(row, problem)
        self._source.progress.read(b"\n")
        if len(rows.values):
            self._source.progress.mark()
        return rows

    def _parsed(self, records: list[Any], columns: list[str]) -> Sequence[Any]:
        """Parse records: lines are parsed together, unless there is only one, whose problem is then explained."""
        if len(records) > 1 and isinstance(records[0], bytes):
            return self._format.parse_lines(records, columns)
        parse = partial(self._format.parse, columns=columns)
        return [self._source.parse(record, parse) for record in records]

    def from_dicts(self, rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
        """Return rows that are not in the source in the form of parsed rows.

        Args:
            rows: the rows, as dicts by column.
        """
        return self._format.from_dicts(rows, self.columns)

    def read_back(self, row: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return a row as it would be read from a file, and its line in that file, with its newline.

        Args:
            row: its values by column.

        Raises:
            BadRow: the row cannot be written to a file, or cannot be read back.
        """
        plan = {KNOWN_FUTURE: row[KNOWN_FUTURE]} if self._planned and KNOWN_FUTURE in row else {}
        try:
            row, text = self.file_format.write(row, self.columns)
            row, line = row | plan, text.encode()
        except RecursionError:
            raise BadRow("it is nested too deeply") from None
        except UnicodeEncodeError:
            raise BadRow("it has an unpaired surrogate, which UTF-8 cannot hold") from None
        rows, _ = self.conversion.convert(self.from_dicts([row]), None, new=False)
        if not len(rows.values):
            raise BadRow("its key belongs to another shard")
        if len(line) > MAX_LINE_BYTES:
            raise BadRow(f"it is longer than {MAX_LINE_BYTES} bytes")
        return row, line

    def too_short_error(self) -> StreamError:
        source = self._source
        if not source.ended:
            return StreamError(f"{source.name}: stopped before its first row arrived.")
        return source.progress.too_short_error(source.name, "rows: 0", "a row", source.unfinished)

    def _skip(self, record: Any, problem: BadRow) -> None:
        option = "missing" if isinstance(problem, MissingValue) else "bad"
        if getattr(self._read_options, option) != "skip":
            raise self._error(record, f'{problem}. Fix it, or skip and count such rows ({option}="skip")') from None
        self._source.progress.skip(problem.counted_as)
        self._source.report(record, str(problem))

    def _error(self, record: Any, problem: str) -> StreamError:
        return StreamError(f"{self._source.name}, {self._source.location(record)} is bad: {problem}.")
