"""Streams of rows: numbers in columns, from CSV or JSON lines."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from norewind.streams import scaling
from norewind.streams.parsing import CSV, Dialect, RowReader, is_number
from norewind.streams.position import Count, Progress, SourcePosition, check_position, unread
from norewind.streams.reading import Source, closed_on_error
from norewind.streams.scaling import Layout, Row, samples_of
from norewind.streams.stream import Samples, Stream, StreamError, check_count

UNREAD = unread("rows")
# How many numbers are kept in lists before they become arrays, which take far less memory.
BATCH = 20_000
Names = Annotated[list[str], msgspec.Meta(min_length=1)]


class _RowPosition(SourcePosition):
    inside: bool
    format: str
    horizon: Count
    standardise: bool
    columns: list[str]
    inputs: Names
    targets: Names
    statistics: list[scaling.SavedColumn]
    waiting: Any


class RowStream(Stream):
    """Rows of numbers; every row is a sample: its inputs, and its targets, forecast `horizon` rows before.

    - `source`: where the rows come from. It is closed with the stream.
    - `dialect`: how they are written, by default as CSV with a header. Blank lines mean
      nothing.
    - `inputs`: the names of the input columns, by default all that hold a number in the
      first row.
    - `targets`: the names of the target columns, by default the inputs.
    - `horizon`: how many rows ahead to forecast. With 0 the targets are those of the same
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

    The stream has the attributes `inputs` and `targets`, the names of the columns, and
    `horizon`. A learner for it learns from row t − h when row t brings its targets, and then
    forecasts row t + h: see `norewind.Ahead`.

    >>> import os
    >>> reader, writer = os.pipe()
    >>> size = os.write(writer, b"wind,power\\n3,10\\n4,20\\n5,40\\n")
    >>> os.close(writer)
    >>> stream = RowStream(Source(reader), targets=["power"], standardise=False)
    >>> samples = stream.take(1000)
    >>> samples.xs, samples.targets
    (array([[ 3., 10.],
           [ 4., 20.],
           [ 5., 40.]], dtype=float32), array([[nan],
           [20.],
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
            start = UNREAD if position is None else position
            if start != UNREAD:
                asked = {"format": dialect.format, "horizon": horizon, "standardise": standardise}
                named = {name: list(value) for name, value in (("inputs", inputs), ("targets", targets)) if value}
                check_position(start, "rows", _RowPosition, asked | named)
            self._source, self._progress = source, Progress(start)
            self._reader = RowReader(source, self._progress, dialect, missing=missing, bad=bad)
            self._format, self.horizon, self._standardise = dialect.format, horizon, standardise
            self._fill_with_newest = missing == "last"
            # What is known when predicting is that of the row before, even if the targets come with the row itself.
            self._delay = max(1, horizon)
            self.inputs, self.targets = list(inputs or []), list(targets or [])
            if start == UNREAD:
                self._begin()
            else:
                self._restore(start)

    def _begin(self) -> None:
        self._reader.read_header()
        if not self._reader.columns or not self.inputs:
            row = self._reader.first_row()
            numbers = [name for name, value in row.items() if is_number(value)]
            self.inputs = self.inputs or [name for name in numbers if self.horizon > 0 or name not in self.targets]
        self.targets = self.targets or self.inputs
        self._choose()
        self._statistics = scaling.no_statistics(self._layout.columns)
        self._waiting = self._nothing_known()

    def _choose(self) -> None:
        name, names = self._source.name, self._reader.columns
        columns = ", ".join(map(repr, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        if not self.inputs:
            raise StreamError(
                f"{name} has no column to learn from: of {columns}, none "
                + ("but the targets " if self.horizon == 0 else "")
                + "holds a number in the first row. Name the inputs."
            )
        for column in [*self.inputs, *self.targets]:
            if column not in self._reader.columns:
                hint = " (a key may be null in the first line, but must be there)" if self._format == "jsonl" else ""
                raise StreamError(f"{name} has no column {column!r}. It has {columns}{hint}.")
        both = [column for column in self.targets if column in self.inputs]
        if self.horizon == 0 and both:
            raise StreamError(
                f"with a horizon of 0, the target {both[0]!r} is an input of the same row: nothing is left to predict. "
                "Choose a horizon of 1 or more, or targets that are not inputs."
            )
        used = list(dict.fromkeys([*self.inputs, *self.targets]))
        self._reader.choose(used, self.inputs)
        self._layout = Layout(
            columns=len(used),
            inputs=[used.index(column) for column in self.inputs],
            targets=[used.index(column) for column in self.targets],
            fill_with_newest=self._fill_with_newest,
            standardise=self._standardise,
        )

    def _restore(self, position: dict[str, Any]) -> None:
        self._reader.columns = list(position["columns"])
        self.inputs, self.targets = list(position["inputs"]), list(position["targets"])
        self._choose()
        self._statistics = scaling.restored_statistics(position["statistics"], self._layout.columns)
        targets = len(self.targets)
        self._waiting = scaling.restored_waiting(position["waiting"], targets, self._delay, self._standardise)
        self._source.go_to(self._progress.here)
        if self._progress.here.offset == 0:
            # The start of another source (see `afresh`), which may have its columns in another order.
            self._waiting = self._nothing_known()
            self._reader.read_header()
            self._choose()

    def _nothing_known(self) -> np.ndarray:
        """The scales before the first row: targets of the same row need none if they are not standardised."""
        needs_none = self.horizon == 0 and not self._standardise
        return np.tile([0.0, 1.0, np.nan], (int(needs_none), len(self.targets), 1))

    def position(self) -> dict[str, Any]:
        return self._progress.position(
            inside=self._progress.marked.inside,
            format=self._format,
            horizon=self.horizon,
            standardise=self._standardise,
            columns=list(self._reader.columns),
            inputs=list(self.inputs),
            targets=list(self.targets),
            statistics=scaling.saved_statistics(self._statistics),
            waiting=self._waiting,
        )

    @property
    def counts(self) -> dict[str, int]:
        """How many bad rows and how many rows with missing values were skipped."""
        return self._progress.counts

    @property
    def unfinished(self) -> int:
        return self._source.unfinished

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        check_count(count)
        parts: list[Samples] = []
        rows: list[Row] = []
        length, problem = 0, None

        def convert() -> None:
            samples, self._waiting = samples_of(rows, self._layout, self._waiting, self._delay)
            parts.append(samples)
            rows.clear()

        try:
            for values in self._reader.rows(self._source.fragments(patience)):
                self._statistics = self._statistics.after(values)
                rows.append(Row(values, self._statistics))
                self._progress.mark()
                length += 1
                if len(rows) * self._layout.columns >= BATCH:
                    convert()
                if length == count:
                    break
        except StreamError as error:
            # What came before is handed out first; the next call finds the same problem again.
            problem = error
        self._progress.hand_out(length, problem)
        if not length and self._source.ended:
            if self._progress.start == UNREAD:
                raise self._reader.too_short()
            return self._progress.end()
        convert()
        return Samples(*map(np.concatenate, zip(*parts, strict=True)))

    def close(self) -> None:
        self._source.close()
