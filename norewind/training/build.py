"""From settings and the shape of a stream to a learner and the run it starts from."""

import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.filesize import decimal

from norewind import cells
from norewind.core import losses
from norewind.core.estimator import Loss
from norewind.core.optimizers import inverse_sqrt
from norewind.core.run import Run
from norewind.fleets.fleet import Fleet
from norewind.learners.ahead import AheadLearner
from norewind.learners.learner import BaseLearner, Learner, RowLearner
from norewind.learners.online import MIN_CHUNK, OnlineLearner, init_online, online
from norewind.learners.packing import PackedLearner
from norewind.training import registry
from norewind.training.open_stream import StreamShape, method_of
from norewind.training.settings import Settings, SettingsError

# The run that `fit` starts from, the new one after a chunk, and one more, which is a checkpoint or a gradient.
COPIES = 3
# The most experts of `auto` for numbers whose forecasts wait for their targets, and those of an outlook.
EXPERTS, OUTLOOK_EXPERTS = 21, 2


class BuiltLearner(NamedTuple):
    """A learner ready to train.

    Attributes:
        learner: a `Learner`, or with keys a `Fleet`.
        run: the run it starts from.
        window: the number of samples that are learned from at once.
    """

    learner: BaseLearner
    run: Any
    window: int


def build(settings: Settings, shape: StreamShape) -> BuiltLearner:
    """Build the learner that settings describe.

    Args:
        settings: the method, and for a network its cell and optimizer.
        shape: the sizes that the model must fit.

    Raises:
        SettingsError: the settings do not fit together, or the run would not fit into memory.
    """
    try:
        check_size(settings, shape)
        built = _auto(settings, shape) if settings.method == registry.AUTO else _network(settings, shape)
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"method {settings.method} does not work with cell {settings.cell}: {error}") from None
    if settings.quantile is not None:
        from norewind.learners.quantiles import QuantileLearner

        assert isinstance(built.learner, RowLearner)
        learner = QuantileLearner(built.learner, settings.quantile, targets=shape.targets)
        built = BuiltLearner(learner, learner.init(built.run), built.window)
    if settings.interval:
        from norewind.learners.intervals import IntervalLearner

        assert isinstance(built.learner, RowLearner)
        learner = IntervalLearner(
            built.learner, settings.interval, targets=shape.targets, gaussian=settings.loss == "gaussian"
        )
        built = BuiltLearner(learner, learner.init(built.run), built.window)
    if settings.key is None:
        return built
    assert isinstance(built.learner, Learner)
    fleet = Fleet(built.learner, built.run, share=settings.share, resident=settings.resident, table=shape.table)
    return BuiltLearner(fleet, fleet.init(), 1)


def _network(settings: Settings, shape: StreamShape) -> BuiltLearner:
    """Build one network, trained by the method that the settings name."""
    method, learner, init = _network_parts(settings, shape)
    parts = _output_parts(settings)
    learner, run = wrap_ahead(learner, init(), shape, loss_of(settings, shape), method.window, parts=parts)
    return BuiltLearner(learner, run, method.window)


def wrap_ahead(
    learner: OnlineLearner | PackedLearner,
    run: Run,
    shape: StreamShape,
    loss: Loss | None,
    window: int = 1,
    *,
    parts: int = 1,
    outputs: int = 0,
) -> tuple[Learner, Any]:
    """Wrap a network and its run to forecast rows; symbols need nothing more.

    Args:
        learner: the learner of the network.
        run: the run that the network starts from.
        shape: the sizes that the network must fit.
        loss: the loss of the forecasts of one row; None for a member of a mixture, which scores them itself.
        window: the number of samples that are learned from at once.
        parts: how many values the outputs hold per step and target.
        outputs: the outputs for all steps; by default those of the shape.
    """
    if shape.symbols:
        return learner, run
    ahead = AheadLearner(learner, loss, shape.steps, window, parts=parts)
    x, target = (np.zeros(width, np.float32) for width in (shape.inputs, len(shape.steps) * shape.targets))
    # Forecasts have the type of the parameters, also in double precision.
    output = np.zeros(outputs or len(shape.steps) * shape.outputs, jax.dtypes.canonicalize_dtype(float))
    return ahead, ahead.init(run, x, output, target)


