"""Streams of rows: numbers in columns, from CSV or JSON lines."""

import copy
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from norewind.streams.numbers import is_known_number
from norewind.streams.place import PLACE_FIELDS, Place, check_position, is_count, is_names, place_of
from norewind.streams.reader import RowReader
from norewind.streams.running import Row, no_statistics, row_of, saved_row, saved_statistics, statistics_of
from norewind.streams.source import Source
from norewind.streams.standard import Layout, Taken, samples_of
from norewind.streams.stream import Samples, StreamError, check_count

UNREAD = {"kind": "rows", **Place()._asdict(), "counts": {}}
# So many numbers at a time are made arrays: as lists they take many times the memory.
BATCH = 20_000


class RowStream:
    """Rows of numbers; every sample is the `inputs` of a row and the `targets` of the row `horizon` rows later.

    Inputs are by default all columns that hold a number in the first row, targets the
    inputs. A `horizon` of 0 takes the targets from the same row (they must not be inputs).
    In CSV without a `header` the columns are called 1, 2, ..., and a quoted field may not
    go over the end of a line. Blank lines mean nothing.

    Every column is standardised by the mean and the standard deviation of its values so
    far: inputs by those up to their own row, targets by those known when predicting, and
    a target is unknown (NaN) while these are of fewer than ten values. Both are clipped
    to ±100. `standardise=False` leaves the numbers as they are.

    A value is missing if its field is empty, NA, NaN or null, or if a JSON object has no
    such key. A missing target is NaN: there is nothing to learn. A missing input is
    replaced by the newest value of its column (`missing="last"`) or by the mean so far
    ("mean"), or it is an error ("fail"), or the row is skipped and counted ("skip").
    Whatever else is not a row of numbers is an error, or skipped and counted (`bad="skip"`).

    `inputs` and `targets` of the stream are the names of the columns. `position` is what
    another stream's `position()` returned, to go on there.

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
        if horizon < 0:
            raise StreamError(f"the horizon must be 0 or more rows, not {horizon}.")
        self._source, self._format, self._horizon, self._standardise = source, format, horizon, standardise
        self._fill_with_newest = missing == "last"
        self._reader = RowReader(source, format=format, delimiter=delimiter, missing=missing, bad=bad)
        self._waiting: deque[Row] = deque()
        # How far the samples handed out go: what was skipped behind the last one is not settled yet.
        self._settled = self._reader.reached()
        # Until the first sample is handed out, the position is the one begun with, even if rows were read.
        self._start: dict[str, Any] | None = copy.deepcopy(position or UNREAD)
        if position is None or position == UNREAD:
            self._begin(header, list(inputs or []), list(targets or []))
        else:
            self._restore(position, header, list(inputs or []), list(targets or []))

    # Columns.

    def _begin(self, header: bool, inputs: list[str], targets: list[str]) -> None:
        self._reader.begin(header)
        if not self._reader.columns or not inputs:
            row = self._reader.first_row()
            numbers = [name for name, value in row.items() if is_known_number(value)]
            inputs = inputs or [name for name in numbers if self._horizon > 0 or name not in targets]
        self._choose(inputs, targets or inputs)
        self._statistics = no_statistics(self._layout.columns)

    def _choose(self, inputs: list[str], targets: list[str]) -> None:
        name, columns = self._source.name, _listed(self._reader.columns)
        if not inputs:
            raise StreamError(
                f"{name} has no column to learn from: of {columns}, none "
                + ("but the targets " if self._horizon == 0 else "")
                + "holds a number in the first row. Name the inputs."
            )
        for column in [*inputs, *targets]:
            if column not in self._reader.columns:
                hint = " (a key may be null in the first line, but must be there)" if self._format == "jsonl" else ""
                raise StreamError(f"{name} has no column {column!r}. It has {columns}{hint}.")
        both = [column for column in targets if column in inputs]
        if self._horizon == 0 and both:
            raise StreamError(
                f"with a horizon of 0, the target {both[0]!r} is an input of the same row: nothing is left to predict. "
                "Choose a horizon of 1 or more, or targets that are not inputs."
            )
        self.inputs, self.targets = inputs, targets
        used = list(dict.fromkeys([*inputs, *targets]))
        self._reader.choose(used, inputs)
        self._layout = Layout(
            columns=len(used),
            inputs=[used.index(column) for column in inputs],
            targets=[used.index(column) for column in targets],
            fill_with_newest=self._fill_with_newest,
            standardise=self._standardise,
        )

    # Positions.

    def _restore(self, position: dict[str, Any], header: bool, inputs: list[str], targets: list[str]) -> None:
        _check_rows_position(position)
        asked = {"format": self._format, "horizon": self._horizon, "standardise": self._standardise}
        asked |= {"inputs": inputs} if inputs else {}
        asked |= {"targets": targets} if targets else {}
        for name, value in asked.items():
            if position[name] != value:
                raise StreamError(
                    f"the run was begun with {name} = {position[name]!r}, but now it is {value!r}. "
                    "Leave it as it was, or begin a new run."
                )
        self._reader.columns = list(position["columns"])
        self._choose(list(position["inputs"]), list(position["targets"]))
        statistics = statistics_of(position["statistics"], self._layout.columns)
        waiting = [row_of(saved, self._layout.columns) for saved in position["waiting"]]
        if statistics is None or None in waiting:
            raise StreamError(
                "the saved position of the stream is damaged: its rows do not fit its columns. "
                "Go on from another checkpoint, or begin a new run."
            )
        self._statistics = statistics
        self._waiting.extend(row for row in waiting if row)
        self._reader.go_to(place_of(position), dict(position["counts"]), position["inside"])
        if self._reader.reached()[0] == Place():
            # The start of another source (see `afresh`), which may have its columns in another order.
            self._reader.begin(header)
            self._choose(self.inputs, self.targets)
        self._settled = self._reader.reached()

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
            "columns": list(self._reader.columns),
            "inputs": list(self.inputs),
            "targets": list(self.targets),
            "statistics": saved_statistics(self._statistics),
            "waiting": [saved_row(row) for row in self._waiting],
        }

    @property
    def counts(self) -> dict[str, int]:
        """How many bad rows, and rows with missing values, were skipped."""
        return dict(self._settled[1])

    # Samples.

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """See `Stream.take`."""
        check_count(count)
        parts: list[Samples] = []
        taken: list[Taken] = []
        length, fault = 0, None
        try:
            for values in self._reader.rows(self._source.fragments(patience)):
                sample = self._sample(values)
                if sample is None:
                    continue
                self._settled = self._reader.reached()
                taken.append(sample)
                length += 1
                if len(taken) * self._layout.columns >= BATCH:
                    parts.append(samples_of(taken, self._layout))
                    taken = []
                if length == count:
                    break
        except StreamError as error:
            # What came before is handed out first; the next call meets the same fault again.
            fault = error
        if length:
            self._start = None
        elif fault:
            raise fault
        elif self._source.ended:
            return self._end()
        parts.append(samples_of(taken, self._layout))
        return Samples(*map(np.concatenate, zip(*parts, strict=True)))

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

    def _end(self) -> None:
        if self._start == UNREAD:
            raise self._reader.too_short(len(self._waiting))
        self._start, self._settled = None, self._reader.reached()


def _check_rows_position(position: Any) -> None:
    valid = {
        **PLACE_FIELDS,
        "inside": lambda value: isinstance(value, bool),
        "format": lambda value: isinstance(value, str),
        "horizon": is_count,
        "standardise": lambda value: isinstance(value, bool),
        "columns": is_names,
        "inputs": lambda value: is_names(value) and len(value) > 0,
        "targets": lambda value: is_names(value) and len(value) > 0,
        "statistics": lambda value: isinstance(value, list),
        "waiting": lambda value: isinstance(value, list) and len(value) <= position["horizon"],
    }
    check_position(position, "rows", valid)


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
