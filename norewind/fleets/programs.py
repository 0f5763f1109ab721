"""Compiled programs for batches of keys: of a few fixed sizes, so that a new key compiles nothing."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks
from norewind.chunks import chunk_is_finite, fast_step, scan_some, skipping_step, watching_step
from norewind.compilation import compiled_loop
from norewind.fleets.records import with_keys, without_keys
from norewind.learner import Online as Learner
from norewind.learner import _forward
from norewind.learners.least_squares import LeastSquares
from norewind.trees import Tree, all_finite

LANES = 32
"""Keys that a program computes side by side. The runs of this many small models fit a core's cache."""
LADDER = {32: 128, 256: 16}
"""The keys in a batch, and the most samples that it learns from each of them in a row. The runs of 256 small models
still fit the last cache; those of 4,096 do not."""
SMALL = 1000
"""Numbers in the run of a small model. With usual vectors, z * h + (1 - z) * c of a GRU with 3 or 4 units had other
bits for the first half of a group than for the second. Probably each half fuses another product into the sum; we have
not looked at the machine code. With narrow vectors we have not seen it, but large models would be slower."""


class Pure(NamedTuple):
    """A learner as functions of one key's run, to be compiled for many.

    `steps(run, xs, targets, newest, count)` and `careful`, which drops samples that are not
    finite, return `(run, (losses, outputs))`; `forward(run, xs, count)` returns
    `(run, outputs)`; `finite(before, after, losses)` says whether all went well.
    """

    steps: Callable
    careful: Callable
    forward: Callable
    finite: Callable


def pure(learner: Any) -> Pure:
    if isinstance(learner, LeastSquares):

        def solve(run, xs, targets, newest, count):
            return learner.pure_scan(run, (xs, targets, newest), count, True)

        return Pure(
            solve, solve, learner.pure_forward, lambda before, after, losses: all_finite((after.weights, losses))
        )
    if not isinstance(learner, Learner):
        raise checks.ModelError(
            f"fleet takes a learner from online(...), or LeastSquares, not a {type(learner).__name__}."
        )
    update = learner.update

    def of(step: Callable) -> Callable:
        def body(run, sample):
            (run,), loss, output = step(update, run, sample)
            return run, (loss, output)

        return lambda run, xs, targets, newest, count: scan_some(body, run, (xs, targets, newest), count)

    fast = of(fast_step if learner.stops else watching_step)
    return Pure(fast, of(skipping_step), lambda run, xs, count: _forward(update, run, xs, count), chunk_is_finite)


def in_lanes(function: Callable, keyed: tuple, count: jax.Array, filled: jax.Array) -> Any:
    """`function(*keyed, count)` for every key, in groups of `LANES` that go through the cache one after another.

    Only the first `filled` groups are computed.

    Every batch size runs the same loop over the same group, so that a key's numbers do not
    depend on the size of its batch, on its place there, or on its neighbours.
    """
    batch = jax.tree.leaves(keyed)[0].shape[0]
    groups = jax.tree.map(lambda leaf: leaf.reshape(batch // LANES, LANES, *leaf.shape[1:]), keyed)

    def group(nothing, part):
        return nothing, jax.vmap(function, in_axes=(0,) * len(keyed) + (None,))(*part, count)

    # A loop whose length the compiler does not know: a short one would become another program.
    out = scan_some(group, 0, groups, filled)[1]
    return jax.tree.map(lambda leaf: leaf.reshape(batch, *leaf.shape[2:]), out)


class Programs:
    """The programs of a learner whose keys have models of their own."""

    def __init__(self, learner: Any, like: Tree):
        functions = pure(learner)
        narrow = sum(np.size(leaf) for leaf in jax.tree.leaves(like)) <= SMALL

        def learn(steps: Callable, looks: bool) -> Callable:
            def one(run, xs, targets, newest, count):
                before = with_keys(run, like)
                after, (losses, outputs) = steps(before, xs, targets, newest, count)
                finite = functions.finite(before, after, losses) if looks else jnp.array(True)
                return without_keys(after), losses, outputs, finite

            def batch(runs, xs, targets, newest, count, filled):
                return in_lanes(one, (runs, xs, targets, newest), count, filled)

            return compiled_loop(batch, narrow=narrow)

        def answer(run, xs, count):
            run, outputs = functions.forward(with_keys(run, like), xs, count)
            return without_keys(run), outputs

        self.learn, self.careful = learn(functions.steps, True), learn(functions.careful, False)
        self.answer = compiled_loop(
            lambda runs, xs, count, filled: in_lanes(answer, (runs, xs), count, filled), narrow=narrow
        )


class Visit(NamedTuple):
    """Keys, by their numbers in a chunk, that learn from the same number of samples in a row, and their first rows."""

    keys: np.ndarray
    rows: np.ndarray
    length: int


def visits(starts: np.ndarray, counts: np.ndarray, longest: int) -> list[Visit]:
    """Cut the rows of every key into pieces of powers of two, and join pieces of the same length of many keys.

    Nothing is masked: all keys of a visit have as many rows. `starts` are the first rows of
    the keys, whose rows lie next to one another.
    """
    found = []
    done = np.zeros_like(counts)
    for length in [longest, *(longest >> shift for shift in range(1, longest.bit_length()))]:
        while len(keys := np.flatnonzero(counts - done >= length)):
            found.append(Visit(keys, starts[keys] + done[keys], length))
            done[keys] += length
    return found


def rung(keys: int) -> int:
    """The size of the batch for this many keys, or for the first of them."""
    return next((size for size in LADDER if size >= keys), max(LADDER))


def padded(part: np.ndarray, size: int, rows: int | None = None) -> np.ndarray:
    """An array with `size` keys: the first one again where there are fewer; and with `rows` rows each, of zeros."""
    if rows is not None and part.shape[1] < rows:
        full = np.zeros((len(part), rows, *part.shape[2:]), part.dtype)
        full[:, : part.shape[1]] = part
        part = full
    if len(part) == size:
        return part
    return np.concatenate([part, np.broadcast_to(part[:1], (size - len(part), *part.shape[1:]))])
