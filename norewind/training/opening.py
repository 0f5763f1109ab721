"""From settings to the stream that they name, the shape of its model, and how it is scored."""

from collections.abc import Callable
from typing import Any, NamedTuple

from norewind.named import TASKS
from norewind.streams import ByteStream, CharacterStream, Dialect, RowStream, Source, TaskStream
from norewind.training.model import Shape
from norewind.training.scores import RowScore, SymbolScore
from norewind.training.settings import Settings, SettingsError


class Opened(NamedTuple):
    """A stream at a position, what its model must fit, and how its samples are scored."""

    stream: Any
    shape: Shape
    score: Any


def open_stream(
    settings: Settings,
    position: dict[str, Any] | None = None,
    scored: dict[str, Any] | None = None,
    *,
    continues: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Opened:
    """Open the stream that settings name, at a position; `scored` is what its score had saved there."""
    if not settings.source:
        raise SettingsError("no source: name anbn, brackets, a file, or - for the standard input.")
    if settings.kind == "task":
        stream = _task(settings, position)
        return _symbols(stream, lambda symbol: stream.alphabet[symbol], scored)
    source = Source(settings.source, continues=continues, stop=stop)
    if settings.kind == "bytes":
        return _symbols(ByteStream(source, position=position), int, scored)
    if settings.kind == "text":
        text = CharacterStream(
            source, settings.alphabet, size=settings.alphabet_size, bad=settings.bad, position=position
        )
        return _symbols(text, lambda symbol: text.decode([symbol]).decode(), scored)
    rows = RowStream(
        source,
        dialect=Dialect(settings.kind, header=settings.header, delimiter=settings.delimiter),
        inputs=settings.inputs or None,
        targets=settings.targets or None,
        horizon=settings.horizon,
        missing=settings.missing,
        bad=settings.bad,
        standardise=settings.standardise,
        position=position,
    )
    gaussian = settings.loss == "gaussian"
    outputs = len(rows.targets) * (2 if gaussian else 1)
    return Opened(rows, Shape(len(rows.inputs), outputs, False), RowScore(rows.targets, gaussian, scored))


def _task(settings: Settings, position: dict[str, Any] | None) -> TaskStream:
    try:
        text = TASKS[settings.source](*settings.parameters)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"parameters: {error}") from None
    return TaskStream(text, settings.seed, position=position)


def _symbols(stream: Any, name: Callable[[int], Any], scored: dict[str, Any] | None) -> Opened:
    shape = Shape(stream.symbols, stream.symbols, True)
    return Opened(stream, shape, SymbolScore(stream.symbols, name, scored))