def _network_parts(settings: Settings, shape: StreamShape) -> tuple[registry.Method, OnlineLearner, Callable[[], Run]]:
    """Return the method, its learner, and a function that starts a run. Only that function creates large arrays."""
    method = method_of(settings)
    cell = cell_of(settings, shape)
    loss = loss_of(settings, shape)
    optimizer = registry.optimizer(settings.optimizer)(inverse_sqrt(settings.rate, settings.alpha))
    if settings.clip:
        optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optimizer)
    example: Any = np.int32(0) if shape.symbols else jnp.zeros(shape.inputs)

    learner = online(method.make(cell.transition, loss, example), optimizer)
    return method, learner, partial(init_run, learner, cell, settings.seed)


def init_run(learner: OnlineLearner, cell: cells.Cell, seed: int, members: int | None = None) -> Run:
    """Return the initial run of a network.

    Args:
        learner: the learner of the network.
        cell: the cell that makes the initial parameters and state.
        seed: the seed of the parameters and the noise.
        members: the number of members of an ensemble, which all start with the same parameters.
    """

    # Compiled as one program instead of one per operation.
    @jax.jit
    def init() -> Run:
        weights, noise = jax.random.split(jax.random.key(seed))
        params, state = cell.init(weights), cell.initial_state()
        if members is not None:
            params, state = jax.tree.map(lambda leaf, count=members: jnp.stack([leaf] * count), (params, state))
        return init_online(learner.update, params, state, noise)

    return init()


def check_size(settings: Settings, shape: StreamShape) -> None:
    """Reject a run that does not fit into the memory of this machine, and say what would fit.

    Args:
        settings: the settings of the run, as for `build`.
        shape: the sizes that the model must fit.

    Raises:
        SettingsError: the run is too large.
    """
    limit, size = available_bytes(), bytes_of(settings, shape)
    if size <= limit:
        return
    takes = f"about {decimal(int(size))}" if size < inf else "an astronomical amount"
    remedy = "Choose a smaller model"
    smaller: dict[str, Callable[[int], StreamShape]] = {}
    if settings.method != registry.AUTO:
        smaller["hidden"] = lambda hidden: shape
    if shape.horizon > 1 and not settings.only_steps:
        smaller["horizon"] = lambda rows: shape._replace(steps=range(1, rows + 1))
    if settings.kind == "text" and settings.alphabet is None:
        smaller["alphabet_size"] = lambda symbols: shape._replace(inputs=symbols, outputs=symbols)

    def too_large(name: str, value: int) -> bool:
        try:
            return bytes_of(replace(settings, **{name: value}), smaller[name](value)) > limit
        except ValueError:
            return True

    for name in smaller:
        if most := bisect_left(range(1, getattr(settings, name)), True, key=partial(too_large, name)):
            remedy = f"With the other settings as they are, --{name.replace('_', '-')} {most} would fit"
            break
    raise SettingsError(f"this run would take {takes} of memory, but this machine has {decimal(limit)}. {remedy}.")


