"""The default method: learners that suit the stream, within a time budget, mixed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import optax

from norewind import cells, estimators, losses
from norewind.combinators import ensemble, window
from norewind.estimator import Estimator, Loss
from norewind.learner import Online, online
from norewind.learners.ahead import Ahead
from norewind.learners.class_squares import ClassSquares
from norewind.learners.classes import ClassLearner
from norewind.learners.protocol import Learner
from norewind.learners.series import Series, linear_models
from norewind.learners.text import TextLearner
from norewind.names import AUTO_WINDOW
from norewind.optimizers import adam, inverse_sqrt, scale_members
from norewind.packing import pack
from norewind.run import Run
from norewind.runs.build import start

if TYPE_CHECKING:
    from norewind.runs.build import Shape

RATE, ALPHA = 5e-3, 0.005
# Microseconds that counts take per byte, on one core of the machine they were measured on.
COUNTS = 5
# Microseconds per byte, by hidden units, of a GRU trained by truncated BPTT over 16 symbols.
NETWORKS = {64: 14, 128: 33, 192: 75}
MEGABYTES = 64
# Microseconds per row of all least squares together, and of one network of a series.
LINEAR, NETWORK = 30, 10
RATES = (1e-3, 3e-4)
CLASS_RATES = (3e-3, 3e-4)
# Of least squares for classes.
FORGETTING = (0.9998, 0.998)
LRU = 32


def text(symbols: int, budget: float, seed: int, *, whole: bool = True) -> tuple[TextLearner, Any]:
    """Counts, and the largest network that the budget allows; for `whole`, see `TextLearner`."""
    hidden = max((size for size, cost in NETWORKS.items() if COUNTS + cost <= budget), default=None)
    networks = []
    if hidden is not None:
        cell = cells.gru(inputs=symbols, hidden=hidden, outputs=symbols, symbols=True)
        estimator = estimators.bptt(*window(cell.transition, losses.cross_entropy))
        networks.append(_network(cell, estimator, inverse_sqrt(RATE, ALPHA), seed))
    learner: Any = TextLearner(networks, symbols, window=AUTO_WINDOW, megabytes=MEGABYTES, whole=whole)
    return learner, learner.init()


def series(shape: "Shape", gaussian: bool, budget: float, seed: int) -> tuple[Series, Any]:
    """Simple rules, least squares, and as many networks as the budget allows."""
    rates = RATES[: max(0, int((budget - LINEAR) / NETWORK))]
    members = [_networks(shape, shape.targets, losses.known_squared_error, rates, seed)] if rates else []
    learner = Series(
        shape.inputs,
        shape.targets,
        steps=shape.steps,
        models=linear_models(shape.inputs, len(shape.steps) * shape.targets),
        members=members,
        known=shape.known,
        gaussian=gaussian,
    )
    return learner, learner.init()


def classes(shape: "Shape", budget: float, seed: int) -> tuple[ClassLearner, Any]:
    """Counts, least squares on the inputs, and as many networks as the budget allows, at least one."""
    linear = [ClassSquares(shape.inputs, shape.outputs, steps=shape.steps, forgetting=rate) for rate in FORGETTING]
    rates = CLASS_RATES[: max(1, int(budget / NETWORK))]
    networks = _networks(shape, shape.outputs, losses.known_cross_entropy, rates, seed)
    made = ClassLearner([*((one, one.init(), 1) for one in linear), networks], shape.outputs, shape.steps)
    return made, made.init()


def network(shape: "Shape", gaussian: bool, seed: int) -> tuple[Online, Run]:
    """One network, like those that `series` trains."""
    loss = losses.known_gaussian if gaussian else losses.known_squared_error
    cell = _cell(shape.inputs, len(shape.steps) * shape.outputs)
    return _network(cell, estimators.snap1(cell.transition, loss), RATES[0], seed)


def _networks(shape: "Shape", width: int, loss: Loss, rates: Sequence[float], seed: int) -> tuple[Learner, Any, int]:
    """Networks that differ in their rates, as one member of a mixture: the learner, its run, and how many there are.

    Each has `width` outputs per step. Their runs are packed, for single rows.
    """
    members, outputs = len(rates), len(shape.steps) * width
    cell = _cell(shape.inputs, outputs)
    estimator = ensemble(estimators.snap1(cell.transition, loss), members)
    learner = online(estimator, optax.chain(adam(1.0), scale_members(rates)), nonfinite="skip")
    run = start(learner, cell, seed, members)
    if not shape.horizon:
        return learner, pack(run), members
    ahead = Ahead(learner, None, shape.steps, parts=members)
    x, output, target = (
        np.zeros(size, np.float32) for size in (shape.inputs, members * outputs, len(shape.steps) * shape.targets)
    )
    first = ahead.init(run, x, output, target)
    return ahead, first._replace(run=pack(first.run)), members


def _cell(inputs: int, outputs: int) -> cells.Cell:
    lru = cells.lru(inputs, LRU, outputs, symbols=False)
    return cells.with_readout(lru, inputs, outputs, hidden=LRU, symbols=False)


def _network(cell: cells.Cell, estimator: Estimator, rate: Any, seed: int) -> tuple[Online, Run]:
    """A learner that drops what is not finite, and the run it starts from."""
    learner = online(estimator, adam(rate), nonfinite="skip")
    return learner, start(learner, cell, seed)
