"""Streams of rows: numbers in columns, from lines of text or from Python."""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from norewind.streams.base_source import BaseSource, SourceStream, closed_on_error
from norewind.streams.kafka.messages import MESSAGE_COLUMNS
from norewind.streams.position import init_position
from norewind.streams.stream import Samples, StreamError, check_take_count, count_named
from norewind.streams.table import columns, scaling
from norewind.streams.table.column_choice import ColumnChoice
from norewind.streams.table.columns import KEPT_TIMES, OTHER_CATEGORY, InferredKind, Kind, infer_kind
from norewind.streams.table.conversion import Conversion, KeyColumn, Rows
from norewind.streams.table.formats import ReadOptions
from norewind.streams.table.moment import Moment, one_by_one
from norewind.streams.table.parsing import RowReader
from norewind.streams.table.row_outlook import KNOWN_FUTURE, Outlook, calendar_outlook
from norewind.streams.table.row_position import check_row_position, optional_fields, saved_plan
from norewind.streams.table.scaling import PREVIEW, SeriesStatistics, TableLayout, latest_scales

UNREAD_POSITION = init_position("rows")
_array = partial(np.array, dtype=np.int64)


class RowStream(SourceStream):
    """Rows of numbers. Every row is a sample: its inputs, and the targets that earlier rows forecast.

    Args:
        source: the source of the rows. It is closed with the stream.
        read_options: how they are read, by default as CSV with a header. Blank lines are ignored.
        inputs: the names of the input columns, by default all that hold numbers or booleans in the first 100 rows,
            except row counters and times. Text is read as categories (see `write_category`).
            Times become the hour of the day, the day of the week and the time since the previous row, where these
            vary in the first rows. Values inside JSON objects and lists have names such as sensor.temp and axes.0.
        targets: the names of the target columns, by default the numbers among the inputs.
        copy: the names of columns to return unchanged, as JSON text.
        horizon: how many rows ahead to forecast: all steps from 1 to the horizon. Samples have the targets side by
            side, once for each step, since each is scaled as known at a different row. With 0, the targets are those
            of the same row, and must not be inputs.
        steps: only these steps, such as (1, 6, 24), or (24,) for a single one.
        standardise: whether columns are standardised by the mean and deviation of their values so far, and clipped to
            ±100: inputs by those up to and including their own row, targets by those known when predicting. Targets are
            NaN until there are ten values.
        position: a position returned by another stream's `position()`, to resume there.

    Attributes:
        inputs: the names of the input columns.
        targets: the names of the target columns.
        ignored: why the other columns are not used, by name.
        warning: what seems to be wrong with the first rows, as a sentence; None if nothing does.
        width: the length of a row of inputs.
        known: the indices in it of the latest known targets.
        steps, horizon: the numbers of rows ahead to forecast, and the largest of them.
        clock: the column of times; None if there is none.
        outlook: what is known in advance about later rows; it comes last in the inputs.

    Raises:
        StreamError: the columns or options cannot be used, or the source does not match the position.

    >>> import os
    >>> from norewind.streams import Source
    >>> reader, writer = os.pipe()
    >>> size = os.write(writer, b"wind,power\\n3,10\\n4,20\\n5,40\\n")
    >>> os.close(writer)
    >>> stream = RowStream(Source(reader), targets=["power"], standardise=False)
    >>> samples = stream.take(1000)
    >>> samples.xs.tolist(), samples.targets.tolist()
    ([[3.0, 10.0], [4.0, 20.0], [5.0, 40.0]], [[nan], [20.0], [40.0]])
    """

    key: str | None = None  # see KeyedStream
    shard: tuple[int, int] = (0, 1)
    periods: tuple[int, ...] = ()  # in rows, by the times of the first rows

    def __init__(
        self,
        source: BaseSource,
        *,
        read_options: ReadOptions = ReadOptions(),  # noqa: B008 (frozen)
        inputs: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        copy: Sequence[str] = (),
        horizon: int = 1,
        steps: Sequence[int] | None = None,
        standardise: bool = True,
        position: dict[str, Any] | None = None,
    ):
        with closed_on_error(source):
            self.steps = scaling.steps_of(horizon, steps)
            self.horizon, self._source = self.steps[-1], source
            self._reader, self._read_options = RowReader(source, read_options), read_options
            self.inputs = [*dict.fromkeys((*inputs, *read_options.known_future))] if inputs else []
            self.targets = list(targets or [])
            self._copied, self._standardise = list(copy), standardise
            self.outlook = Outlook()
            self._plan = np.zeros((0, len(read_options.known_future)))  # of the next rows
            self.ignored: dict[str, str] = {}
            self.warning: str | None = None
            self._latest_times: deque[Any] = deque(maxlen=KEPT_TIMES)
            self._classes_before = 0
            if position in (None, UNREAD_POSITION):
                source.start(UNREAD_POSITION)
                self._begin()
            else:
                self._restore(position)

    def _begin(self) -> None:
        """Choose the columns by the first rows."""
        self._reader.read_header()
        rows = self._reader.first_rows()
        self._carries_plans = self._reader.carries_plans(rows)
        first = {name: list(map(get, rows)) for name, get in self._reader.getters.items() if name != self.key}
        seen = {name: infer_kind(values) for name, values in first.items()}
        seen |= {name: seen[name]._replace(why_unused="not in the value") for name in seen.keys() & MESSAGE_COLUMNS}
        why_ignored = "not among the inputs" if self.inputs else ""
        planned = self._read_options.known_future
        if not self.inputs:
            usable = [name for name, column in seen.items() if not column.why_unused]
            self.inputs = [name for name in usable if self.horizon > 0 or name not in self.targets]
            if self._read_options.classes and self.horizon:
                # The class up to now is the best predictor of the next one.
                self.inputs += [name for name in self.targets if name not in self.inputs and name in seen]
        self.inputs += [name for name in planned if name not in self.inputs]
        if not self.targets:
            numbers = [name for name in self.inputs if name in seen and seen[name].kind == "number"]
            self.targets = [name for name in numbers if name not in planned]
        choice, classes = self._check_columns(seen), self._read_options.classes
        used = dict.fromkeys([*self.inputs, *self.targets])
        self.kinds = {name: choice.kind(name, seen[name], classes=classes) for name in used}
        texts = [name for name, kind in self.kinds.items() if kind == "category" and name not in self.targets]
        self._wide = [name for name in texts if self.key is None and columns.has_many_values(first[name])]
        self._cycles = {name: columns.varying(first[name]) for name in self.inputs if self.kinds[name] == "time"}
        self.ignored = {name: why_ignored or seen[name].why_unused for name in seen if name not in self.kinds}
        self.clock = next((name for name, column in seen.items() if column.kind == "time"), None)
        # Messages of several partitions arrive in no particular order.
        clock = None if self.clock in MESSAGE_COLUMNS or self.key is not None else self.clock
        if clock is not None and columns.are_sorted(first[clock]):
            self.periods = columns.periods_of(first[clock])
            if self._read_options.calendar and self.horizon:
                self.outlook = calendar_outlook(first[clock], self._read_options.holidays)
                if self.outlook.entries and clock in self._cycles:
                    self._cycles[clock] = []  # the calendar is more informative than the cycles of the latest row
        else:
            self.warning = choice.time_warning(seen, clock)
        self.outlook = self.outlook._replace(columns=planned)
        if self._read_options.holidays and "holiday" not in self.outlook.entries:
            raise StreamError(
                "holidays: the table has no column of evenly spaced times, at most a day apart. Leave holidays out."
            )
        choice.check_planned(planned, self.kinds)
        self._choose()
        self._series = scaling.init_series(self.layout)

    def _check_columns(self, seen: dict[str, InferredKind]) -> ColumnChoice:
        """Reject a choice of columns that cannot be used, and return it."""
        choice = ColumnChoice(self._source.name, self.inputs, self.targets, self._copied, self.key)
        choice.check(seen, self._reader.columns, self._reader.file_format.column_hint, same_row=self.horizon == 0)
        return choice

    def _choose(self) -> None:
        """Decide how the columns in use become inputs and targets."""
        both = set(self.targets).intersection(self.inputs)
        if self.horizon == 0 and both:
            raise StreamError(
                f"with a horizon of 0, the target {min(both)!r} is an input of the same row: nothing is left to "
                "predict. Choose a horizon of 1 or more, or targets that are not inputs."
            )
        index = {name: number for number, name in enumerate(self.kinds)}

        def inputs_of(*kinds: Kind) -> list[int]:
            return [index[name] for name in self.inputs if self.kinds[name] in kinds]

        numbers, times = inputs_of("number", "boolean"), inputs_of("time")
        targets = [index[name] for name in self.targets]
        texts = [name for name in self.inputs if self.kinds[name] == "category"]
        sizes = {name: columns.MANY_CATEGORIES if name in self._wide else columns.CATEGORIES for name in texts}
        self._reader.conversion = Conversion(
            self._reader.getters,
            self.kinds,
            required=self.inputs if self._read_options.missing in ("stop", "skip") else [],
            copied=self._copied,
            clock=self.clock if self.key is None else None,
            gaps=len(times),
            key=None if self.key is None else KeyColumn(self.key, *self.shard),
            outlook=self.outlook,
            sizes={name: size for name, size in sizes.items() if name not in self.targets},
        )
        # The time since the previous row is an additional column, after those of the table.
        gaps = [len(index) + place for place, cycles in enumerate(self._cycles.values()) if "gap" in cycles]
        cycles = [(index[n], scaling.CYCLES[c]) for n, cycles in self._cycles.items() for c in cycles if c != "gap"]
        self.layout = TableLayout(
            columns=self._reader.conversion.width,
            steps=_array(self.steps),
            numbers=_array([*numbers, *gaps]),
            targets=_array(targets),
            categories=_array([index[name] for name in texts]),
            cycles=_array([column for column, _ in cycles]),
            periods=np.array([period for _, period in cycles], np.float64),
            times=_array(times),
            fill_with_latest=self._read_options.missing == "last",
            standardise=self._standardise,
            classes=self._read_options.classes,
            before=self._read_options.previous_targets and self.horizon == 0,
            planned=_array([index[name] for name in self.outlook.columns]),
            category_inputs=_array([sizes[name] for name in texts]),
            with_scales=self._read_options.with_scales and self.horizon > 0 and set(targets) <= set(numbers),
        )
        self._reader.plan(self.targets, self.horizon, ahead=not self._carries_plans)
        self.width = self.layout.width + (1 + len(self.steps)) * self.outlook.width
        if not self.width:
            raise StreamError(f"the inputs {', '.join(self.inputs)} are all constant times. Choose other inputs.")
        self.known = [numbers.index(target) for target in targets if target in numbers]
        if self.layout.before and not self._read_options.classes:
            self.known = list(range(self.width - len(self.targets), self.width))

    def _restore(self, position: dict[str, Any]) -> None:
        """Continue at a saved position."""
        same = {"format": self._read_options.format, "steps": list(self.steps), "standardise": self._standardise}
        named = {name: value for name, value in (("inputs", self.inputs), ("targets", self.targets)) if value}
        check_row_position(position, same | named)
        self.inputs, self.targets = list(position["inputs"]), list(position["targets"])
        self.kinds: dict[str, Kind] = dict(position["kinds"])
        self._cycles, self.clock = position["cycles"], position["clock"]
        options = self._read_options
        self.outlook = Outlook(tuple(position.get("calendar", ())), options.holidays, options.known_future)
        self._plan = saved_plan(position, len(options.known_future))
        self._carries_plans = position.get("carries_plans", False) or not self._source.reads_ahead
        self._wide = list(position.get("wide", ()))
        self._latest_times.extend(position["times"])
        self._choose()
        self._reader.conversion.restore(position["categories"])
        self._classes_before = len(self.classes) if self._read_options.classes else 0
        self._series = scaling.restored_series(self.layout, position["statistics"], position["waiting"])
        self._reader.name_columns(position["columns"])
        self._source.start(position)
        self._source.catch_up()
        if self._source.progress.here.offset == 0:
            # The start of another source (see `restart_position`), which may have its columns in another order.
            self._series = scaling.init_series(self.layout)._replace(statistics=self._series.statistics)
            self._latest_times.clear()
            self._plan = self._plan[:0]
            self._reader.read_header()
        self._check_columns(dict.fromkeys(self._reader.columns, InferredKind("number")))

    @property
    def used_columns(self) -> list[str]:
        """The names of all columns whose values are read."""
        plan = KNOWN_FUTURE if self.outlook.columns else None
        others = [name for name in (self.clock, self.key, plan) if name is not None]
        return list(dict.fromkeys([*self.kinds, *others, *self._copied]))

    @property
    def classes(self) -> list[str]:
        """The names of the classes that are distinguished."""
        return list(self._reader.conversion.categories[self.targets[0]])

    def class_name(self, number: int) -> str:
        """Return the name of a class. All classes that appeared when there were too many share one name.

        Args:
            number: the number of the class.
        """
        known = self.classes
        return known[number] if number < len(known) else OTHER_CATEGORY

    def position(self) -> dict[str, Any]:
        return self._source.progress.position(
            inside=self._source.progress.marked.inside,
            format=self._read_options.format,
            steps=list(self.steps),
            standardise=self._standardise,
            columns=list(self._reader.columns),
            inputs=list(self.inputs),
            targets=list(self.targets),
            kinds=dict(self.kinds),
            cycles={name: list(cycles) for name, cycles in self._cycles.items()},
            categories={name: list(known) for name, known in self._reader.conversion.categories.items()},
            clock=self.clock,
            times=list(self._latest_times),
            statistics=scaling.saved_statistics(self._series),
            waiting=latest_scales(self._series, self.horizon or 1),
            **({"calendar": list(self.outlook.entries)} if self.outlook.entries else {}),
            **optional_fields(self._plan, carried=self._carries_plans, wide=self._wide),
        )

    def scales_ahead(self, rows: int) -> np.ndarray:
        """Return the mean, deviation and latest value of every target after each of the last rows.

        Args:
            rows: the number of rows.

        Returns:
            An array of shape (rows, targets, 3), the oldest row first.
        """
        return latest_scales(self._series, rows)

    def times_ahead(self, rows: int) -> list[Any] | None:
        """Return the times of the next rows, in the format of the table; None if they are not regular.

        Args:
            rows: the number of rows.
        """
        return columns.times_ahead(self._latest_times, rows)

    def take(self, count: int, timeout: float | None = None) -> Samples | None:
        check_take_count(count)
        rows, problem = self._reader.take(count, timeout)
        self._source.progress.note_returned(len(rows.values), problem)
        if not len(rows.values) and (self._source.ended or self._reader.only_planned):
            if self._source.progress.start == UNREAD_POSITION and self.shard[1] == 1:
                raise self._reader.too_short_error()
            return self._source.progress.end()
        return self._samples(rows, self._copies(rows), self._reader.plan_ahead() if len(rows.values) else None)

    def take_row(self, row: dict[str, Any]) -> Samples:
        """Return a row that is not in the source as the next sample.

        Args:
            row: its values by column.

        Returns:
            The sample; no samples if the row is bad and such rows are skipped.

        Raises:
            StreamError: the row is bad. The stream does not change.
        """
        rows = self._reader.take_row(row)
        self._source.progress.note_returned(len(rows.values), None)
        return self._samples(rows, None)

    def _samples(self, rows: Rows, copied: np.ndarray | None, ahead: np.ndarray | None = None) -> Samples:
        """Return rows as samples, with what is planned for the rows after them if it was read ahead."""
        plans, self._plan = self._moment.plans(self.layout, rows, ahead)
        scaled, named = self._moment.scaled(self.layout, self.outlook, rows, plans), self._named(rows.values)
        self._latest_times.extend(map(columns.as_time, rows.times[-KEPT_TIMES:]))
        return Samples(*scaled, lines=rows.lines, copied=copied, named=named, times=rows.times_as_text(self.clock))

    @property
    def _moment(self) -> Moment:
        return Moment(self._series, self._latest_times, self._plan)

    def _named(self, rows: np.ndarray) -> np.ndarray | None:
        """Return how many classes had names before each row, and count those of the rows; None if there are none."""
        if not self._read_options.classes:
            return None
        numbers = np.concatenate([[np.nan], rows[:, self.layout.targets[0]]])
        named = np.minimum(count_named(self._classes_before, numbers), len(self.classes))
        self._classes_before = int(named[-1])
        return named[:-1]

    def moment(self) -> Moment:
        """Return what the next row depends on after the last row returned; it does not change with the stream."""
        copied = SeriesStatistics(*(part.copy() for part in self._series))
        return Moment(copied, tuple(self._latest_times), self._plan)

    def peek(self, rows: Sequence[dict[str, Any]], moment: Moment | None = None) -> Samples:
        """Return each of the rows as a sample, as if it were the next row. The stream does not change.

        Args:
            rows: the rows, as dicts by column.
            moment: the moment after which they would come, by default the present one.

        Raises:
            BadRow: one of the rows cannot be read.
        """
        moment = moment or self._moment
        parsed, _ = self._reader.conversion.convert(self._reader.from_dicts(rows), None, new=False)
        parts = one_by_one(parsed) if self.outlook.width else [parsed]
        planned = [(part, moment.plans(self.layout, part)[0]) for part in parts]
        scaled = [moment.scaled(self.layout, self.outlook, *each, mode=PREVIEW) for each in planned]
        joined = map(np.concatenate, zip(*scaled, strict=True)) if len(scaled) > 1 else scaled[0]
        named = np.full(len(parsed.values), len(self.classes)) if self._read_options.classes else None
        return Samples(*joined, copied=self._copies(parsed), named=named, times=parsed.times_as_text(self.clock))

    def _copies(self, rows: Rows) -> np.ndarray | None:
        return np.array(rows.copied, object) if self._copied else None

    def read_back(self, row: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return a row as this stream would read it from a file, and its line in that file; see `RowReader.read_back`.

        Args:
            row: its values by column.
        """
        return self._reader.read_back(row)

    def latest_targets(self) -> np.ndarray:
        """Return the latest known value of every target; NaN if there is none."""
        return self._series.statistics[0, scaling.LATEST, self.layout.targets]

    def unknown_ahead(self) -> list[str]:
        """Return the inputs of future rows whose values are neither forecast nor known in advance."""
        known = {*self.targets, *self.outlook.columns}
        return [name for name in self.inputs if name not in known and self.kinds[name] != "time"]
