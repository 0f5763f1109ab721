"""From settings to the stream they name, the shape of its model, and its score."""

from collections.abc import Callable
from typing import Any, NamedTuple

from norewind.scoring.class_score import ClassScore
from norewind.scoring.number_score import KeyScore
from norewind.scoring.row_score import RowScore
from norewind.scoring.score import Score
from norewind.scoring.text_score import LineScore, SymbolScore
from norewind.streams import ByteStream, CharacterStream, KeyedStream, ReadOptions, RowStream, Source, TaskStream
from norewind.streams.kafka.client import SCHEME, Client
from norewind.streams.stream import Position
from norewind.streams.table.columns import CATEGORIES
from norewind.streams.table.formats import FORMATS
from norewind.training import registry
from norewind.training.settings import Settings, SettingsError


class Shape(NamedTuple):
    """The sizes that a model must fit.

    Attributes:
        inputs: the length of a row of inputs, or the number of symbols.
        outputs: the outputs for one step.
        symbols: whether it is a stream of symbols.
        targets: the targets of one step.
        steps: the numbers of rows ahead to forecast.
        known: the indices of the inputs that are the newest values of the targets; empty unless all targets have one.
        table: for rows with keys, how they become samples.
    """

    inputs: int
    outputs: int
    symbols: bool
    targets: int = 0
    steps: tuple[int, ...] = (0,)
    known: tuple[int, ...] = ()
    table: Any = None

    @property
    def horizon(self) -> int:
        """The farthest step."""
        return self.steps[-1]


class Opened(NamedTuple):
    """An open stream.

    Attributes:
        stream: the stream, at its position.
        shape: the sizes that its model must fit.
        score: how its samples are scored.
    """

    stream: Any
    shape: Shape
    score: Score


def open_stream(settings: Settings, position: Position | None = None, *, source: Any = None, **reading: Any) -> Opened:
    """Open the stream that settings name.

    Args:
        settings: the source, its format, and how its columns are read.
        position: the position to start at; None for the beginning.
        source: a source to use instead of the one that the settings name.
        reading: how to read the source that the settings name: `continues`, whether it starts at the position instead
            of at its beginning; `stop`, a function that ends waiting for input when it returns True; and `report`, a
            function called with the problem of each skipped message.

    Raises:
        SettingsError: the settings do not fit together or do not fit the source.
        StreamError: the source cannot be read, or does not match the position.
    """
    if not settings.source:
        raise SettingsError(f"no source: name a file, - for standard input, or a task ({', '.join(registry.TASKS)}).")
    check_fleet(settings)
    if not settings.has_rows:
        _check_no_columns(settings)
    if settings.kind == "task":
        try:
            task = registry.task(settings.source, settings.parameters)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"parameters: {error}") from None
        return _symbols(TaskStream(task, settings.seed, position=position), settings)
    if source is None:
        source = _source(settings, **reading)
    if settings.kind == "bytes":
        return _symbols(ByteStream(source, position=position), settings)
    if settings.kind == "text":
        size, bad = settings.alphabet_size, settings.bad
        return _symbols(CharacterStream(source, settings.alphabet, size=size, bad=bad, position=position), settings)
    return _rows(settings, source, position)


def check_fleet(settings: Settings) -> None:
    """Reject settings of keys that do not fit together, before anything is read.

    Raises:
        SettingsError: the settings do not fit together.
    """
    if settings.key is None:
        asked = [name for name in ("share", "resident", "shard") if getattr(settings, name)]
        if asked or settings.shards > 1:
            raise SettingsError(f"--{asked[0] if asked else 'shards'} needs keys: name their column (--key).")
        return
    if not settings.has_rows:
        formats = ", ".join(FORMATS)
        raise SettingsError(f"--key needs rows with columns ({formats}), and {settings.source} is {settings.kind}.")
    if settings.loss == "classes":
        raise SettingsError("--key with --loss classes is not supported: train one run per key, or forecast numbers.")
    if settings.method != registry.AUTO and method_of(settings).window > 1:
        raise SettingsError(f"--key learns from every row as it arrives, but method {settings.method} has windows.")
    if settings.method == registry.AUTO and settings.loss == "gaussian" and not settings.share:
        raise SettingsError("--key with --method auto cannot forecast variances: choose another (--method snap1).")
    if settings.share and settings.shards > 1:
        raise SettingsError("--share has one model for all keys: it cannot be split by --shards (docs/scale.md).")
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


