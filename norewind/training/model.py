"""From settings and a stream to a learner and the run it starts from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from norewind import cells, losses
from norewind.learner import Learner, Run, online
from norewind.methods import Method, parse_method
from norewind.named import CELLS, OPTIMIZERS
from norewind.schedules import inverse_sqrt
from norewind.training.settings import Settings, SettingsError


class Shape(NamedTuple):
    """What a model must fit: how many inputs and outputs, and whether its inputs are symbols."""

    inputs: int
    outputs: int
    symbols: bool


class Trained(NamedTuple):
    """A model that is trained: how it learns, where it starts, how it answers, and the samples in one step."""

    learner: Learner
    run: Run
    transition: Callable
    memory: int


def build(settings: Settings, shape: Shape) -> Trained:
    """The learner that settings describe, and the run that their seed starts from."""
    method = method_of(settings)
    cell = cell_of(settings, shape)
    loss = losses.cross_entropy
    example: Any = np.int32(0)
    if not shape.symbols:
        loss = losses.known_gaussian if settings.loss == "gaussian" else losses.known_squared_error
        example = jnp.zeros(shape.inputs)
    weights, noise = jax.random.split(jax.random.key(settings.seed))
    try:
        learner = online(method.make(cell.transition, loss, example), optimizer_of(settings))
        run = learner.init(cell.init(weights), cell.initial_state(), noise)
    except ValueError as error:
        raise SettingsError(f"method {settings.method} does not go with cell {settings.cell}: {error}") from None
    return Trained(learner, run, cell.transition, method.memory)


def method_of(settings: Settings) -> Method:
    """The method that settings name."""
    try:
        return parse_method(settings.method)
    except ValueError as error:
        raise SettingsError(f"method: {error}") from None


def cell_of(settings: Settings, shape: Shape) -> cells.Cell:
    """The cell that settings name; several of them on top of each other make one."""
    make, width = CELLS[settings.cell], settings.hidden
    below = [
        make(width if i else shape.inputs, width, width, symbols=shape.symbols and i == 0)
        for i in range(settings.layers - 1)
    ]
    top = make(width if below else shape.inputs, width, shape.outputs, symbols=shape.symbols and not below)
    return cells.stack(*below, top) if below else top


def optimizer_of(settings: Settings) -> optax.GradientTransformation:
    """The optimizer that settings name, with its schedule and clipping."""
    rule = OPTIMIZERS[settings.optimizer](inverse_sqrt(settings.rate, settings.alpha))
    return optax.chain(optax.clip_by_global_norm(settings.clip), rule) if settings.clip else rule
