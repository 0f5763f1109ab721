"""From settings to the stream they name, the shape of its model, and its score."""

from collections.abc import Callable
from typing import Any, NamedTuple

from norewind.scoring.class_score import ClassScore
from norewind.scoring.row_score import RowScore
from norewind.scoring.score import Score
from norewind.scoring.text_score import LineScore, SymbolScore
from norewind.streams import ByteStream, CharacterStream, Dialect, RowStream, Source, TaskStream
from norewind.streams.kafka.client import SCHEME, Client
from norewind.streams.table.columns import CATEGORIES
from norewind.training import registry
from norewind.training.fleet_build import check_fleet, open_keyed
from norewind.training.settings import Settings, SettingsError

# The position of a stream, as JSON and arrays.
Position = dict[str, Any]


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
        settings: the settings.
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
    if settings.kind not in ("csv", "jsonl"):
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
    if settings.key is not None:
        return open_keyed(settings, source, position)
    inputs = settings.inputs
    if inputs and settings.method == registry.AUTO and settings.horizon:
        # The past of the targets is known, and is the most informative input.
        inputs = tuple(dict.fromkeys([*inputs, *settings.targets]))
    if settings.loss == "classes" and len(settings.targets) != 1:
        raise SettingsError("loss is 'classes': name one target (--targets COLUMN).")
    rows = RowStream(source, **row_options(settings, position, inputs))
    if settings.loss == "classes":
        shape = Shape(rows.width, CATEGORIES + 1, False, 1, settings.steps)
        return Opened(rows, shape, ClassScore(CATEGORIES + 1, rows.class_name, settings.steps))
    outputs = len(rows.targets) * (2 if settings.loss == "gaussian" else 1)
    # Rules for targets that are known up to now need all of them.
    known = tuple(rows.known) if len(rows.known) == len(rows.targets) else ()
    shape = Shape(rows.width, outputs, False, len(rows.targets), settings.steps, known)
    return Opened(rows, shape, RowScore(rows.targets, settings.loss, settings.steps, settings.period))


def row_options(settings: Settings, position: Position | None, inputs: tuple[str, ...]) -> dict[str, Any]:
    """Return the options of a stream of rows, with or without keys.

    Args:
        settings: the settings.
        position: the position to start at; None for the beginning.
        inputs: the names of the input columns.
    """
    assert settings.kind in ("csv", "jsonl")
    dialect = Dialect(
        settings.kind,
        header=settings.header,
        delimiter=settings.delimiter,
        classes=settings.loss == "classes",
        # A stream of keys does not know the previous row of the same key.
        before=settings.method == registry.AUTO and settings.key is None,
        missing=settings.missing,
        bad=settings.bad,
    )
    # An answer has the key of the message that it answers.
    key = ["@key"] if settings.predictions.startswith(SCHEME) and settings.key != "@key" else []
    return {
        "dialect": dialect,
        "inputs": inputs or None,
        "targets": settings.targets or None,
        "copy": tuple(dict.fromkeys([*settings.copy, *key])),
        "steps": settings.steps,
        "standardise": settings.standardise,
        "position": position,
    }


def _source(
    settings: Settings,
    continues: bool = False,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda line: None,
) -> Any:
    options: dict[str, Any] = {"final": settings.final, "continues": continues, "stop": stop}
    if not settings.source.startswith(SCHEME):
        return Source(settings.source, **options)
    from norewind.streams.kafka.topic import Topic

    if settings.kind != "jsonl":
        raise SettingsError(
            f"format is {settings.format!r}, but {settings.source} is read as JSON: one object per message."
        )
    client = Client(settings.brokers, settings.client)
    return Topic(settings.source, client, group=settings.group, report=report, **options)


def _check_no_columns(settings: Settings) -> None:
    for name in ("inputs", "targets", "copy", "period"):
        if value := getattr(settings, name):
            raise SettingsError(
                f"{name} is {value!r}, but {settings.source} is read as {settings.kind}, which has no columns. For a "
                "table, add --format csv or jsonl; if it is compressed, unpack it: zcat FILE.gz | norewind train - "
                "--format csv."
            )


def _symbols(stream: ByteStream | CharacterStream | TaskStream, settings: Settings) -> Opened:
    name = int if isinstance(stream, ByteStream) else lambda symbol: stream.decode([symbol]).decode()
    shape = Shape(stream.symbols, stream.symbols, True)
    if settings.per == "symbol":
        return Opened(stream, shape, SymbolScore(stream.symbols, name))
    return Opened(stream, shape, LineScore(stream.symbols, name, stream.decode, settings.top))
