"""From settings to the stream they name, its score, and the learner with the run it starts from."""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.filesize import decimal

from norewind import cells, losses, names
from norewind.estimator import Loss
from norewind.learner import SHORTEST_CHUNK, Online, online, started
from norewind.learners.ahead import Ahead
from norewind.learners.protocol import Learner
from norewind.optimizers import inverse_sqrt
from norewind.run import Run
from norewind.runs.fleets import build_fleet, check_fleet, open_keyed
from norewind.runs.row_scores import RowScore
from norewind.runs.scores import ClassScore, LineScore, Score, SymbolScore
from norewind.runs.settings import Settings, SettingsError
from norewind.streams import ByteStream, CharacterStream, Dialect, RowStream, Source, TaskStream
from norewind.streams.columns import CATEGORIES
from norewind.streams.kafka import SCHEME, Client

# The run that `fit` starts from, the new one after a chunk, and one more, which is a checkpoint or a gradient.
COPIES = 3
# The experts of `auto` whose forecasts wait for their targets.
EXPERTS = 15
# Where a stream was left, as JSON and arrays.
Position = dict[str, Any]


class Shape(NamedTuple):
    """What a model must fit.

    Attributes:
        inputs: the numbers in a row of inputs, or the symbols.
        outputs: the outputs for one step.
        symbols: whether it is a stream of symbols.
        targets: the targets of one step.
        steps: the numbers of rows ahead to forecast.
        known: which of the inputs are the newest values of the targets; empty if some are not.
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
    """A stream at a position, the shape of its model, and how its samples are scored."""

    stream: Any
    shape: Shape
    score: Score


class Built(NamedTuple):
    """A learner, the run it starts from, and the samples in one step."""

    learner: Learner
    run: Any
    window: int


def open_stream(settings: Settings, position: Position | None = None, *, source: Any = None, **reading: Any) -> Opened:
    """Open the stream that settings name.

    Args:
        settings: the settings.
        position: where to start; None for the beginning.
        source: takes the place of the source that the settings name.
        reading: how their source is read: with `continues`, it starts at the position instead of at its beginning;
            waiting for input ends when `stop()` returns True; and `report` is called with what is wrong with a
            message that is skipped.
    """
    if not settings.source:
        raise SettingsError(f"no source: name a file, - for standard input, or a task ({', '.join(names.TASKS)}).")
    check_fleet(settings)
    if settings.kind not in ("csv", "jsonl"):
        _check_no_columns(settings)
    if settings.kind == "task":
        try:
            task = names.task(settings.source, settings.parameters)
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
    if inputs and settings.method == names.AUTO and settings.horizon:
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
    """What streams of rows are opened with, with keys or without."""
    assert settings.kind in ("csv", "jsonl")
    dialect = Dialect(
        settings.kind,
        header=settings.header,
        delimiter=settings.delimiter,
        classes=settings.loss == "classes",
        # A stream of keys does not know the row before of the same key.
        before=settings.method == names.AUTO and settings.key is None,
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
    from norewind.streams.kafka import Topic

    if settings.kind != "jsonl":
        raise SettingsError(
            f"format is {settings.format!r}, but {settings.source} is read as JSON: one object a message."
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


def build(settings: Settings, shape: Shape) -> Built:
    check_size(settings, shape)
    if settings.key is not None:
        return build_fleet(settings, shape)
    return _auto(settings, shape) if settings.method == names.AUTO else network(settings, shape)


def network(settings: Settings, shape: Shape) -> Built:
    """One network, trained by the method that the settings name."""
    method, learner, begin = _single(settings, shape)
    return Built(*ahead_of(settings, shape, learner, begin(), method.window), method.window)


def ahead_of(settings: Settings, shape: Shape, learner: Online, run: Run, window: int = 1) -> tuple[Learner, Any]:
    """A network and its run, to forecast rows ahead if there is a horizon."""
    if not shape.horizon:
        return learner, run
    parts = 2 if settings.loss == "gaussian" else 1
    ahead = Ahead(learner, loss_of(settings, shape), shape.steps, window, parts=parts)
    x, target = (np.zeros(width, np.float32) for width in (shape.inputs, len(shape.steps) * shape.targets))
    # Forecasts have the type of the parameters, also in double precision.
    return ahead, ahead.init(run, x, np.asarray(jnp.zeros(len(shape.steps) * shape.outputs)), target)


def _single(settings: Settings, shape: Shape) -> tuple[names.Method, Online, Callable[[], Run]]:
    """The method, its learner, and the function that starts a run: only this makes any large array."""
    try:
        method = names.parse_method(settings.method)
    except ValueError as error:
        raise SettingsError(f"method: {error}") from None
    cell, loss = cell_of(settings, shape), loss_of(settings, shape)
    optimizer = names.optimizer(settings.optimizer)(inverse_sqrt(settings.rate, settings.alpha))
    if settings.clip:
        optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optimizer)
    example: Any = np.int32(0) if shape.symbols else jnp.zeros(shape.inputs)

    @contextmanager
    def explained() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            refused = f"method {settings.method} does not work with cell {settings.cell}: {error}"
            raise SettingsError(refused) from None

    @explained()
    def begin() -> Run:
        return start(learner, cell, settings.seed)

    with explained():
        learner = online(method.make(cell.transition, loss, example), optimizer)
    return method, learner, begin


def start(learner: Online, cell: cells.Cell, seed: int, members: int | None = None) -> Run:
    """A learner's run with initial parameters and noise.

    Args:
        learner: the learner.
        cell: its cell.
        seed: the seed of the parameters and the noise.
        members: the number of members of an ensemble, which all start alike.
    """

    def repeated(tree: Any) -> Any:
        return tree if members is None else jax.tree.map(lambda leaf: jnp.stack([leaf] * (members or 1)), tree)

    # Compiled as one program, and not one for every operation.
    @jax.jit
    def begin() -> Run:
        weights, noise = jax.random.split(jax.random.key(seed))
        return started(learner.update, repeated(cell.init(weights)), repeated(cell.initial_state()), noise)

    return begin()


def check_size(settings: Settings, shape: Shape) -> None:
    """Reject a run that the memory of this machine cannot hold, and say what would fit."""
    limit, size = memory(), bytes_of(settings, shape)
    if size <= limit:
        return
    takes = f"about {decimal(int(size))}" if size < inf else "more than can be counted"
    remedy = "Choose a smaller model"
    options = ["horizon"] if shape.horizon > 1 and not settings.only_steps else []
    options += ["alphabet_size"] if settings.kind == "text" and settings.alphabet is None else []
    for name in [*options, "hidden"] if settings.method == names.AUTO else ["hidden", *options]:

        def fits(value: int, name: str = name) -> bool:
            smaller = {"horizon": {"steps": range(1, value + 1)}, "alphabet_size": {"inputs": value, "outputs": value}}
            fitting = shape._replace(**smaller.get(name, {}))
            try:
                return bytes_of(replace(settings, **{name: value}), fitting) <= limit
            except ValueError:
                return False

        if fits(1):
            most = bisect_left(range(1, getattr(settings, name)), True, key=lambda value: not fits(value))
            remedy = f"With the other settings as they are, --{name.replace('_', '-')} {most} would fit"
            break
    raise SettingsError(f"this run would take {takes} of memory, but this machine has {decimal(limit)}. {remedy}.")


def bytes_of(settings: Settings, shape: Shape) -> float:
    """The bytes that a run takes: several copies of its arrays, rows that wait for targets, and a chunk of samples."""
    if settings.method != names.AUTO:
        method, _, begin = _single(settings, shape)
        window = method.window
    else:
        # Only many symbols or columns make it large.
        is_large, window = max(shape.inputs, shape.outputs) > 256, 1
        small = shape._replace(steps=(min(1, shape.horizon),))
        begin = (lambda: _auto(settings, small).run) if is_large else tuple
    width = 8 if settings.precision == "double" else 4
    row = (1 if shape.symbols else shape.inputs) + len(shape.steps) * (shape.outputs + shape.targets)
    waiting = (shape.horizon + window - 1 if shape.horizon else 0) * (width * row + 24 * shape.targets)
    experts = EXPERTS if settings.method == names.AUTO else 1
    try:
        run = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(begin)))
    except (OverflowError, MemoryError):
        return inf
    except TypeError as error:
        if isinstance(error, ValueError):
            raise  # the model is wrong, not its size
        return inf  # too many random numbers to draw
    return COPIES * (run + experts * waiting) + max(SHORTEST_CHUNK, window) * row * width


def memory() -> int:
    """The memory that this process may use, in bytes."""
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text().strip() if limit.exists() else ""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, int(allowed)) if allowed.isdecimal() else physical


# The settings of a network, which `auto` chooses itself.
CHOSEN = ("cell", "hidden", "layers", "optimizer", "rate", "alpha", "clip", "precision")


def only_defaults(settings: Settings) -> None:
    """Refuse settings that `auto` chooses itself."""
    defaults = Settings()
    for name in CHOSEN:
        if (value := getattr(settings, name)) != getattr(defaults, name):
            choice = "Set --budget, or choose a method of your own, such as --method uoro:window=16"
            raise SettingsError(f"{name} is {value!r}, but auto chooses it itself. {choice}.")


def _auto(settings: Settings, shape: Shape) -> Built:
    from norewind.runs import auto

    only_defaults(settings)
    if shape.symbols:
        learner, run = auto.text(shape.inputs, settings.budget, settings.seed, whole=settings.per == "symbol")
        return Built(learner, run, names.AUTO_WINDOW)
    if settings.loss == "classes":
        return Built(*auto.classes(shape, settings.budget, settings.seed), 1)
    return Built(*auto.series(shape, settings.loss == "gaussian", settings.budget, settings.seed), 1)


def cell_of(settings: Settings, shape: Shape) -> cells.Cell:
    make, width, outputs = names.cell(settings.cell), settings.hidden, len(shape.steps) * shape.outputs
    top = settings.layers - 1
    layers = [
        make(width if i else shape.inputs, width, width if i < top else outputs, symbols=shape.symbols and i == 0)
        for i in range(settings.layers)
    ]
    return cells.stack(*layers) if top else layers[0]


def loss_of(settings: Settings, shape: Shape) -> Loss:
    """The loss of one sample; a target that is missing costs nothing."""
    if shape.symbols:
        return losses.cross_entropy
    if settings.loss == "classes":
        return losses.known_cross_entropy
    return losses.known_gaussian if settings.loss == "gaussian" else losses.known_squared_error


def set_precision(settings: Settings) -> None:
    """Use single or double precision, for the whole process."""
    jax.config.update("jax_enable_x64", settings.precision == "double")
