"""From settings to the stream they name, its score, and the learner with the run it starts from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from norewind import cells, losses, names
from norewind.estimator import Loss
from norewind.learner import online
from norewind.learners.ahead import Ahead
from norewind.optimizers import inverse_sqrt
from norewind.runs.scores import RowScore, Score, SymbolScore
from norewind.runs.settings import Settings, SettingsError
from norewind.streams import ByteStream, CharacterStream, Dialect, RowStream, Source, TaskStream


class Shape(NamedTuple):
    """What a model must fit: the numbers of inputs, outputs and targets, how far ahead they are, and which
    inputs they are (rows only)."""

    inputs: int
    outputs: int
    symbols: bool
    targets: int = 0
    horizon: int = 0
    known: tuple[int, ...] = ()


class Opened(NamedTuple):
    """A stream at a position, the shape of its model, and how its samples are scored."""

    stream: Any
    shape: Shape
    score: Score


class Built(NamedTuple):
    """A learner, the run it starts from, and the samples in one step."""

    learner: Any
    run: Any
    window: int


def open_stream(
    settings: Settings,
    position: dict[str, Any] | None = None,
    *,
    continues: bool = False,
    stop: Callable[[], bool] = lambda: False,
    source: Any = None,
) -> Opened:
    """Open the stream that settings name, at a position; from `source` if that is given.

    With `continues`, the source starts at that position instead of at its beginning.
    Waiting for input ends when `stop()` returns True.
    """
    if not settings.source:
        raise SettingsError(f"no source: name a file, - for standard input, or a task ({', '.join(names.TASKS)}).")
    if settings.kind == "task":
        try:
            task = names.task(settings.source, settings.parameters)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"parameters: {error}") from None
        return _symbols(TaskStream(task, settings.seed, position=position))
    source = source or Source(settings.source, continues=continues, stop=stop)
    if settings.kind == "bytes":
        return _symbols(ByteStream(source, position=position))
    if settings.kind == "text":
        size, bad = settings.alphabet_size, settings.bad
        return _symbols(CharacterStream(source, settings.alphabet, size=size, bad=bad, position=position))
    inputs = settings.inputs
    if inputs and settings.method == names.AUTO and settings.horizon:
        # What is to be forecast is known up to now, and says most about what comes.
        inputs = tuple(dict.fromkeys([*inputs, *settings.targets]))
    rows = RowStream(
        source,
        dialect=Dialect(settings.kind, header=settings.header, delimiter=settings.delimiter),
        inputs=inputs or None,
        targets=settings.targets or None,
        horizon=settings.horizon,
        missing=settings.missing,
        bad=settings.bad,
        standardise=settings.standardise,
        position=position,
    )
    outputs = len(rows.targets) * (2 if settings.loss == "gaussian" else 1)
    known = tuple(rows.inputs.index(target) for target in rows.targets if target in rows.inputs)
    shape = Shape(len(rows.inputs), outputs, False, len(rows.targets), settings.horizon, known)
    return Opened(rows, shape, RowScore(rows.targets, settings.loss, settings.horizon))


def _symbols(stream: ByteStream | CharacterStream | TaskStream) -> Opened:
    name = int if isinstance(stream, ByteStream) else lambda symbol: stream.decode([symbol]).decode()
    return Opened(stream, Shape(stream.symbols, stream.symbols, True), SymbolScore(stream.symbols, name))


def build(settings: Settings, shape: Shape) -> Built:
    if settings.method == names.AUTO:
        return _auto(settings, shape)
    try:
        method = names.parse_method(settings.method)
    except ValueError as error:
        raise SettingsError(f"method: {error}") from None
    cell, loss = cell_of(settings, shape), loss_of(settings, shape)
    optimizer = names.optimizer(settings.optimizer)(inverse_sqrt(settings.rate, settings.alpha))
    if settings.clip:
        optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optimizer)
    example: Any = np.int32(0) if shape.symbols else jnp.zeros(shape.inputs)
    weights, noise = jax.random.split(jax.random.key(settings.seed))
    try:
        learner = online(method.make(cell.transition, loss, example), optimizer)
        run = learner.init(cell.init(weights), cell.initial_state(), noise)
    except ValueError as error:
        raise SettingsError(f"method {settings.method} does not work with cell {settings.cell}: {error}") from None
    if shape.horizon:
        learner = Ahead(learner, loss, shape.horizon, method.window)
        x, target = (np.zeros(width, np.float32) for width in (shape.inputs, shape.targets))
        # Forecasts have the type of the parameters, also in double precision.
        run = learner.init(run, x, np.asarray(jnp.zeros(shape.outputs)), target)
    return Built(learner, run, method.window)


def _auto(settings: Settings, shape: Shape) -> Built:
    from norewind.runs import auto

    defaults = Settings()
    for name in ("cell", "hidden", "layers", "optimizer", "rate", "alpha", "clip", "precision"):
        if getattr(settings, name) != getattr(defaults, name):
            raise SettingsError(
                f"{name} is {getattr(settings, name)!r}, but auto chooses it itself. Set --budget, or choose a method "
                "of your own, such as --method uoro:window=16."
            )
    if shape.symbols:
        learner, run = auto.text(shape.inputs, settings.budget, settings.seed)
        return Built(learner, run, learner.window)
    return Built(*auto.series(shape, settings.loss == "gaussian", settings.budget, settings.seed), 1)


def cell_of(settings: Settings, shape: Shape) -> cells.Cell:
    make, width = names.cell(settings.cell), settings.hidden
    top = settings.layers - 1
    layers = [
        make(width if i else shape.inputs, width, width if i < top else shape.outputs, symbols=shape.symbols and i == 0)
        for i in range(settings.layers)
    ]
    return cells.stack(*layers) if top else layers[0]


def loss_of(settings: Settings, shape: Shape) -> Loss:
    """The loss of one sample; a target that is missing costs nothing."""
    if shape.symbols:
        return losses.cross_entropy
    return losses.known_gaussian if settings.loss == "gaussian" else losses.known_squared_error


def set_precision(settings: Settings) -> None:
    """Use single or double precision, for the whole process."""
    jax.config.update("jax_enable_x64", settings.precision == "double")
