"""The default method: learners that suit the stream, within a time budget, mixed."""

from typing import TYPE_CHECKING, Any

import numpy as np

from norewind import cells, estimators, losses
from norewind.combinators import window
from norewind.estimator import Estimator
from norewind.learner import Learner, online
from norewind.learners.ahead import Ahead
from norewind.learners.class_squares import ClassSquares
from norewind.learners.classes import ClassLearner
from norewind.learners.least_squares import lags
from norewind.learners.series import FORGETTING, Series, linear_members, member
from norewind.learners.text import TextLearner
from norewind.names import AUTO_WINDOW
from norewind.optimizers import adam, inverse_sqrt
from norewind.run import Run
from norewind.runs.start import start

if TYPE_CHECKING:
    from norewind.runs.build import Shape

RATE, ALPHA = 5e-3, 0.005
COUNTS = 20
"""Microseconds that counts take per byte, on one core of the machine they were measured on."""
NETWORKS = {64: 8, 128: 20, 192: 51}
"""Microseconds per byte, by hidden units, of a GRU trained by truncated BPTT over 16 symbols."""
MEGABYTES = 64
LINEAR, NETWORK = 30, 10
"""Microseconds per row of all least squares together, and of one network of a series."""
RATES = (1e-3, 3e-4)
CLASS_RATES = (3e-3, 3e-4)
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
    sizes = shape.inputs, shape.targets
    members = linear_members(*sizes, shape.horizon)
    cell = cells.with_readout(
        cells.lru(shape.inputs, LRU, shape.targets, symbols=False), *sizes, hidden=LRU, symbols=False
    )
    estimator = estimators.snap1(cell.transition, losses.known_squared_error)
    for rate in RATES[: max(0, int((budget - LINEAR) / NETWORK))]:
        members.append(member(*_network(cell, estimator, rate, seed), *sizes, shape.horizon))
    learner = Series(members, shape.targets, shape.horizon, known=shape.known, gaussian=gaussian)
    return learner, learner.init()


def network(shape: "Shape", gaussian: bool, seed: int) -> tuple[Learner, Run]:
    """One network, like those that `series` trains."""
    sizes = shape.inputs, shape.outputs
    cell = cells.with_readout(
        cells.lru(shape.inputs, LRU, shape.outputs, symbols=False), *sizes, hidden=LRU, symbols=False
    )
    loss = losses.known_gaussian if gaussian else losses.known_squared_error
    return _network(cell, estimators.snap1(cell.transition, loss), RATES[0], seed)


def classes(shape: "Shape", budget: float, seed: int) -> tuple[ClassLearner, Any]:
    """Counts, least squares on the inputs, and as many networks as the budget allows, at least one."""
    sizes = shape.inputs, shape.outputs
    cell = cells.with_readout(
        cells.lru(shape.inputs, LRU, shape.outputs, symbols=False), *sizes, hidden=LRU, symbols=False
    )
    estimator = estimators.snap1(cell.transition, losses.known_cross_entropy)
    members = [_class_member(made, made.init(), shape) for made in _class_squares(*sizes)]
    for rate in CLASS_RATES[: max(1, int(budget / NETWORK))]:
        members.append(_class_member(*_network(cell, estimator, rate, seed), shape))
    made = ClassLearner(members, shape.outputs, shape.horizon)
    return made, made.init()


def _class_squares(inputs: int, classes: int) -> list[ClassSquares]:
    features = lags(inputs, 1)
    return [ClassSquares(features, classes, rate) for rate in FORGETTING]


def _class_member(learner: Any, run: Any, shape: "Shape") -> tuple:
    """A learner of classes and the run it starts from, as a member of a `ClassLearner`."""
    if not shape.horizon:
        return learner, run
    ahead = Ahead(learner, losses.known_cross_entropy, shape.horizon)
    x, output, target = (np.zeros(width, np.float32) for width in (shape.inputs, shape.outputs, 1))
    return ahead, ahead.init(run, x, output, target)


def _network(cell: cells.Cell, estimator: Estimator, rate: Any, seed: int) -> tuple[Learner, Run]:
    """A learner that drops what is not finite, and the run it starts from."""
    learner = online(estimator, adam(rate), nonfinite="skip")
    return learner, start(learner, cell, seed)
