"""Train several methods on the same text from the same parameters."""

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import lcm

import jax
import numpy as np
import optax

from norewind import cells, checks
from norewind.checks import ModelError
from norewind.comparison.report import Comparison, Result
from norewind.learner import Learner, NonFiniteError, Run, online
from norewind.losses import BIT, cross_entropy
from norewind.methods import Method, parse_method
from norewind.named import CELLS, OPTIMIZERS, TASKS
from norewind.schedules import inverse_sqrt
from norewind.tasks import Text
from norewind.trees import Tree, is_key

POINTS = 100
"""The points of a curve."""


def compare(
    methods: Sequence[str | Method],
    *,
    task: str = "anbn",
    cell: str = "gru",
    units: int = 64,
    characters: int = 100_000,
    seeds: int = 1,
    rate: float = 1e-3,
    alpha: float = 0.03,
    optimizer: str = "adam",
    report: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Train every method on the same text from the same initial parameters.

    The learning rate is `rate` / (1 + `alpha` √t). A seed determines the weights, the
    noise and the text. A method that refuses the cell, or whose numbers stop being
    finite, stays in the result with the reason. `report` gets a line after each run.

    >>> result = compare(["uoro", "bptt:4", "lstm97"], cell="gru", units=4, characters=400)
    >>> [(row.method, row.problem is None) for row in result.results]
    [('uoro', True), ('bptt:4', True), ('lstm97', False)]
    """
    chosen = [parse_method(method) if isinstance(method, str) else method for method in methods]
    for what, name, known in (("task", task, TASKS), ("cell", cell, CELLS), ("optimizer", optimizer, OPTIMIZERS)):
        if name not in known:
            raise ValueError(f"no {what} is called {name!r}: choose from {', '.join(known)}.")
    for what, number in (("units", units), ("characters", characters), ("seeds", seeds)):
        checks.at_least_one(f"compare: {what}", number)
    if not rate > 0 or not alpha >= 0:
        raise ValueError(f"compare: rate must be above 0 and alpha at least 0, not {rate:g} and {alpha:g}.")
    text = TASKS[task]()
    symbols = len(text.alphabet)
    model = CELLS[cell](symbols, units, symbols)
    # A chunk holds whole windows of every method, so that all of them see the same characters.
    block = lcm(*(method.memory for method in chosen))
    chunk = max(1, round(characters / POINTS / block)) * block
    chunks = max(2, characters // chunk)
    rule = partial(OPTIMIZERS[optimizer], inverse_sqrt(rate, alpha))

    results = []
    for method in chosen:
        learner_of = cache(partial(_learner, method, model, rule()))
        for seed in range(seeds):
            results.append(_train(method, learner_of, model, text, seed, chunk, chunks))
            report(f"seed {seed}, {results[-1].summary()}")
    return Comparison(
        task=text.name,
        floor=text.floor,
        naive=text.naive,
        cell=cell,
        units=units,
        chunk=chunk,
        optimizer=f"{optimizer} at {rate:g} / (1 + {alpha:g} √t)",
        results=results,
    )


def _learner(method: Method, cell: cells.Cell, rule: optax.GradientTransformation) -> Learner:
    return online(method.make(cell.transition, cross_entropy, np.int32(0)), rule)


def _train(method: Method, learner_of, cell: cells.Cell, text: Text, seed: int, chunk: int, chunks: int) -> Result:
    weights, noise = jax.random.split(jax.random.key(seed))
    params, state = cell.init(weights), cell.initial_state()
    pairs = text.pairs(seed, chunk)
    curve: list[float] = []
    seconds: list[float] = []
    carried = None
    try:
        learner = learner_of()
        run = learner.init(params, state, noise)
        carried = carried_bytes(run)
        for _ in range(chunks):
            xs, targets = (_windows(data, method.memory) for data in next(pairs))
            start = time.process_time()
            run, losses = learner.scan(run, xs, targets)
            curve.append(float(np.asarray(losses, np.float64).sum()) / BIT / chunk)
            seconds.append(time.process_time() - start)
    except ModelError as error:
        return Result(method.name, seed, [], None, None, f"refused: {error}")
    except NonFiniteError as error:
        problem = f"not finite after {error.step * method.memory} characters"
        return Result(method.name, seed, curve, None, carried, problem)
    # The first chunk compiles; of the rest the best, since other processes only ever add to it.
    return Result(method.name, seed, curve, 1e6 * min(seconds[1:]) / chunk, carried, None)


def carried_bytes(run: Run) -> int:
    """What a method carries from step to step in place of the past."""
    return _bytes(run.carry)


def _bytes(tree: Tree) -> int:
    leaves = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree))
    return sum(leaf.nbytes for leaf in leaves)


def _windows(symbols: np.ndarray, memory: int) -> np.ndarray:
    return symbols if memory == 1 else symbols.reshape(-1, memory)
