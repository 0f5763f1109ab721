"""Keys with their own networks: batches of keys go through one program, each with several samples in a row.

Batches have a few fixed sizes, so that a new key compiles nothing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from norewind.core.run import Nonfinite, Run
from norewind.core.trees import Tree, key_from_numbers, key_numbers
from norewind.engines.aligned_arrays import aligned_array
from norewind.engines.compilation import compiled_loop
from norewind.learners.chunks import chunk_is_finite, scan_some
from norewind.learners.keyed.keyed_program import SlotArrays
from norewind.learners.online import OnlineLearner, forward_samples

# The number of keys that a program computes in parallel. The runs of this many small models fit a core's cache.
LANES = 32
# Batch sizes in keys, with the most samples per key in one call. The runs of 256 small models still fit the
# last-level cache; those of 4,096 do not.
BATCH_SIZES = {32: 128, 256: 16}
# The most numbers in the run of a small model. XLA may round the lanes of a small model (a GRU with 3 or 4 units)
# differently when vectors are wide, so models up to this size are compiled with vectors of 64 bits. Large models
# would be slower with them.
MAX_SMALL_RUN = 1000


class SeparateNetworks:
    """Learns every key's samples with the key's own run. Each leaf of a run is an array of all slots.

    Args:
        learner: the network, from `online`.
        start: the run that every key starts from.

    Attributes:
        own: the initial arrays that every key has for itself, by name.
        shared: the initial value of everything that all keys share: nothing.
    """

    def __init__(self, learner: OnlineLearner, start: Run):
        update = learner.update
        leaves = without_prng_keys(start)
        self.own = {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}
        self.shared = ()
        self._structure = jax.tree.structure(start)
        narrow = sum(np.size(leaf) for leaf in leaves) <= MAX_SMALL_RUN

        def learn(nonfinite: Nonfinite) -> Callable:
            def body(run, sample):
                run, estimate, _ = update.step(run, *sample, nonfinite=nonfinite)
                return run, (estimate.loss, estimate.output)

            def one(run, xs, targets, latest, count):
                before = with_prng_keys(run, start)
                after, (losses, outputs) = scan_some(body, before, (xs, targets, latest), count)
                finite = jnp.array(True) if nonfinite == "skip" else chunk_is_finite(before, after, losses)
                return without_prng_keys(after), losses, outputs, finite

            return in_lanes(one, narrow)

        def answer(run, xs, count):
            run, outputs = forward_samples(update, with_prng_keys(run, start), xs, count)
            return without_prng_keys(run), outputs

        self._learned = learn("ignore" if learner.stops else "mark")
        self._skipping = learn("skip")
        self._answered = in_lanes(answer, narrow)

    def learn(
        self, shared: Tree, arrays: SlotArrays, slots: np.ndarray, rows: tuple, learns: np.ndarray
    ) -> tuple[Tree, np.ndarray, np.ndarray]:
        """Learn from rows. A row that cannot be learned from yet is only answered.

        Args:
            shared: the part that all keys share; it must not be used afterwards.
            arrays: the arrays of all slots, changed in place.
            slots: the slot of each row's key.
            rows: the inputs, the targets, and newer inputs to answer (or None).
            learns: whether each row can be learned from.

        Returns:
            `(shared, outputs, losses)`.
        """
        # First the rows that cannot be learned from yet, then the others.
        order, (key_slots, starts, counts) = sorted_by_key(slots)
        idle = np.add.reduceat(~learns[order], starts, dtype=int)
        longest, results_at = BATCH_SIZES[batch_size(len(key_slots))], []
        for keys, at in visits(order, starts, idle, longest):
            after, outputs = self._answered(*self._batch(arrays, key_slots[keys], at, rows[2:]))
            self._put(arrays, key_slots[keys], after)
            results_at.append((at, (outputs, np.zeros(at.shape))))
        for keys, at in visits(order, starts + idle, counts - idle, longest):
            batch = self._batch(arrays, key_slots[keys], at, rows)
            *results, finite = self._learned(*batch)
            good = np.asarray(finite)
            if not good[: len(keys)].all():
                # Repeat the batch, dropping samples that give non-finite numbers. Other keys keep their results.
                results = jax.tree.map(
                    lambda new, old: np.where(good.reshape(-1, *(1,) * (old.ndim - 1)), old, new),  # noqa: B023
                    [*self._skipping(*batch)[:3]],
                    results,
                )
            after, losses, outputs = results
            self._put(arrays, key_slots[keys], after)
            results_at.append((at, (outputs, np.asarray(losses, np.float64))))
        return shared, *in_order(len(order), results_at)

    def forward(self, arrays: SlotArrays, xs: Tree) -> np.ndarray:
        """Return the outputs for one more row of each key, without learning.

        Args:
            arrays: the arrays of the keys, with one entry per row.
            xs: the inputs of the rows.
        """
        rows = np.arange(len(jax.tree.leaves(xs)[0]))
        batches = visits(rows, rows, np.ones_like(rows), 1)
        return in_order(
            len(rows), [(at, self._answered(*self._batch(arrays, keys, at, (xs,)))[1]) for keys, at in batches]
        )

    def _batch(self, arrays: SlotArrays, slots: np.ndarray, at: np.ndarray, rows: tuple) -> tuple:
        """Return the arguments of a program: runs and rows, padded to a fixed size with copies of the first key."""
        size = batch_size(len(slots))
        repeated = np.concatenate([slots, np.repeat(slots[:1], size - len(slots))])
        leaves = []
        for name in self.own:
            leaf = aligned_array(np.empty, (size, *self.own[name].shape), self.own[name].dtype)
            np.take(arrays[name], repeated, axis=0, out=leaf, mode="clip")  # "raise" would make another copy
            leaves.append(leaf)

        def padded(leaf: np.ndarray) -> np.ndarray:
            full = np.zeros((size, BATCH_SIZES[size], *leaf.shape[1:]), leaf.dtype)
            full[: len(at), : at.shape[1]] = leaf[at]
            return full

        runs = jax.tree.unflatten(self._structure, leaves)
        return runs, *jax.tree.map(padded, rows), at.shape[1], -(-len(slots) // LANES)

    def _put(self, arrays: SlotArrays, slots: np.ndarray, leaves: list[jax.Array]) -> None:
        for name, leaf in zip(self.own, leaves, strict=True):
            arrays[name][slots] = np.asarray(leaf)[: len(slots)]


def in_order(rows: int, results_at: list[tuple[np.ndarray, Tree]]) -> Tree:
    """Arrange results by row.

    Args:
        rows: the number of rows.
        results_at: pairs of rows, and the results for them, which are padded.
    """

    def arranged(*results: jax.Array) -> np.ndarray:
        whole = np.zeros((rows, *results[0].shape[2:]), results[0].dtype)
        for (at, _), result in zip(results_at, results, strict=True):
            whole[at] = np.asarray(result)[: at.shape[0], : at.shape[1]]
        return whole

    return jax.tree.map(arranged, *(results for _, results in results_at))


def in_lanes(function: Callable, narrow: bool) -> Callable:
    """Apply `function(*keyed, count)` to every key, in groups of `LANES` that fit into the cache.

    Every batch size runs the same loop over the same group, so that a key's numbers do not
    depend on the size of its batch, on its place in it, or on its neighbours.

    Args:
        function: the function of one key.
        narrow: whether to compile it with narrow vectors; see `MAX_SMALL_RUN`.

    Returns:
        A compiled function of `(*keyed, count, filled)`, which computes only the first `filled` groups.
    """

    def batch(*arguments):
        *keyed, count, filled = arguments
        size = jax.tree.leaves(keyed)[0].shape[0]
        groups = jax.tree.map(lambda leaf: leaf.reshape(size // LANES, LANES, *leaf.shape[1:]), keyed)

        def group(nothing, part):
            return nothing, jax.vmap(function, in_axes=(0,) * len(keyed) + (None,))(*part, count)

        # A loop of a length unknown to the compiler, which would compile a short one differently.
        out = scan_some(group, 0, groups, filled)[1]
        return jax.tree.map(lambda leaf: leaf.reshape(size, *leaf.shape[2:]), out)

    return compiled_loop(batch, narrow=narrow)


def sorted_by_key(slots: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Sort rows by key.

    Keys are in the order of their first rows. So a key's place in a batch depends on these
    rows alone, and not on its slot, which may differ after an interruption.

    Args:
        slots: the slot of each row.

    Returns:
        The order that sorts the rows; and each key's slot, first row and number of rows.
    """
    _, first, key = np.unique(slots, return_index=True, return_inverse=True)
    order = np.argsort(first[key], kind="stable")
    rows, starts, counts = np.unique(first[key][order], return_index=True, return_counts=True)
    return order, (slots[rows], starts, counts)