def bytes_of(settings: Settings, shape: StreamShape) -> float:
    """Return the memory that a run needs, in bytes; infinity if it cannot be computed.

    It consists of several copies of its arrays, rows that wait for their targets, and a chunk of samples.

    Args:
        settings: the settings of the run, as for `build`.
        shape: the sizes that the model must fit.
    """
    if settings.method != registry.AUTO:
        method, _, init = _network_parts(settings, shape)
        window = method.window
    else:
        # It is large only with many symbols or columns.
        is_large, window = max(shape.inputs, shape.outputs) > 256, 1
        small = shape._replace(steps=(min(1, shape.horizon),))
        init = (lambda: _auto(settings, small).run) if is_large else tuple
    width = 8 if settings.precision == "double" else 4
    row = (1 if shape.symbols else shape.inputs) + len(shape.steps) * (shape.outputs + shape.targets)
    intervals = 4 * shape.horizon * 2 * len(settings.interval) * len(shape.steps) * shape.targets
    pending_rows = (shape.horizon + window - 1 if shape.horizon else 0) * (width * row + 24 * shape.targets)
    experts = EXPERTS + OUTLOOK_EXPERTS * bool(shape.outlook.width) if settings.method == registry.AUTO else 1
    try:
        run = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(init)))
    except (OverflowError, MemoryError, TypeError):  # JAX raises a TypeError for too many random numbers
        return inf
    return COPIES * (run + intervals + experts * pending_rows) + max(MIN_CHUNK, window) * row * width


def available_bytes() -> int:
    """Return the memory that this process may use, in bytes."""
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text().strip() if limit.exists() else ""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, int(allowed)) if allowed.isdecimal() else physical


def _auto(settings: Settings, shape: StreamShape) -> BuiltLearner:
    """Build the default method."""
    from norewind.training import auto

    gaussian = settings.loss == "gaussian"
    budget = settings.budget
    seed = settings.seed
    if shape.symbols:
        return BuiltLearner(
            *auto.text(shape.inputs, budget, seed, only_targets=settings.per != "symbol"), registry.AUTO_WINDOW
        )
    if settings.share:
        single = auto.network(shape, gaussian, seed)
        return BuiltLearner(*wrap_ahead(*single, shape, loss_of(settings, shape), parts=_output_parts(settings)), 1)
    if settings.key is not None:
        return BuiltLearner(*auto.series_of_key(shape), 1)
    if settings.loss == "classes":
        return BuiltLearner(*auto.classes(shape, budget, seed), 1)
    return BuiltLearner(*auto.series(shape, gaussian, budget, seed), 1)


def cell_of(settings: Settings, shape: StreamShape) -> cells.Cell:
    """Return the cell that settings describe.

    Args:
        settings: the name of the cell, its hidden units and layers.
        shape: the sizes that the cell must fit.
    """
    make = registry.cell(settings.cell)
    width = settings.hidden
    outputs = len(shape.steps) * shape.outputs
    top = settings.layers - 1
    layers = [
        make(width if i else shape.inputs, width, width if i < top else outputs, symbols=shape.symbols and i == 0)
        for i in range(settings.layers)
    ]
    return cells.stack(*layers) if top else layers[0]


def loss_of(settings: Settings, shape: StreamShape) -> Loss:
    """Return the loss of one sample, in which missing targets do not count.

    Args:
        settings: the loss of a table; symbols have only one.
        shape: the sizes of the model.
    """
    if shape.symbols:
        return losses.cross_entropy
    if settings.loss == "classes":
        return losses.known_cross_entropy
    return losses.known_gaussian if settings.loss == "gaussian" else losses.known_squared_error


def _output_parts(settings: Settings) -> int:
    """Return how many outputs a target has: a mean, and with `gaussian` a variance."""
    return 2 if settings.loss == "gaussian" else 1


def in_precision(method: Callable) -> Callable:
    """Decorate a method of an object with `settings`, to run in their precision and leave the process in its own."""

    @wraps(method)
    def in_own_precision(self: Any, *arguments: Any, **options: Any) -> Any:
        is_double = self.settings.precision == "double"
        if jax.config.jax_enable_x64 == is_double:  # pyright: ignore[reportAttributeAccessIssue] (made when it is imported)
            return method(self, *arguments, **options)
        with jax.enable_x64(is_double):
            return method(self, *arguments, **options)

    return in_own_precision


def set_precision(settings: Settings) -> None:
    """Set single or double precision for the whole process."""
    jax.config.update("jax_enable_x64", settings.precision == "double")