def _check_no_columns(settings: Settings) -> None:
    for name in ("inputs", "targets", "copy", "period"):
        if value := getattr(settings, name):
            raise SettingsError(
                f"{name} is {value!r}, but {settings.source} is read as {settings.kind}, which has no columns. For a "
                f"table, add --format {' or '.join(FORMATS)}; if it is compressed, unpack it: zcat FILE.gz | norewind "
                "train - --format csv."
            )


def _source(settings: Settings, report: Callable[[str], None] = lambda line: None, **reading: Any) -> Any:
    if not settings.source.startswith(SCHEME):
        return Source(settings.source, final=settings.final, **reading)
    from norewind.streams.kafka.topic import Topic

    if settings.kind != "jsonl":
        raise SettingsError(
            f"format is {settings.format!r}, but {settings.source} is read as JSON: one object per message."
        )
    client = Client(settings.brokers, settings.client)
    return Topic(settings.source, client, group=settings.group, final=settings.final, report=report, **reading)


def _symbols(stream: ByteStream | CharacterStream | TaskStream, settings: Settings) -> Opened:
    name = int if isinstance(stream, ByteStream) else lambda symbol: stream.decode([symbol]).decode()
    shape = Shape(stream.symbols, stream.symbols, True)
    if settings.per == "symbol":
        return Opened(stream, shape, SymbolScore(stream.symbols, name))
    return Opened(stream, shape, LineScore(stream.symbols, name, stream.decode, settings.top))


def _rows(settings: Settings, source: Any, position: Position | None) -> Opened:
    is_auto, is_class, steps = settings.method == registry.AUTO, settings.loss == "classes", settings.steps
    if is_class and len(settings.targets) != 1:
        raise SettingsError("loss is 'classes': name one target (--targets COLUMN).")
    inputs = settings.inputs
    if inputs and is_auto and settings.horizon and settings.key is None:
        # The past of the targets is known, and is the most informative input.
        inputs = tuple(dict.fromkeys([*inputs, *settings.targets]))
    assert settings.kind in FORMATS
    read_options = ReadOptions(
        settings.kind,
        header=settings.header,
        delimiter=settings.delimiter,
        classes=is_class,
        # A stream of keys does not know the previous row of the same key.
        previous_targets=is_auto and settings.key is None,
        missing=settings.missing,
        bad=settings.bad,
    )
    # An answer has the key of the message that it answers.
    key = ["@key"] if settings.predictions.startswith(SCHEME) and settings.key != "@key" else []
    options: dict[str, Any] = {
        "read_options": read_options,
        "inputs": inputs or None,
        "targets": settings.targets or None,
        "copy": tuple(dict.fromkeys([*settings.copy, *key])),
        "steps": steps,
        "standardise": settings.standardise,
        "position": position,
    }
    if settings.key is not None:
        shard = settings.shard or 0, settings.shards if settings.shard is not None else 1
        rows = KeyedStream(source, settings.key, shard=shard, **options)
        score = KeyScore(rows.targets, settings.loss, steps, rows.key_name)
        known, table = (), rows.layout
    else:
        rows, table = RowStream(source, **options), None
        if is_class:
            shape = Shape(rows.width, CATEGORIES + 1, False, 1, steps)
            return Opened(rows, shape, ClassScore(CATEGORIES + 1, rows.class_name, steps))
        score = RowScore(rows.targets, settings.loss, steps, settings.period)
        # The rules that repeat a past value need every target among the inputs.
        known = tuple(rows.known) if len(rows.known) == len(rows.targets) else ()
    outputs = len(rows.targets) * (2 if settings.loss == "gaussian" else 1)
    return Opened(rows, Shape(rows.width, outputs, False, len(rows.targets), steps, known, table), score)
