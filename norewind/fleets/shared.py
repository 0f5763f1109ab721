"""Keys that share one model: those that have a sample make one step together, with a state and a carry each."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from norewind import checks
from norewind.chunks import scan_some
from norewind.compilation import compiled_loop
from norewind.fleets.programs import LANES, padded
from norewind.fleets.scaling import Segments
from norewind.fleets.slots import Slots, with_keys, without_keys
from norewind.learner import Learner
from norewind.optimizers import at_sample
from norewind.run import NonFiniteError, Update, _saturating_add
from norewind.trees import Tree, all_finite, strong, where

LADDER = (1, 16, 256, 4096)
"""The keys in one step."""


class SharedRun(NamedTuple):
    """What all keys share. `steps` counts updates, `samples` the samples that they were made from."""

    params: Tree
    optimizer: Tree
    steps: jax.Array
    samples: jax.Array


class Own(NamedTuple):
    """What every key has for itself."""

    state: Tree
    carry: Tree
    ahead: Tree


class Rounds(NamedTuple):
    """Steps that run in one program: keys, and for each step how many of the first keys take part.

    `rows` has the row of every step and key, `learns` whether it is learned from.
    """

    keys: np.ndarray
    sizes: np.ndarray
    rows: np.ndarray
    learns: np.ndarray


class Shared:
    """Learns every key's samples with one model."""

    def __init__(self, learner: Any, start: Tree, window: int):
        if not isinstance(learner, Learner):
            raise checks.ModelError(f"fleet: with share, the learner must be from online(...), not {learner!r}.")
        self.start, self.window, like = start, window, self.own(start)
        # So many rounds of more keys than the smaller size has can a window hold.
        self.capacities = {
            size: max(1, window // (smaller + 1)) for smaller, size in zip((0, *LADDER), LADDER, strict=False)
        }
        update = learner.update

        def batch(shared, own, inputs, sizes, learns, count):
            def body(carried, one_round):
                shared, own = carried
                (x, target, newest), size, mask = one_round
                shared, own, losses, outputs = _step(update, shared, own, (x, target), size, mask)
                if newest is not None:
                    own, outputs = _answer(update, shared, own, newest, size)
                return (shared, own), (losses, outputs)

            start = shared, jax.vmap(lambda one: with_keys(one, like))(own)
            (shared, own), found = scan_some(body, start, (inputs, sizes, learns), count)
            return shared, without_keys(own), found, all_finite(shared.params)

        self._batch = compiled_loop(batch)

    def own(self, run: Tree) -> Own:
        return Own(run.state, run.carry, run.ahead)

    def init(self) -> SharedRun:
        run = self.start
        return SharedRun(run.params, run.optimizer, run.steps, run.samples)

    def learn(self, shared: Tree, slots: Slots, parts: Segments, rows: tuple, idle: np.ndarray, order: np.ndarray):
        """Learn from rows sorted by key, window after window: `(shared, outputs, losses)`.

        `order` has the places of the rows in the stream.
        """
        windows = order // self.window
        learns = parts.turn >= idle[parts.key]
        count = len(windows)
        losses, outputs = np.zeros(count), None
        in_order = np.argsort(windows, kind="stable")
        for rows_of_window in np.split(in_order, np.flatnonzero(np.diff(windows[in_order])) + 1):
            for rounds in _rounds(rows_of_window, parts, learns, order):
                shared, (lost, made) = self._run(shared, slots, parts, rounds, rows)
                present = np.arange(rounds.rows.shape[1]) < rounds.sizes[:, None]
                at, keys = rounds.rows[present], np.asarray(lost)[: len(rounds.sizes), : present.shape[1]]
                losses[at] = keys[present]
                leaf = np.asarray(made)[: len(rounds.sizes), : present.shape[1]]
                outputs = np.zeros((count, *leaf.shape[2:]), leaf.dtype) if outputs is None else outputs
                outputs[at] = leaf[present]
        return shared, outputs, losses

    def _run(self, shared: SharedRun, slots: Slots, parts: Segments, rounds: Rounds, rows: tuple):
        size = next(size for size in LADDER if size >= len(rounds.keys))
        capacity = self.capacities[size]
        places = parts.places[rounds.keys]

        def shaped(part: np.ndarray) -> np.ndarray:
            """From (rounds, keys, ...) to the sizes of the program."""
            return np.moveaxis(padded(np.moveaxis(part, 1, 0), size, capacity), 0, 1)

        inputs = jax.tree.map(lambda leaf: shaped(leaf[rounds.rows]), rows)
        sizes = np.zeros(capacity, np.int32)
        sizes[: len(rounds.sizes)] = rounds.sizes
        learns = shaped(rounds.learns & (np.arange(len(places)) < rounds.sizes[:, None]))
        learns[:, len(places) :] = False
        own = slots.runs(np.concatenate([places, np.repeat(places[:1], size - len(places))]))
        new, after, found, finite = self._batch(shared, own, inputs, sizes, learns, len(rounds.sizes))
        if not bool(finite):
            raise NonFiniteError(
                f"after {int(shared.samples)} samples, the model that all keys share got numbers that are not finite. "
                "Lower the learning rate, or look for odd rows after that.",
                int(shared.steps) + 1,
                shared,
            )
        slots.put(places, after)
        return new, found


def _rounds(rows: np.ndarray, parts: Segments, learns: np.ndarray, stream: np.ndarray) -> list[Rounds]:
    """The rows of a window as rounds with one row of a key each, those of similar size together."""
    keys, first, counts = np.unique(parts.key[rows], return_index=True, return_counts=True)
    # Keys with the most rows first: those of a round are always a beginning of them. Others as they came, whatever
    # their slots: the order in which gradients are added up is that of the stream.
    order = np.lexsort([stream[rows[first]], -counts])
    keys, first, counts = keys[order], rows[first[order]], counts[order]
    sizes = np.searchsorted(-counts, -np.arange(counts[0]), side="left")
    found = []
    for smaller, size in zip((0, *LADDER), LADDER, strict=False):
        turns = np.flatnonzero((sizes > smaller) & (sizes <= size))
        if len(turns):
            most = int(sizes[turns[0]])
            # Beyond a key's rows stands its last one, which is not looked at.
            at = first[:most] + np.minimum(turns[:, None], counts[:most] - 1)
            found.append(Rounds(keys[:most], sizes[turns], at, learns[at]))
    return found[::-1]


def _step(update: Update, shared: SharedRun, own: Own, sample: tuple, size: jax.Array, mask: jax.Array):
    """One update from the mean gradient of the keys in the mask; the others stay as they are."""
    batch = mask.shape[0]
    lanes = min(LANES, batch)
    inputs = jax.tree.map(lambda leaf: leaf.reshape(-1, lanes, *leaf.shape[1:]), (own.state, own.carry, *sample, mask))

    def group(total, part):
        state, carry, x, target, learns = part
        new_state, new_carry, estimate = jax.vmap(update.estimator.step, in_axes=(None, 0, 0, 0, 0))(
            shared.params, state, carry, x, target
        )
        total = jax.tree.map(
            lambda sums, leaf: sums + jnp.tensordot(learns.astype(jnp.finfo(leaf.dtype).dtype), leaf, 1),
            total,
            estimate.grad,
        )
        kept = without_keys(where(learns, strong((new_state, new_carry)), (state, carry)))
        return total, (kept, jnp.where(learns, estimate.loss, 0), estimate.output)

    nothing = jax.tree.map(jnp.zeros_like, shared.params)
    groups = -(-size // lanes)
    total, found = scan_some(group, nothing, inputs, groups)
    # Groups without any key were not computed, and are written nowhere either.
    kept, losses, outputs = jax.tree.map(lambda leaf: leaf.reshape(batch, *leaf.shape[2:]), found)
    like = own.state, own.carry
    state, carry = with_keys(jax.tree.unflatten(jax.tree.structure(like), kept), like)
    present = jnp.arange(batch) < size
    own = own._replace(state=where(present, state, own.state), carry=where(present, carry, own.carry))
    count = jnp.sum(mask).astype(jnp.int32)

    def updated(shared):
        mean = jax.tree.map(lambda leaf: leaf / count.astype(jnp.finfo(leaf.dtype).dtype), total)
        loss = jnp.sum(losses) / count
        updates, optimizer = update.optimizer.update(
            mean, at_sample(shared.optimizer, shared.samples), shared.params, value=loss, grad=mean
        )
        params = optax.apply_updates(shared.params, updates)
        new = SharedRun(params, optimizer, _saturating_add(shared.steps, 1), _saturating_add(shared.samples, count))
        return strong(new)

    return jax.lax.cond(count > 0, updated, lambda shared: shared, shared), own, losses, outputs


def _answer(update: Update, shared: SharedRun, own: Own, newest: Tree, size: jax.Array) -> tuple[Own, Tree]:
    ahead, outputs = jax.vmap(update.transition, in_axes=(None, 0, 0))(shared.params, own.ahead, newest)
    present = jnp.arange(jax.tree.leaves(newest)[0].shape[0]) < size
    return own._replace(ahead=where(present, strong(ahead), own.ahead)), outputs
