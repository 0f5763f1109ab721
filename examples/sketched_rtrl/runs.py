"""One run of the tables: a tanh network of 64 units learns eight lanes of a series."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.sketched_rtrl.leaky_traces import LEAK, leaky_traces
from examples.sketched_rtrl.series import LANES, SERIES, lanes_of
from norewind.cells import elman
from norewind.cells.cell import Cell
from norewind.core.combinators import parallel
from norewind.core.estimator import Estimate, Estimator
from norewind.core.run import NonFiniteError, Run
from norewind.core.trees import Tree
from norewind.estimators import snap1
from norewind.estimators.traces import without_cross_terms
from norewind.learners.online import OnlineLearner, online
from norewind.sweeps.record import Record
from norewind.training.registry import parse_method
from norewind.wording import digits

UNITS = 64
RATE = 1e-3
SAMPLES = 15_000
# State and influence of all lanes are reset after this many samples.
EPISODE = 200
# After sample 1 and every 250 samples, the mean of the last 200 losses is noted; the result is the mean of the last
# five notes.
NOTE_EVERY, NOTED, NOTES = 250, 200, 5
# Cosines are means over the last episodes, of seed 0 only: the exact gradient takes longer than most methods.
# (The paper notes them as it does losses. Episodes begin without influence, so no others are needed.)
COSINE_EPISODES, COSINE_SEED = 3, 0
LEAKY = f"leaky_traces:leak={LEAK}"
# SnAp-1 as in the published code, which masks the influence before it takes the gradient of the step. Ours takes the
# gradient of the whole model within a step.
MASKED = "snap1:masked"
# Methods whose rows the paper has, with the label of its row.
PUBLISHED = {
    "rtrl": "exact RTRL",
    "sketched:terms=32": "SK-RTRL r = 32",
    "sketched:terms=16": "SK-RTRL r = 16",
    "sketched:terms=4": "SK-RTRL r = 4",
    MASKED: "SnAp-1",
    "kf_rtrl": "KF-RTRL",
    LEAKY: "RFLO",
    "uoro": "UORO",
    "bptt:25": "truncated BPTT, 25",
}
METHODS = (
    *PUBLISHED,
    "snap1",
    "unbiased:of=snap1",
    "shrunk:of=snap1",
    "unbiased:of=sketched,terms=4",
    "kronecker",
    "uoro:rank=8",
    "nobacktrack",
    "rflo",
)


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """The settings of one run.

    Args:
        series: the name of the series.
        method: the method, by name.
        seed: the seed of the series, the weights and the noise.
        samples: the number of samples of every lane.
        rate: the learning rate of Adam.
    """

    series: str
    method: str
    seed: int = 0
    samples: int = SAMPLES
    rate: float = RATE

    @property
    def name(self) -> str:
        method = self.method.replace(":", "-").replace(",", "-")
        return f"{self.series}-{method}-{self.samples}-seed{self.seed}"


def table_plan(methods: Sequence[str], seeds: Sequence[int], samples: int = SAMPLES) -> dict[str, TableRun]:
    """Plan the runs of the tables, the first seed of all methods first.

    Args:
        methods: the methods, by name.
        seeds: the seeds.
        samples: the number of samples of every lane.
    """
    runs = [
        TableRun(series=series, method=method, seed=seed, samples=samples)
        for seed, method, series in product(seeds, methods, SERIES)
    ]
    return {run.name: run for run in runs}


class Learners(NamedTuple):
    """The compiled programs of a method, which are the same for all series and seeds.

    Attributes:
        alone: the learner.
        beside: the same learner, with the exact gradient computed beside its own; None for windows and for `rtrl`.
        exact: the estimator of that exact gradient.
        window: the number of samples in one step.
    """

    alone: OnlineLearner
    beside: OnlineLearner | None
    exact: Estimator
    window: int


@cache
def learners_of(method: str, rate: float) -> Learners:
    """Return the learners of a method.

    Args:
        method: the method, by name.
        rate: the learning rate of Adam.
    """
    cell = elman(1, UNITS, 1, symbols=False)
    single, window = estimator_of(method, cell)
    estimator, exact = parallel(single, LANES), parallel(estimator_of("rtrl", cell)[0], LANES)
    has_cosine = window == 1 and method != "rtrl"
    beside = online(with_cosine(estimator, exact), optax.adam(rate)) if has_cosine else None
    return Learners(online(estimator, optax.adam(rate)), beside, exact, window)


def train_table_run(data: Path, run: TableRun) -> Record:
    """Train one run without checkpoints, and note its losses and the cosines of its gradients with exact ones.

    Args:
        data: the folder with the real series.
        run: the settings of the run.

    Returns:
        The record of the run.
    """
    began = time.perf_counter()
    learners = learners_of(run.method, run.rate)
    inputs, targets = lanes_of(run.series, run.samples, run.seed, data)
    keys = jax.random.split(jax.random.key(run.seed), 2)
    cell = elman(1, UNITS, 1, symbols=False)
    params, state = initial_params(cell.init(keys[0]), keys[0]), jnp.zeros((LANES, UNITS))
    compares = learners.beside is not None and run.seed == COSINE_SEED
    alone = max(0, run.samples - COSINE_EPISODES * EPISODE) if compares else run.samples
    losses, cosines, problem, spent = [], [], None, None
    trained = learners.alone.init(params, state, keys[1])
    try:
        series = inputs[:alone], targets[:alone]
        trained, losses, _, spent = learn_episodes(learners.alone, trained, *series, learners.window)
        if compares and learners.beside is not None:
            carry = trained.carry, learners.exact.init(trained.params, state, keys[1])
            series = inputs[alone:], targets[alone:]
            _, last, cosines, _ = learn_episodes(learners.beside, trained._replace(carry=carry), *series, 1)
            losses = np.concatenate([losses, last])
    except NonFiniteError as error:
        problem = f"not finite after {int(error.run.samples):,} samples"
    return {
        "table": asdict(run),
        "seconds": round(time.perf_counter() - began, 1),
        "microseconds": digits(1e6 * spent) if spent else None,
        "problem": problem,
        "nmse": None if problem else digits(noted(losses)),
        "cosine": digits(np.mean(cosines)) if len(cosines) else None,
    }


def estimator_of(method: str, cell: Cell) -> tuple[Estimator, int]:
    """Return the estimator of a method of the tables for one lane, and the number of samples in one of its steps.

    Args:
        method: the method, by name.
        cell: the cell.
    """
    if method == LEAKY:
        return leaky_traces(cell, squared_error), 1
    if method == MASKED:
        return snap1(without_cross_terms("snap1", cell.transition), squared_error), 1
    parsed = parse_method(method)
    return parsed.make(cell.transition, squared_error, jnp.zeros(1)), parsed.window


def squared_error(output: jax.Array, target: jax.Array) -> jax.Array:
    """Return the squared error of the only output. The series have variance one, so its mean is the NMSE.

    Args:
        output: the output, one number.
        target: the next value.
    """
    return jnp.sum((output - target) ** 2)


def initial_params(params: Tree, key: jax.Array) -> Tree:
    """Return the initial weights of the protocol: uniform in ±1/√64, and recurrent biases of zero.

    Args:
        params: parameters of the same shapes.
        key: a PRNG key.
    """
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    bound = UNITS**-0.5
    drawn = [jax.random.uniform(k, leaf.shape, leaf.dtype, -bound, bound) for k, leaf in zip(keys, leaves, strict=True)]
    return {**jax.tree.unflatten(structure, drawn), "bias": jnp.zeros_like(params["bias"])}


def with_cosine(estimator: Estimator, exact: Estimator) -> Estimator:
    """Return an estimator that also runs an exact one; its output is the cosine between both recurrent gradients.

    Args:
        estimator: the estimator whose gradient is used.
        exact: an estimator of the same model.
    """

    def init(params, state, key):
        return estimator.init(params, state, key), exact.init(params, state, key)

    def step(params, state, carry, x, target):
        new_state, own, estimate = estimator.step(params, state, carry[0], x, target)
        _, other, truth = exact.step(params, state, carry[1], x, target)
        cosine = _cosine(_recurrent(estimate.grad), _recurrent(truth.grad))
        return new_state, (own, other), Estimate(estimate.loss, estimate.grad, cosine)

    return Estimator.build(init, step, estimator.model)


def _recurrent(grad: Tree) -> jax.Array:
    return jnp.concatenate([grad[name].ravel() for name in ("input", "recurrent", "bias")])


def _cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.vdot(a, b) / jnp.maximum(jnp.linalg.norm(a) * jnp.linalg.norm(b), 1e-30)


def learn_episodes(
    learner: OnlineLearner, run: Run, inputs: np.ndarray, targets: np.ndarray, window: int
) -> tuple[Run, np.ndarray, np.ndarray, float | None]:
    """Learn from episodes of 200 samples, each from a fresh state.

    Args:
        learner: the learner.
        run: the run to continue.
        inputs: the inputs of all lanes.
        targets: their targets.
        window: the number of samples in a window.

    Returns:
        The run, the mean loss of every sample, the outputs, and the best CPU time per sample.
    """
    losses, outputs, best = [np.zeros(0)], [np.zeros(0)], None
    for start in range(0, len(inputs), EPISODE):
        xs, ys = (part[start : start + EPISODE, :, None] for part in (inputs, targets))
        if window > 1:
            whole = len(xs) // window * window
            # (windows, lanes, samples of a window, 1)
            xs, ys = (part[:whole].reshape(-1, window, LANES, 1).swapaxes(1, 2) for part in (xs, ys))
        began = time.process_time()
        run, loss, output = learner.scan(learner.reset(run), xs, ys, outputs=window == 1)
        loss = np.asarray(loss)
        spent = (time.process_time() - began) / EPISODE
        best = spent if best is None else min(best, spent)
        losses.append(np.repeat(loss / window, window))
        if output is not None:
            outputs.append(np.asarray(output))
    return run, np.concatenate(losses), np.concatenate(outputs) if outputs[-1].ndim == 1 else np.zeros(0), best


def noted(values: Any) -> float:
    """Return the mean of the last notes of the losses, by the paper's protocol.

    Args:
        values: the loss of every sample of a run whose length is a multiple of 250.

    >>> noted(range(15_000))
    14150.5
    """
    values = np.asarray(values, float)
    last = len(values) - NOTE_EVERY + 1
    ends = [last - NOTE_EVERY * note for note in range(NOTES)]
    return float(np.mean([values[max(0, end - NOTED) : end].mean() for end in ends if end > 0]))
