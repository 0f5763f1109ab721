"""Training one's own models in this process, all rates and seeds of a method side by side."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import lcm
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from norewind.core import checks
from norewind.core.checks import ModelError
from norewind.core.estimator import Estimator, Loss, Transition
from norewind.core.optimizers import adam
from norewind.core.trees import Tree
from norewind.learners.online import OnlineLearner, online
from norewind.sweeps.record import Record
from norewind.training.registry import Method, parse_method
from norewind.wording import digits

# A model: (transition, loss, params, state).
Subject = tuple[Transition, Loss, Tree, Tree]
Methods = Sequence[str | Method] | Mapping[str, Callable[[Transition, Loss], Estimator]]

# Runs of models with at most this many numbers are computed side by side (vmap), others one after the other.
MAX_VMAPPED_NUMBERS = 100_000
RATES = (1e-2, 3e-3, 1e-3)


def methods_of(methods: Methods) -> list[Method]:
    """Return methods named or written by the user.

    Args:
        methods: names, or a dict of functions `(transition, loss) -> Estimator`, which take single samples.
    """
    if isinstance(methods, Mapping):
        return [Method(name, 1, lambda t, l, x, make=make: make(t, l)) for name, make in methods.items()]  # noqa: E741
    return [parse_method(method) if isinstance(method, str) else method for method in methods]


class OwnTraining(NamedTuple):
    """What the runs of a comparison share.

    Attributes:
        model: (transition, loss, params, state), or a function of the seed that returns them.
        stream: (xs, targets), or a function of the seed that returns them.
        seeds: the seeds of the runs.
        rates: the learning rates to try.
        optimizer: makes an optax optimizer for a learning rate.
    """

    model: Subject | Callable[[int], Subject]
    stream: tuple[Tree, Tree] | Callable[[int], tuple[Tree, Tree]]
    seeds: range
    rates: Sequence[float] = RATES
    optimizer: Callable[[Any], optax.GradientTransformation] = adam


def train_own(methods: Sequence[Method], training: OwnTraining, points: int) -> dict[str, Record]:
    """Train every method at every rate and with every seed.

    Args:
        methods: the methods.
        training: the model, the stream, the seeds and the rates.
        points: the number of points of a curve.

    Returns:
        The records by name. A method that rejects the model also has one, with the reason.
    """
    models = [training.model(seed) if callable(training.model) else training.model for seed in training.seeds]
    streams = [training.stream(seed) if callable(training.stream) else training.stream for seed in training.seeds]
    data = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *streams)
    length = min(checks.common_length("compare", xs=xs, targets=targets) for xs, targets in streams)
    block = lcm(*(method.window for method in methods))
    if length < block:
        raise ValueError(
            f"compare: the stream is shorter than one block of {block} samples, a multiple of all windows."
        )
    # Whole windows of all methods in every interval, so that all learn from the same samples.
    every = max(1, length // points // block) * block
    data = jax.tree.map(lambda leaf: leaf[:, : length // every * every], data)
    records = {}
    for method in methods:
        try:
            lanes = _train(method, models, data, training, every)
        except (ModelError, TypeError, ValueError) as error:
            lanes = [{"problem": f"rejected: {error}"}] * (len(training.rates) * len(training.seeds))
        keys = [(rate, seed) for rate in training.rates for seed in training.seeds]
        for (rate, seed), found in zip(keys, lanes, strict=True):
            settings = {"method": method.name, "rate": rate, "seed": seed}
            common = {"settings": settings, "window": method.window, "unit": "loss", "every": every}
            nothing = {"microseconds": None, "carried_bytes": None, "samples": 0, "curve": []}
            name = f"{method.name.replace(':', '-')}_rate{rate:g}_seed{seed}"
            records[name] = {**common, **nothing, **found}
    return records


def _train(method: Method, models: Sequence[Subject], data: Any, training: OwnTraining, every: int) -> list[Record]:
    """Train one method in lanes, rate by rate and seed by seed."""
    transition, loss, params, _ = models[0]
    estimator = method.make(transition, loss, jax.tree.map(lambda leaf: leaf[0, 0], data[0]))
    learner = online(estimator, optax.inject_hyperparams(lambda learning_rate: training.optimizer(learning_rate))(0.0))
    each = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[model[2:] for model in models])
    lanes = [(rate, index) for rate in training.rates for index in range(len(models))]
    rates, indices = (np.array(part) for part in zip(*lanes, strict=True))

    def start(rate, index):
        params, state = jax.tree.map(lambda leaf: leaf[index], each)
        key = jax.random.fold_in(jax.random.key(training.seeds.start), index)
        run = learner.init(params, state, key)
        current = run.opt_state.hyperparams["learning_rate"]
        rates = {"learning_rate": jnp.asarray(rate, current.dtype)}
        return run._replace(opt_state=run.opt_state._replace(hyperparams=rates))

    runs = jax.jit(jax.vmap(start))(rates, indices)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    side_by_side = numbers <= MAX_VMAPPED_NUMBERS
    losses, seconds = _learn(learner, runs, indices, data, method.window, every, side_by_side)
    carried = sum(leaf.nbytes for leaf in jax.tree.leaves(runs.carry)) // len(lanes)
    best = digits(1e6 * min(seconds[1:]) / (every * len(lanes))) if len(seconds) > 1 else None
    return [_record(curve, every, {"microseconds": best, "carried_bytes": carried}) for curve in losses]


def _learn(
    learner: OnlineLearner, runs: Any, indices: np.ndarray, data: Any, window: int, every: int, side_by_side: bool
) -> tuple[np.ndarray, list[float]]:
    """Train all lanes along the stream: the loss of every interval in each, and the CPU time of every interval."""

    @jax.jit
    def learn(runs, part):
        def lane(inputs):
            run, index = inputs
            xs, targets = jax.tree.map(lambda leaf: leaf[index], part)
            run, losses, _ = learner.scan(run, xs, targets)
            return run, jnp.mean(losses) / window

        return (jax.vmap(lane) if side_by_side else partial(jax.lax.map, lane))((runs, indices))

    curves, seconds = [], []
    for begin in range(0, jax.tree.leaves(data)[0].shape[1], every):
        part = jax.tree.map(lambda leaf, begin=begin: leaf[:, begin : begin + every], data)
        if window > 1:
            part = jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1, window, *leaf.shape[2:]), part)
        clock = time.process_time()
        runs, means = jax.block_until_ready(learn(runs, part))
        seconds.append(time.process_time() - clock)
        curves.append(np.asarray(means, float))
    return np.stack(curves, axis=1), seconds


def _record(curve: np.ndarray, every: int, facts: Record) -> Record:
    """The record of one lane, up to the first interval that is not finite."""
    bad = np.flatnonzero(~np.isfinite(curve))
    problem = f"diverged: numbers that are not finite before sample {every * (bad[0] + 1):,}." if len(bad) else None
    curve = curve[: bad[0]] if len(bad) else curve
    return {**facts, "samples": every * len(curve), "problem": problem, "curve": [digits(float(v)) for v in curve]}
