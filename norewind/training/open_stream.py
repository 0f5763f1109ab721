"""From settings to the stream they name, the shape of its model, and its score."""

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from norewind.learners.outlook_shape import OutlookShape
from norewind.scoring.class_score import ClassScore
from norewind.scoring.drift import block_rows
from norewind.scoring.metrics import SYMBOL_LOSS, LossDescription, row_loss
from norewind.scoring.number_score import KeyedScore
from norewind.scoring.row_score import RowScore
from norewind.scoring.score import Score
from norewind.scoring.text_score import LineScore, SymbolScore
from norewind.streams import ByteStream, CharacterStream, KeyedStream, ReadOptions, RowStream, Source, TaskStream
from norewind.streams.base_source import BaseSource
from norewind.streams.kafka.client import SCHEME, Client
from norewind.streams.stream import Position, Stream
from norewind.streams.table.column_statistics import SCALES
from norewind.streams.table.columns import CATEGORIES
from norewind.streams.table.formats import DICT_FORMAT, FORMATS
from norewind.streams.table.parquet import ParquetRows
from norewind.streams.table.scaling import TableLayout
from norewind.training import registry
from norewind.training.settings import GZIPPED, PARQUET, Settings, SettingsError


class StreamShape(NamedTuple):
    """The sizes that a model must fit.

    Attributes:
        inputs: the length of a row of inputs, or the number of symbols.
        outputs: the outputs for one step.
        symbols: whether it is a stream of symbols.
        targets: the targets of one step.
        steps: the numbers of rows ahead to forecast.
        known: the indices of the inputs that are the latest values of the targets; empty unless all targets have one.
        table: for rows with keys, how they become samples.
        periods: the periods of the series in rows that are known from the settings or the times; at most two.
        previous: how many of the last inputs are the latest targets of the rows before, or the latest class.
        scales: how many numbers follow the inputs, which say by what the targets are standardised.
        outlook: what the outlook of a row consists of, which comes last.
    """

    inputs: int
    outputs: int
    symbols: bool
    targets: int = 0
    steps: tuple[int, ...] = (0,)
    known: tuple[int, ...] = ()
    table: TableLayout | None = None
    periods: tuple[int, ...] = ()
    previous: int = 0
    scales: int = 0
    outlook: OutlookShape = OutlookShape()

    @property
    def horizon(self) -> int:
        """The farthest step."""
        return self.steps[-1]


class OpenedStream(NamedTuple):
    """An open stream.

    Attributes:
        stream: the stream, at its position.
        shape: the sizes that its model must fit.
        score: how its samples are scored.
    """

    stream: Stream
    shape: StreamShape
    score: Score


def open_stream(
    settings: Settings,
    position: Position | None = None,
    *,
    source: BaseSource | None = None,
    continues: bool = False,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda problem: None,
) -> OpenedStream:
    """Open the stream that settings name.

    Args:
        settings: the source, its format, and how its columns are read.
        position: the position to start at; None for the beginning.
        source: a source to use instead of the one that the settings name.
        continues: whether the source that the settings name starts at the position instead of at its beginning.
        stop: called while waiting for input. Once it returns True, nothing more is read.
        report: called with the problem of each skipped message.

    Raises:
        SettingsError: the settings do not fit together or do not fit the source.
        StreamError: the source cannot be read, or does not match the position.
    """
    if not settings.source:
        raise SettingsError(f"no source: name a file, - for standard input, or a task ({', '.join(registry.TASKS)}).")
    check_fleet(settings)
    if settings.kind == "task":
        try:
            task = registry.task(settings.source, settings.parameters)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"parameters: {error}") from None
        return _symbols(TaskStream(task, settings.seed, position=position), settings)
    if source is None:
        source = _source(settings, continues, stop, report)
    if settings.has_rows:
        return _rows(settings, source, position)
    assert isinstance(source, Source)  # other sources have rows
    if settings.kind == "bytes":
        return _symbols(ByteStream(source, position=position), settings)
    size, bad = settings.alphabet_size, settings.bad
    return _symbols(CharacterStream(source, settings.alphabet, size=size, bad=bad, position=position), settings)


def check_fleet(settings: Settings) -> None:
    """Reject settings of keys that do not fit together, before anything is read.

    Raises:
        SettingsError: the settings do not fit together.
    """
    if settings.key is None:
        return
    if settings.quantile is not None:
        raise SettingsError(f"key= with loss={settings.loss!r} is not supported: forecast intervals, interval=0.8.")
    if settings.loss == "classes":
        raise SettingsError('key= with loss="classes" is not supported: train one run per key, or forecast numbers.')
    if settings.method != registry.AUTO and method_of(settings).window > 1:
        raise SettingsError(f"key= learns from every row as it arrives, but method {settings.method} has windows.")
    if settings.method == registry.AUTO and settings.loss == "gaussian" and not settings.share:
        raise SettingsError('key= with method="auto" cannot forecast variances: choose another (method="snap1").')
    if settings.share and settings.shards > 1:
        raise SettingsError("share=True trains one model for all keys, which shards= cannot split (docs/scale.md).")
    if settings.shard is not None and settings.shard >= settings.shards:
        raise SettingsError(f"shard is {settings.shard}, but there are {settings.shards} shards, counted from 0.")


