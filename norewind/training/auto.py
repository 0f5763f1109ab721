"""The default method: a mixture of learners that suit the stream and fit a time budget."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import optax

from norewind import cells, estimators
from norewind.core import losses
from norewind.core.combinators import ensemble, window
from norewind.core.estimator import Estimator, Loss
from norewind.core.optimizers import adam, inverse_sqrt, scale_members
from norewind.core.run import Run
from norewind.learners.mixture import FirstInputs, Member
from norewind.learners.online import OnlineLearner, online
from norewind.learners.packing import PackedLearner
from norewind.training.build import init_run, wrap_ahead
from norewind.training.registry import AUTO_WINDOW

# Modules for only one kind of stream are imported where they are used, since kernels take time to import.
if TYPE_CHECKING:
    from norewind.learners.class_mixture import ClassMixture
    from norewind.learners.least_squares import LeastSquares
    from norewind.learners.number_mixture import NumberMixture
    from norewind.learners.symbol_mixture import SymbolMixture
    from norewind.training.open_stream import StreamShape

TEXT_RATE, TEXT_ALPHA = 5e-3, 0.005
# Microseconds per byte of counts, on one core of the machine they were measured on.
COUNTS_MICROSECONDS = 5
# Microseconds per byte, by hidden units, of a GRU trained by truncated BPTT over 16 symbols.
GRU_MICROSECONDS = {64: 20, 128: 36, 144: 43, 192: 62}
COUNTS_MEGABYTES = 128
# Microseconds per row of all least-squares models together, and of one network of a series.
LINEAR_MICROSECONDS, NETWORK_MICROSECONDS = 30, 10
SERIES_RATES = (1e-3, 3e-4)
CLASS_RATES = (3e-3, 3e-4)
# The forgetting factors of least squares for classes.
CLASS_FORGETTING = {"least squares": 0.9998, "least squares, fast": 0.998}
# The number of random features of rows without order in time.
FEATURES = 256
ON_FEATURES = "least squares on random features"
LRU_UNITS = 32
# Least squares for the rows of one key.
KEY_LAGS = 8
KEY_FORGETTING = 0.9998
KEY_LIMIT = 5.0


def text(symbols: int, budget: float, seed: int, *, only_targets: bool = False) -> tuple["SymbolMixture", Any]:
    """Return a learner of text, and its run: counts, and the largest network that the budget allows.

    Args:
        symbols: the number of symbols.
        budget: the time that one symbol may take, in microseconds on one core.
        seed: the seed of the network.
        only_targets: see `SymbolMixture`.
    """
    from norewind.cells.dense import GruWindow
    from norewind.learners.symbol_mixture import SymbolMixture

    left = budget - COUNTS_MICROSECONDS
    hidden = max((size for size, cost in GRU_MICROSECONDS.items() if cost <= left), default=None)
    networks = []
    if hidden is not None:
        cell = cells.gru(inputs=symbols, hidden=hidden, outputs=symbols, symbols=True)
        _, loss = window(cell.transition, losses.cross_entropy)
        estimator = estimators.bptt(GruWindow(cell.transition), loss)
        networks.append(_network(cell, estimator, inverse_sqrt(TEXT_RATE, TEXT_ALPHA), seed))
    learner = SymbolMixture(
        networks, symbols, window=AUTO_WINDOW, megabytes=COUNTS_MEGABYTES, only_targets=only_targets
    )
    return learner, learner.init()


def series(shape: "StreamShape", gaussian: bool, budget: float, seed: int) -> tuple["NumberMixture", Any]:
    """Return a learner of a series, and its run: simple rules, least squares, and all networks that the budget allows.

    Args:
        shape: the inputs, targets and steps of the stream.
        gaussian: whether to forecast variances too.
        budget: the time that one row may take, in microseconds on one core.
        seed: the seed of the networks.
    """
    from norewind.learners.number_mixture import NumberMixture
    from norewind.learners.seasons import LONGEST_PERIOD
    from norewind.learners.series_models import MANY_OUTPUTS, SMOOTHINGS, linear_models

    rates = SERIES_RATES[: max(0, int((budget - LINEAR_MICROSECONDS) / NETWORK_MICROSECONDS))]
    members = [_networks(shape, shape.targets, losses.known_squared_error, rates, seed)] if rates else []
    if shape.steps == (0,) and shape.inputs > shape.previous:
        members = [*_similar_rows(shape), *members]
    if shape.outlook.width and shape.known:
        from norewind.learners.outlook import OutlookLearner

        members = [one._replace(learner=FirstInputs(one.learner, shape.inputs)) for one in members]
        ahead = OutlookLearner(shape.inputs, shape.targets, shape.steps, shape.known, shape.outlook)
        members.append(Member(ahead, ahead.init(), ahead.names))
    sizes = shape.inputs, len(shape.steps) * shape.targets, len(shape.known)
    learner = NumberMixture(
        shape.inputs,
        shape.targets,
        steps=shape.steps,
        models=linear_models(*sizes, few=budget < LINEAR_MICROSECONDS),
        smoothings=SMOOTHINGS if len(shape.steps) * shape.targets <= MANY_OUTPUTS else (),
        members=members,
        known=shape.known,
        gaussian=gaussian,
        periods=[period for period in shape.periods if period <= LONGEST_PERIOD],
        scales=shape.scales,
    )
    return learner, learner.init()


def _similar_rows(shape: "StreamShape") -> list[Member]:
    """Return the members for rows without order in time: neighbours, and least squares on random features.

    They do not see the targets of the row before, which would make similar rows seem far apart.

    Args:
        shape: the inputs and targets of the stream.
    """
    from norewind.learners.least_squares import LeastSquares
    from norewind.learners.number_neighbours import NumberNeighbours
    from norewind.learners.random_features import RandomFeatures

    own = shape.inputs - shape.previous
    on_features = LeastSquares(FEATURES, shape.targets, forgetting=KEY_FORGETTING, limit=KEY_LIMIT, together=True)
    features = RandomFeatures(on_features, own, FEATURES)
    neighbours = NumberNeighbours(own, shape.targets)
    return [
        Member(features, features.init(), (ON_FEATURES,)),
        Member(neighbours, neighbours.init(), _neighbour_names(neighbours.windows)),
    ]


def _neighbour_names(windows: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"neighbours among {rows} rows" for rows in windows)


def classes(shape: "StreamShape", budget: float, seed: int) -> tuple["ClassMixture", Any]:
    """Return a learner of classes, and its run: counts, least squares, neighbours, and the networks in the budget.

    Least squares is on the inputs and on random Fourier features of them. Neighbours and random features do not see
    which class came last, which would make similar rows seem far apart. There is always at least one network.

    Args:
        shape: the inputs, outputs and steps of the stream.
        budget: the time that one row may take, in microseconds on one core.
        seed: the seed of the networks.
    """
    from norewind.learners.calibrated import CalibratedLearner
    from norewind.learners.class_least_squares import ClassLeastSquares
    from norewind.learners.class_mixture import ClassMixture
    from norewind.learners.neighbours import ClassNeighbours
    from norewind.learners.random_features import RandomFeatures

    def least_squares(inputs: int, forgetting: float) -> ClassLeastSquares:
        return ClassLeastSquares(inputs, shape.outputs, steps=shape.steps, forgetting=forgetting)

    members = [
        Member(one := CalibratedLearner(least_squares(shape.inputs, forgetting), shape.outputs), one.init(), (name,))
        for name, forgetting in CLASS_FORGETTING.items()
    ]
    if own := shape.inputs - shape.previous:
        on_features = least_squares(FEATURES, max(CLASS_FORGETTING.values()))
        features = CalibratedLearner(RandomFeatures(on_features, own, FEATURES), shape.outputs)
        votes = ClassNeighbours(own, shape.outputs, steps=shape.steps)
        neighbours = CalibratedLearner(votes, shape.outputs, forecasts=len(votes.windows))
        members.append(Member(features, features.init(), (ON_FEATURES,)))
        members.append(Member(neighbours, neighbours.init(), _neighbour_names(votes.windows)))
    rates = CLASS_RATES[: max(1, int(budget / NETWORK_MICROSECONDS))]
    networks = _networks(shape, shape.outputs, losses.known_cross_entropy, rates, seed)
    learner = ClassMixture([*members, networks], shape.outputs, shape.steps)
    return learner, learner.init()


def series_of_key(shape: "StreamShape") -> tuple["LeastSquares", Any]:
    """Return a learner of the series of one key, and its run: least squares on the latest rows.

    A single key has few rows. Least squares learns from tens of them what a network learns
    from thousands.

    Args:
        shape: the inputs, targets and steps of the stream.
    """
    from norewind.learners.least_squares import LeastSquares

    learner = LeastSquares(
        shape.inputs,
        shape.targets,
        steps=shape.steps,
        lags=KEY_LAGS,
        forgetting=KEY_FORGETTING,
        limit=KEY_LIMIT,
        together=True,  # a covariance per target would multiply the memory of every key
    )
    return learner, learner.init()


def network(shape: "StreamShape", gaussian: bool, seed: int) -> tuple[OnlineLearner, Run]:
    """Return one network like those that `series` trains, and its run.

    Args:
        shape: the inputs, outputs and steps of the stream.
        gaussian: whether to forecast variances too.
        seed: the seed of the network.
    """
    loss = losses.known_gaussian if gaussian else losses.known_squared_error
    cell = _cell(shape.inputs, len(shape.steps) * shape.outputs)
    return _network(cell, estimators.snap1(cell.transition, loss), SERIES_RATES[0], seed)


def _networks(shape: "StreamShape", width: int, loss: Loss, rates: Sequence[float], seed: int) -> Member:
    """Return networks with different rates, as one member of a mixture.

    Each has `width` outputs per step. Their runs are packed, for single rows.
    """
    members, outputs = len(rates), len(shape.steps) * width
    cell = _cell(shape.inputs, outputs)
    estimator = ensemble(estimators.snap1(cell.transition, loss), members)
    learner = online(estimator, optax.chain(adam(1.0), scale_members(rates)), nonfinite="skip")
    run = init_run(learner, cell, seed, members)
    packed = PackedLearner(learner)
    ahead, init = wrap_ahead(packed, run, shape, None, parts=members, outputs=members * outputs)
    names = tuple(f"network, step size {rate:g}" for rate in rates)
    return Member(ahead, init._replace(run=packed.pack(init.run)), names)


def _cell(inputs: int, outputs: int) -> cells.Cell:
    lru = cells.lru(inputs, LRU_UNITS, outputs, symbols=False)
    return cells.with_readout(lru, inputs, outputs, hidden=LRU_UNITS, symbols=False)


def _network(
    cell: cells.Cell, estimator: Estimator, rate: optax.ScalarOrSchedule, seed: int
) -> tuple[OnlineLearner, Run]:
    """Return a learner that drops samples with non-finite gradients, and the run it starts from."""
    learner = online(estimator, adam(rate), nonfinite="skip")
    return learner, init_run(learner, cell, seed)
