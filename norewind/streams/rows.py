"""Streams of rows: numbers in columns, from CSV or JSON lines."""

import copy
import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from norewind.streams.csv import check_delimiter, fields_of, names_of
from norewind.streams.json import object_of
from norewind.streams.lines import LONGEST, Lines
from norewind.streams.numbers import BadRow, MissingValue, is_known_number, number_of
from norewind.streams.place import (
    LARGEST,
    PLACE_FIELDS,
    Place,
    check_position,
    counted,
    is_count,
    is_names,
    is_number,
    place_of,
)
from norewind.streams.running import ENOUGH, Statistics, deviations_of, no_statistics, standardised, statistics_of
from norewind.streams.source import Source
from norewind.streams.stream import Samples, StreamError, check_count

UNREAD = {"kind": "rows", **Place()._asdict(), "counts": {}}


class Row(NamedTuple):
    """The numbers of a row in all columns that are used, NaN where missing, and the statistics up to it."""

    values: list[float]
    statistics: Statistics


class Taken(NamedTuple):
    """A sample before it is standardised: a row, the statistics known when predicting, and the row of the target."""

    values: list[float]
    statistics: Statistics
    known: Statistics
    target: list[float]


class RowStream:
    """Rows of numbers; every sample is the `inputs` of a row and the `targets` of the row `horizon` rows later.

    Inputs are by default all columns that hold a number in the first row, targets the
    inputs. A `horizon` of 0 takes the targets from the same row (they must not be inputs).
    In CSV without a `header` the columns are called 1, 2, ... Blank lines mean nothing.

    Every column is standardised by the mean and the standard deviation of its values so
    far: inputs by those up to their own row, targets by those known when predicting, and
    a target is unknown (NaN) while these are of fewer than ten values. Both are clipped
    to ±100. `standardise=False` leaves the numbers as they are.

    A value is missing if its field is empty, NA, NaN or null, or if a JSON object has no
    such key. A missing target is NaN: there is nothing to learn. A missing input is
    replaced by the newest value of its column (`missing="last"`) or by the mean so far
    ("mean"), or it is an error ("fail"), or the row is skipped and counted ("skip").
    Whatever else is not a row of numbers is an error, or skipped and counted (`bad="skip"`).

        stream = RowStream(Source("sensors.csv"), inputs=["wind", "sun"], targets=["power"], horizon=24)
        xs, targets, scales, last = stream.take(1000)

    `position` is what another stream's `position()` returned, to go on there.
    """

    def __init__(
        self,
        source: Source,
        *,
        format: Literal["csv", "jsonl"] = "csv",
        inputs: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        horizon: int = 1,
        header: bool = True,
        delimiter: str = ",",
        missing: Literal["last", "mean", "fail", "skip"] = "last",
        bad: Literal["fail", "skip"] = "fail",
        standardise: bool = True,
        position: dict[str, Any] | None = None,
    ):
        check_delimiter(delimiter)
        if horizon < 0:
            raise StreamError(f"the horizon must be 0 or more rows, not {horizon}.")
        self._source, self._format, self._delimiter, self._header = source, format, delimiter, header
        self._horizon, self._missing, self._bad, self._standardise = horizon, missing, bad, standardise
        self._waiting: deque[Row] = deque()
        self._counts: dict[str, int] = {}
        # In the middle of a line that had no newline yet when it was read.
        self._inside = False
        self.columns: list[str] = []
        self.inputs: list[str] = []
        self.targets: list[str] = []
        if position is None or not self._has_begun(position):
            self._begin(list(inputs or []), list(targets or []))
        else:
            self._restore(position, list(inputs or []), list(targets or []))

    # Beginning: the names of the columns, and which of them are used.

    def _begin(self, inputs: list[str], targets: list[str]) -> None:
        self._lines = Lines(self._source, Place())
        self._settle()
        fragments = self._source.fragments(None)
        if self._format == "csv" and self._header:
            line = self._first_line(fragments)
            try:
                self.columns = names_of(fields_of(self._text(line), self._delimiter))
            except BadRow as problem:
                raise self._error(problem, "Mend the header.") from None
            self._lines.drop()
        if not self.columns or not inputs:
            row = self._first_row(fragments)
            self.columns = list(row)
            numbers = [name for name, value in row.items() if is_known_number(value)]
            inputs = inputs or [name for name in numbers if self._horizon or name not in targets]
        self._choose(inputs, targets or inputs)
        self._statistics = no_statistics(len(self._used))
        # Until the first sample is handed out, the position is the one begun with, even if rows were read.
        self._start: dict[str, Any] | None = dict(UNREAD)

    def _first_line(self, fragments: Iterator[bytes]) -> bytes:
        """The line at hand, whatever it is, but not a blank one."""
        while (line := self._lines.peek(fragments)) is not None:
            if not _is_blank(line):
                return line
            self._lines.drop()
        raise self._too_short()

    def _first_row(self, fragments: Iterator[bytes]) -> dict[str, Any]:
        """The first row that is one, by column; it stays at hand."""
        while True:
            line = self._first_line(fragments)
            try:
                text = self._text(line)
                if self._format == "jsonl":
                    return object_of(text)
                fields = fields_of(text, self._delimiter)
                names = self.columns or [str(number) for number in range(1, len(fields) + 1)]
                return dict(zip(names, self._checked(fields, names), strict=True))
            except BadRow as problem:
                self._skip(problem)

    def _choose(self, inputs: list[str], targets: list[str]) -> None:
        if not inputs:
            raise StreamError(
                f"{self._source.name} has no column to learn from: none of {_listed(self.columns)} holds a number in "
                "the first row" + (" and is not a target. " if self._horizon == 0 else ". ") + "Name the inputs."
            )
        for name in [*inputs, *targets]:
            if name not in self.columns:
                hint = " (a key may be null in the first line, but must be there)" if self._format == "jsonl" else ""
                raise StreamError(f"{self._source.name} has no column {name!r}. It has {_listed(self.columns)}{hint}.")
        both = [name for name in targets if name in inputs]
        if self._horizon == 0 and both:
            raise StreamError(
                f"with a horizon of 0, the target {both[0]!r} is an input of the same row: nothing is left to predict. "
                "Choose a horizon of 1 or more, or targets that are not inputs."
            )
        self.inputs, self.targets = inputs, targets
        self._used = list(dict.fromkeys([*inputs, *targets]))
        self._fields = [self.columns.index(name) for name in self._used]
        self._input_places = [self._used.index(name) for name in inputs]
        self._target_places = [self._used.index(name) for name in targets]

    # Positions.

    def _has_begun(self, position: Any) -> bool:
        if position == UNREAD:
            return False
        valid = {
            **PLACE_FIELDS,
            "inside": lambda value: isinstance(value, bool),
            "format": lambda value: value in ("csv", "jsonl"),
            "horizon": is_count,
            "standardise": lambda value: isinstance(value, bool),
            "columns": is_names,
            "inputs": lambda value: _are_among(value, position["columns"]),
            "targets": lambda value: _are_among(value, position["columns"]),
            "statistics": lambda value: isinstance(value, list),
            "waiting": lambda value: isinstance(value, list) and len(value) <= position["horizon"],
        }
        check_position(position, "rows", valid)
        return True

    def _restore(self, position: dict[str, Any], inputs: list[str], targets: list[str]) -> None:
        asked = {"format": self._format, "horizon": self._horizon, "standardise": self._standardise}
        asked |= {"inputs": inputs} if inputs else {}
        asked |= {"targets": targets} if targets else {}
        for name, value in asked.items():
            if position[name] != value:
                raise StreamError(
                    f"the run was begun with {name} = {position[name]!r}, but now it is {value!r}. "
                    "Leave it as it was, or begin a new run."
                )
        self.columns = position["columns"]
        self._choose(position["inputs"], position["targets"])
        statistics = statistics_of(position["statistics"], len(self._used))
        waiting = [_row_of(saved, len(self._used)) for saved in position["waiting"]]
        if statistics is None or None in waiting:
            raise StreamError(
                "the saved position of the stream is damaged: its rows do not fit its columns. "
                "Go on from another checkpoint, or begin a new run."
            )
        self._statistics = statistics
        self._waiting.extend(row for row in waiting if row)
        self._counts = dict(position["counts"])
        self._inside = position["inside"]
        self._lines = Lines(self._source, place_of(position))
        self._settle()
        self._start = copy.deepcopy(position)
        self._source.go_to(self._lines.place)

    def position(self) -> dict[str, Any]:
        """See `Stream.position`."""
        if self._start:
            return copy.deepcopy(self._start)
        place, counts, inside = self._settled
        return {
            "kind": "rows",
            **place._asdict(),
            "counts": dict(counts),
            "inside": inside,
            "format": self._format,
            "horizon": self._horizon,
            "standardise": self._standardise,
            "columns": list(self.columns),
            "inputs": list(self.inputs),
            "targets": list(self.targets),
            "statistics": self._statistics.saved(),
            "waiting": [[_saved(row.values), row.statistics.saved()] for row in self._waiting],
        }

    @property
    def counts(self) -> dict[str, int]:
        """How many bad rows, and rows with missing values, were skipped."""
        return dict(self._settled[1])

    # Samples.

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """See `Stream.take`."""
        check_count(count)
        fragments = self._source.fragments(patience)
        taken: list[Taken] = []
        fault = None
        try:
            while len(taken) < count and (line := self._lines.peek(fragments)) is not None:
                values = self._read(line)
                if values and (sample := self._sample(values)):
                    taken.append(sample)
                    self._settle()
        except StreamError as error:
            # What came before is handed out first; the next call meets the same fault again.
            fault = error
        if taken:
            self._start = None
        elif fault:
            raise fault
        elif self._source.ended:
            return self._end()
        return self._samples(taken)

    def _end(self) -> None:
        if self._start == UNREAD:
            raise self._too_short()
        self._start = None
        self._settle()

    def _settle(self) -> None:
        """Remember how far the samples handed out go: what is skipped behind the last one is not settled yet."""
        self._settled = self._lines.place, self._counts, self._inside or self._lines.inside

    def _sample(self, values: list[float]) -> Taken | None:
        """Take a row in; the row that waited for it, with its target, or None if there is none yet."""
        before = self._statistics
        self._statistics = before.after(values)
        if self._horizon == 0:
            return Taken(values, self._statistics, before, values)
        self._waiting.append(Row(values, self._statistics))
        if len(self._waiting) <= self._horizon:
            return None
        row = self._waiting.popleft()
        return Taken(row.values, row.statistics, row.statistics, values)

    def _samples(self, taken: list[Taken]) -> Samples:
        statistics = self._tables([sample.statistics for sample in taken])
        known = statistics if self._horizon else self._tables([sample.known for sample in taken])
        xs = self._xs(self._table([sample.values for sample in taken]), statistics)
        places = self._target_places
        counts, means, squares, newest = (table[:, places] for table in known)
        targets = self._table([sample.target for sample in taken])[:, places]
        if self._standardise:
            deviations = deviations_of(counts, squares)
            unknown = (counts < ENOUGH) | (deviations == 0)
            means, deviations = np.where(unknown, np.nan, means), np.where(unknown, np.nan, deviations)
            targets, newest = standardised(targets, means, deviations), standardised(newest, means, deviations)
        else:
            means, deviations = np.zeros_like(means), np.ones_like(means)
        scales = np.stack([means, deviations], axis=-1)
        return Samples(xs, targets.astype(np.float32), scales, newest.astype(np.float32))

    def _xs(self, values: np.ndarray, statistics: list[np.ndarray]) -> np.ndarray:
        counts, means, squares, newest = statistics
        filling = np.where(counts > 0, newest, means) if self._missing == "last" else means
        values = np.where(np.isnan(values), filling, values)
        if self._standardise:
            deviations = deviations_of(counts, squares)
            values = np.where(deviations > 0, standardised(values, means, deviations), 0.0)
        return values[:, self._input_places].astype(np.float32)

    def _tables(self, statistics: list[Statistics]) -> list[np.ndarray]:
        return [self._table([entry[part] for entry in statistics]) for part in range(4)]

    def _table(self, rows: list[Any]) -> np.ndarray:
        """Rows of numbers as an array, (rows, columns that are used)."""
        # Several times faster than np.array of lists of lists.
        flat = np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * len(self._used))
        return flat.reshape(len(rows), len(self._used))

    # Lines as numbers.

    def _read(self, line: bytes) -> list[float] | None:
        """The numbers of the line at hand, NaN where missing, or None if it is blank or skipped; then go on."""
        try:
            values = None if _is_blank(line) else self._values(self._text(line))
        except BadRow as problem:
            return self._skip(problem)
        self._lines.drop()
        self._inside = False
        return values

    def _skip(self, problem: BadRow) -> None:
        policy = self._missing if isinstance(problem, MissingValue) else self._bad
        if policy != "skip":
            option = "missing" if isinstance(problem, MissingValue) else "bad"
            raise self._error(problem, f'Mend it, or skip and count such rows ({option} = "skip").') from None
        self._counts = counted(self._counts, problem.counted_as)
        self._lines.drop()
        self._inside = False

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
            text = text.removeprefix("\ufeff")
        return text.removesuffix("\r")

    def _values(self, text: str) -> list[float]:
        if self._format == "csv":
            fields = self._checked(fields_of(text, self._delimiter), self.columns)
            values = self._numbers([fields[place] for place in self._fields])
        else:
            row = object_of(text)
            values = self._numbers([row.get(name) for name in self._used])
        if self._missing in ("fail", "skip"):
            for name, place in zip(self.inputs, self._input_places, strict=True):
                if values[place] != values[place]:
                    raise MissingValue(f"column {name!r} has no value")
        return values

    def _numbers(self, fields: list[Any]) -> list[float]:
        values = []
        try:
            for field in fields:
                values.append(number_of(field))
        except BadRow as problem:
            raise BadRow(f"column {self._used[len(values)]!r}: {problem}") from None
        return values

    def _checked(self, fields: list[str], names: list[str]) -> list[str]:
        if len(fields) != len(names):
            raise BadRow(f"it has {len(fields)} fields, but there are {len(names)} columns")
        return fields

    # Errors.

    def _error(self, problem: BadRow, remedy: str) -> StreamError:
        place = self._lines.place
        cut = (
            " (the last line has no newline: it may be cut off)" if self._source.ended and self._lines.is_cut() else ""
        )
        return StreamError(
            f"{self._source.name}, line {place.lines + 1} (byte {place.offset}) is bad: {problem}{cut}. {remedy}"
        )

    def _too_short(self) -> StreamError:
        place, name = self._lines.place, self._source.name
        if not self._source.ended:
            return StreamError(f"{name}: stopped before its first row came.")
        if place.offset == 0:
            return StreamError(f"{name} is empty. Give it something to learn from.")
        skipped = "".join(f", {count} {reason} skipped" for reason, count in self._counts.items())
        return StreamError(
            f"{name} ends at byte {place.offset} with {len(self._waiting)} rows{skipped}: with a horizon of "
            f"{self._horizon}, the first sample needs {self._horizon + 1}."
        )


def _is_blank(line: bytes) -> bool:
    return not line or line == b"\r"


def _saved(values: list[float]) -> list[float | None]:
    """Numbers for a position, where None stands for NaN, which JSON does not have."""
    return [None if value != value else value for value in values]


def _row_of(saved: Any, columns: int) -> Row | None:
    """The row that was saved; None if this cannot be one."""
    if not isinstance(saved, list) or len(saved) != 2 or not isinstance(saved[0], list) or len(saved[0]) != columns:
        return None
    values, statistics = saved[0], statistics_of(saved[1], columns)
    known = [value for value in values if value is not None]
    if statistics is None or not all(is_number(value) and abs(value) <= LARGEST for value in known):
        return None
    return Row([math.nan if value is None else value for value in values], statistics)


def _are_among(names: Any, columns: list[str]) -> bool:
    return is_names(names) and len(names) > 0 and set(names) <= set(columns)


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