def visits(
    order: np.ndarray, starts: np.ndarray, counts: np.ndarray, longest: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cut the rows of every key into pieces of powers of two, and group pieces of the same length.

    Nothing is masked: all keys of a visit have the same number of rows. A visit has at most as many keys as the
    largest batch.

    Args:
        order: the order that sorts the rows of the stream by key.
        starts: where in it the rows of each key start.
        counts: the number of rows of each key.
        longest: the length of the longest pieces.

    Returns:
        For each visit, the numbers of the keys, and the rows of each of them in the stream.
    """
    batches, most = [], max(BATCH_SIZES)
    done = np.zeros_like(counts)
    for length in [longest, *(longest >> shift for shift in range(1, longest.bit_length()))]:
        while len(keys := np.flatnonzero(counts - done >= length)):
            for part in (keys[start : start + most] for start in range(0, len(keys), most)):
                batches.append((part, order[(starts + done)[part, None] + np.arange(length)]))
            done[keys] += length
    return batches


def batch_size(keys: int) -> int:
    """Return the batch size for this many keys; the largest one if there are more."""
    return next((size for size in BATCH_SIZES if size >= keys), max(BATCH_SIZES))


def with_prng_keys(run: Tree, like: Tree) -> Tree:
    """Convert key data in a run back to PRNG keys, inside a compiled function.

    Args:
        run: the run, with key data in place of keys.
        like: a run with keys.
    """
    return jax.tree.map(key_from_numbers, run, like)


def without_prng_keys(run: Tree) -> list[jax.Array]:
    """Return the leaves of a run, with PRNG keys as numbers."""
    return list(map(key_numbers, jax.tree.leaves(run)))
