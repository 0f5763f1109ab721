"""The default: the best members for a stream, within a budget of time, mixed."""

from typing import TYPE_CHECKING, Any

import jax

from norewind import cells, estimators, losses
from norewind.combinators import window
from norewind.learner import online
from norewind.learners.series import Series, linear_members, member
from norewind.learners.text import TextLearner
from norewind.names import AUTO_WINDOW
from norewind.optimizers import adam, inverse_sqrt

if TYPE_CHECKING:
    from norewind.runs.build import Shape

RATE, ALPHA = 5e-3, 0.005
COUNTS = 20
"""Microseconds that counts take for a byte, on one core of the machine that docs/speed.md names."""
NETWORKS = {64: 8, 128: 20, 192: 51}
"""Microseconds for a byte, by hidden units of a GRU trained by truncated BPTT over 16 symbols."""
MEGABYTES = 64
LINEAR, NETWORK = 30, 10
"""Microseconds that all least squares, and one network of a series, take for a row."""
RATES = (1e-3, 3e-4)
LRU = 32


def text(symbols: int, budget: float, seed: int) -> tuple[TextLearner, Any]:
    """Counts, and the largest network that the budget allows beside them."""
    hidden = max((size for size, cost in NETWORKS.items() if COUNTS + cost <= budget), default=None)
    networks = []
    if hidden is not None:
        cell = cells.gru(inputs=symbols, hidden=hidden, outputs=symbols, symbols=True)
        estimator = estimators.bptt(*window(cell.transition, losses.cross_entropy))
        learner = online(estimator, adam(inverse_sqrt(RATE, ALPHA)), nonfinite="skip")
        weights, noise = jax.random.split(jax.random.key(seed))
        networks.append((learner, learner.init(cell.init(weights), cell.initial_state(), noise)))
    learner: Any = TextLearner(networks, symbols, window=AUTO_WINDOW, megabytes=MEGABYTES)
    return learner, learner.init()


def series(shape: "Shape", gaussian: bool, budget: float, seed: int) -> tuple[Series, Any]:
    """Simple rules, least squares, and as many networks as the budget allows beside them."""
    sizes = shape.inputs, shape.targets
    members = linear_members(*sizes, shape.horizon)
    cell = cells.with_readout(
        cells.lru(shape.inputs, LRU, shape.targets, symbols=False), *sizes, hidden=LRU, symbols=False
    )
    estimator = estimators.snap1(cell.transition, losses.known_squared_error)
    for rate in RATES[: int((budget - LINEAR) / NETWORK)]:
        learner = online(estimator, adam(rate), nonfinite="skip")
        weights, noise = jax.random.split(jax.random.key(seed))
        run = learner.init(cell.init(weights), cell.initial_state(), noise)
        members.append(member(learner, run, *sizes, shape.horizon))
    learner = Series(members, shape.targets, shape.horizon, known=shape.known, gaussian=gaussian)
    return learner, learner.init()