def method_of(settings: Settings) -> registry.Method:
    """Return the method that settings name.

    Raises:
        SettingsError: there is no such method.
    """
    try:
        return registry.parse_method(settings.method)
    except ValueError as error:
        raise SettingsError(f"method: {error}") from None


def loss_description(settings: Settings) -> LossDescription:
    """Return what the loss of a run is measured in and compared with, without opening its stream."""
    return row_loss(settings.loss) if settings.has_rows else SYMBOL_LOSS


def _source(settings: Settings, continues: bool, stop: Callable[[], bool], report: Callable[[str], None]) -> BaseSource:
    if settings.source.endswith(PARQUET) and settings.has_rows:
        if settings.kind != DICT_FORMAT:
            raise SettingsError(f"format is {settings.format!r}, but {settings.source} is Parquet. Leave format out.")
        return ParquetRows(settings.source, continues=continues, stop=stop)
    if not settings.source.startswith(SCHEME):
        unpack = settings.has_rows and settings.source.endswith(GZIPPED)
        return Source(settings.source, final=settings.final, continues=continues, stop=stop, unpack=unpack)
    from norewind.streams.kafka.topic import Topic

    if settings.kind != DICT_FORMAT:
        raise SettingsError(
            f"format is {settings.format!r}, but {settings.source} is read as JSON: one object per message."
        )
    client = Client(settings.brokers, settings.client)
    return Topic(
        settings.source,
        client,
        group=settings.group,
        final=settings.final,
        report=report,
        continues=continues,
        stop=stop,
    )


def _symbols(stream: ByteStream | CharacterStream | TaskStream, settings: Settings) -> OpenedStream:
    name = int if isinstance(stream, ByteStream) else lambda symbol: stream.decode([symbol]).decode()
    shape = StreamShape(stream.symbols, stream.symbols, True)
    if settings.per == "symbol":
        return OpenedStream(stream, shape, SymbolScore(stream.symbols, name))
    return OpenedStream(stream, shape, LineScore(stream.symbols, name, stream.decode, settings.top))


def _read_options(settings: Settings) -> ReadOptions:
    assert settings.kind in FORMATS
    is_auto, is_class = settings.method == registry.AUTO, settings.loss == "classes"
    return ReadOptions(
        settings.kind,
        header=settings.header,
        delimiter=settings.delimiter,
        classes=is_class,
        # A stream of keys does not know the previous row of the same key.
        previous_targets=is_auto and settings.key is None,
        with_scales=is_auto and settings.key is None and not is_class,
        missing=settings.missing,
        bad=settings.bad,
        calendar=is_auto and not is_class and settings.key is None,
        holidays=settings.holidays,
        known_future=settings.known_future or (),
    )


def _rows(settings: Settings, source: BaseSource, position: Position | None) -> OpenedStream:
    is_auto = settings.method == registry.AUTO
    is_class = settings.loss == "classes"
    steps = settings.steps
    if settings.quantile is not None and not settings.standardise:
        raise SettingsError(f"loss={settings.loss!r} needs standardised columns: leave out standardise=.")
    if is_class and len(settings.targets) != 1:
        raise SettingsError("loss is 'classes': name one target (targets=).")
    inputs = settings.inputs
    if inputs and is_auto and settings.horizon:
        # The past of the targets is known, and is the most informative input.
        inputs = tuple(dict.fromkeys([*inputs, *settings.targets]))
    # An answer has the key of the message that it answers.
    key = ["@key"] if settings.predictions.startswith(SCHEME) and settings.key != "@key" else []
    options: dict[str, Any] = {
        "read_options": _read_options(settings),
        "inputs": inputs or None,
        "targets": settings.targets or None,
        "copy": tuple(dict.fromkeys([*settings.copy, *key])),
        "steps": steps,
        "standardise": settings.standardise,
        "position": position,
    }
    lowest = 0.0 if settings.non_negative else -inf
    if settings.key is not None:
        shard = settings.shard or 0, settings.shards if settings.shard is not None else 1
        rows = KeyedStream(source, settings.key, shard=shard, **options)
        score = KeyedScore(rows.targets, settings.loss, steps, rows.key_name, settings.interval)
        score.lowest = lowest
        table = rows.layout
    else:
        rows, table = RowStream(source, **options), None
        if is_class:
            previous = CATEGORIES if rows.layout.before else 0
            shape = StreamShape(rows.width, CATEGORIES + 1, False, 1, steps, previous=previous)
            return OpenedStream(rows, shape, ClassScore(CATEGORIES + 1, rows.class_name, steps))
        score = RowScore(rows.targets, settings.loss, steps, settings.period, settings.interval)
        score.lowest = lowest
        if not settings.period and rows.periods:  # of a new stream: a checkpoint has the blocks it began with
            score.state.block = block_rows(steps[0], rows.periods[0])
    # The rules that repeat a past value need every target among the inputs.
    known = tuple(rows.known) if len(rows.known) == len(rows.targets) else ()
    outputs = len(rows.targets) * (2 if settings.loss == "gaussian" else 1)
    targets, periods = len(rows.targets), (settings.period,) if settings.period else rows.periods
    scales, previous = SCALES * targets if rows.layout.with_scales else 0, targets if rows.layout.before else 0
    outlook = OutlookShape(rows.outlook.entries, len(rows.outlook.columns))
    shape = StreamShape(rows.layout.width - scales, outputs, False, targets, steps, known, table, periods, previous)
    return OpenedStream(rows, shape._replace(scales=scales, outlook=outlook), score)
