"""Streams of rows: numbers in columns, from CSV or JSON lines."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from norewind.streams import scaling
from norewind.streams.parsing import CSV, Dialect, RowReader, is_number
from norewind.streams.position import (
    PLACE_FIELDS,
    Place,
    Progress,
    check_position,
    check_same,
    damaged,
    is_count,
    unread,
)
from norewind.streams.reading import Source, closed_on_error
from norewind.streams.scaling import Layout, Pair, Row, samples_of
from norewind.streams.stream import Samples, Stream, StreamError, check_count

UNREAD = unread("rows")
# How many numbers are kept in lists before they become arrays, which take far less memory.
BATCH = 20_000


class RowStream(Stream):
    """Rows of numbers; every sample is the inputs of a row and the targets of the row `horizon` rows later.

    - `source`: where the rows come from. It is closed with the stream.
    - `dialect`: how they are written, by default as CSV with a header. Blank lines mean
      nothing.
    - `inputs`: the names of the input columns, by default all that hold a number in the
      first row.
    - `targets`: the names of the target columns, by default the inputs.
    - `horizon`: how many rows later the targets come. With 0 they are those of the same
      row, and must not be inputs.
    - `missing`: what to do about a missing input. It is replaced by the newest value of its
      column ("last") or by the mean so far ("mean"), it is an error ("fail"), or the row is
      skipped and counted ("skip"). A value is missing if its field is empty, NA, NaN or
      null, or if a JSON object does not have its key. A missing target is NaN: nothing is
      learned from it.
    - `bad`: what to do about anything else that is not a row of numbers. It is an error
      ("fail"), or is skipped and counted ("skip").
    - `standardise`: whether columns are standardised by the mean and the standard deviation
      of their values so far, and clipped to ±100. Inputs use the values up to and including
      their own row. Targets use those known when predicting, and are NaN while these are
      fewer than ten.
    - `position`: what another stream's `position()` returned, to resume there.

    The stream has the attributes `inputs` and `targets`, the names of the columns.

    >>> import os
    >>> reader, writer = os.pipe()
    >>> size = os.write(writer, b"wind,power\\n3,10\\n4,20\\n5,40\\n")
    >>> os.close(writer)
    >>> stream = RowStream(Source(reader), targets=["power"], standardise=False)
    >>> xs, targets, scales, last = stream.take(1000)
    >>> xs, targets
    (array([[ 3., 10.],
           [ 4., 20.]], dtype=float32), array([[20.],
           [40.]], dtype=float32))
    """

    def __init__(
        self,
        source: Source,
        *,
        dialect: Dialect = CSV,
        inputs: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        horizon: int = 1,
        missing: Literal["last", "mean", "fail", "skip"] = "last",
        bad: Literal["fail", "skip"] = "fail",
        standardise: bool = True,
        position: dict[str, Any] | None = None,
    ):
        with closed_on_error(source):
            if horizon < 0:
                raise StreamError(f"the horizon must be 0 or more rows, not {horizon}.")
            start = UNREAD if position is None or position == UNREAD else _checked(position)
            self._source, self._progress = source, Progress(start)
            self._reader = RowReader(source, self._progress, dialect, missing=missing, bad=bad)
            self._format, self._horizon, self._standardise = dialect.format, horizon, standardise
            self._fill_with_newest = missing == "last"
            self._waiting: deque[Row] = deque()
            self.inputs, self.targets = list(inputs or []), list(targets or [])
            if start is UNREAD:
                self._begin()
            else:
                self._restore(start)

    # Columns.

    def _begin(self) -> None:
        self._reader.begin()
        if not self._reader.columns or not self.inputs:
            row = self._reader.first_row()
            numbers = [name for name, value in row.items() if is_number(value)]
            self.inputs = self.inputs or [name for name in numbers if self._horizon > 0 or name not in self.targets]
        self.targets = self.targets or self.inputs
        self._choose()
        self._statistics = scaling.no_statistics(self._layout.columns)

    def _choose(self) -> None:
        self._check_columns()
        used = list(dict.fromkeys([*self.inputs, *self.targets]))
        self._reader.choose(used, self.inputs)
        self._layout = Layout(
            columns=len(used),
            inputs=[used.index(column) for column in self.inputs],
            targets=[used.index(column) for column in self.targets],
            fill_with_newest=self._fill_with_newest,
            standardise=self._standardise,
        )

    def _check_columns(self) -> None:
        name, columns = self._source.name, _listed(self._reader.columns)
        if not self.inputs:
            raise StreamError(
                f"{name} has no column to learn from: of {columns}, none "
                + ("but the targets " if self._horizon == 0 else "")
                + "holds a number in the first row. Name the inputs."
            )
        for column in [*self.inputs, *self.targets]:
            if column not in self._reader.columns:
                hint = " (a key may be null in the first line, but must be there)" if self._format == "jsonl" else ""
                raise StreamError(f"{name} has no column {column!r}. It has {columns}{hint}.")
        both = [column for column in self.targets if column in self.inputs]
        if self._horizon == 0 and both:
            raise StreamError(
                f"with a horizon of 0, the target {both[0]!r} is an input of the same row: nothing is left to predict. "
                "Choose a horizon of 1 or more, or targets that are not inputs."
            )

    # Positions.

    def _restore(self, position: dict[str, Any]) -> None:
        asked = {"format": self._format, "horizon": self._horizon, "standardise": self._standardise}
        asked |= {"inputs": self.inputs} if self.inputs else {}
        asked |= {"targets": self.targets} if self.targets else {}
        check_same(position, asked)
        self._reader.columns = list(position["columns"])
        self.inputs, self.targets = list(position["inputs"]), list(position["targets"])
        self._choose()
        statistics = scaling.restored_statistics(position["statistics"], self._layout.columns)
        waiting = [scaling.restored_row(saved, self._layout.columns) for saved in position["waiting"]]
        if statistics is None or None in waiting:
            raise damaged("its rows do not fit its columns")
        self._statistics = statistics
        self._waiting.extend(row for row in waiting if row)
        place = self._progress.here.place
        self._source.go_to(place)
        if place == Place():
            # The start of another source (see `afresh`), which may have its columns in another order.
            self._reader.begin()
            self._choose()

    def position(self) -> dict[str, Any]:
        """Return where the samples handed out so far end; see `Stream.position`."""
        return self._progress.position(
            inside=self._progress.marked.inside,
            format=self._format,
            horizon=self._horizon,
            standardise=self._standardise,
            columns=list(self._reader.columns),
            inputs=list(self.inputs),
            targets=list(self.targets),
            statistics=scaling.saved_statistics(self._statistics),
            waiting=[scaling.saved_row(row) for row in self._waiting],
        )

    @property
    def counts(self) -> dict[str, int]:
        """How many bad rows and how many rows with missing values were skipped."""
        return self._progress.counts

    # Samples.

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """Return the next `count` samples, or what there is after `patience` seconds; see `Stream.take`."""
        check_count(count)
        parts: list[Samples] = []
        pairs: list[Pair] = []
        length, problem = 0, None
        try:
            for values in self._reader.rows(self._source.fragments(patience)):
                pair = self._pair(values)
                if pair is None:
                    continue
                self._progress.mark()
                pairs.append(pair)
                length += 1
                if len(pairs) * self._layout.columns >= BATCH:
                    parts.append(samples_of(pairs, self._layout))
                    pairs = []
                if length == count:
                    break
        except StreamError as error:
            # What came before is handed out first; the next call finds the same problem again.
            problem = error
        self._progress.hand_out(length, problem)
        if not length and self._source.ended:
            return self._end()
        parts.append(samples_of(pairs, self._layout))
        return Samples(*map(np.concatenate, zip(*parts, strict=True)))

    def _pair(self, values: list[float]) -> Pair | None:
        """Add a row. It has the targets of an earlier row, with which it makes a pair, or None if there is none yet."""
        before = self._statistics
        self._statistics = before.after(values)
        row = Row(values, self._statistics)
        if self._horizon == 0:
            return Pair(row, before, values)
        self._waiting.append(row)
        if len(self._waiting) <= self._horizon:
            return None
        row = self._waiting.popleft()
        return Pair(row, row.statistics, values)

    def _end(self) -> None:
        if self._progress.start == UNREAD:
            raise self._reader.too_short(len(self._waiting))
        self._progress.end()

    def close(self) -> None:
        """Close the source."""
        self._source.close()


def _checked(position: Any) -> dict[str, Any]:
    valid = {
        **PLACE_FIELDS,
        "inside": lambda value: isinstance(value, bool),
        "format": lambda value: isinstance(value, str),
        "horizon": is_count,
        "standardise": lambda value: isinstance(value, bool),
        "columns": _is_names,
        "inputs": lambda value: _is_names(value) and len(value) > 0,
        "targets": lambda value: _is_names(value) and len(value) > 0,
        "statistics": lambda value: isinstance(value, list),
        "waiting": lambda value: isinstance(value, list) and len(value) <= position["horizon"],
    }
    check_position(position, "rows", valid)
    return position


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
