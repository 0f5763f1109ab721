"""Keys that share one model: those that have a sample make one step together, with a state and a carry each."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from norewind.compilation import compiled_loop
from norewind.estimator import Estimator
from norewind.fleets.private import with_keys, without_keys
from norewind.learner import Online
from norewind.optimizers import at_sample
from norewind.run import NonFiniteError, Run, Update, _saturating_add
from norewind.trees import Tree, all_finite, strong, weighted_sum

# The keys that a program computes side by side. What 128 small models carry fits a core's cache, and fills vectors.
WIDTHS = (1, 16, 128)
# What a group of keys costs besides its keys, in keys.
GROUP = 40
# The most samples in one call of a program, if windows are not longer.
CALL = 4096
# The keys that a program holds are 16, 16² and so on.
RUNG = 16


class SharedRun(NamedTuple):
    """What all keys share. `steps` counts updates, `samples` the samples that they were made from."""

    params: Tree
    optimizer: Tree
    steps: jax.Array
    samples: jax.Array


class Shared:
    """Learns every key's samples with one model."""

    def __init__(self, learner: Online, start: Run, window: int):
        self.window, self.shared = window, SharedRun(start.params, start.optimizer, start.steps, start.samples)
        # What every key has for itself: the state and the carry after the rows learned from, and the newest state.
        like = (start.state, start.carry), start.ahead
        self.own = {str(place): np.asarray(leaf) for place, leaf in enumerate(without_keys(like))}
        self._batch = compiled_loop(_program(learner.update, *like), donate_argnums=0)

    def learn(self, shared: Tree, arrays: dict, places: np.ndarray, rows: tuple, learns: np.ndarray):
        """Learn from rows, window after window: `(shared, outputs, losses)`."""
        blocks = [arrays[name] for name in self.own]
        losses, outputs = np.zeros(len(places)), None
        for call in calls(places, self.window):
            new, own, (lost, made), finite = self._batch(
                _taken(blocks, call.keys), shared, *self._inputs(call, rows, learns)
            )
            if not bool(finite):
                raise NonFiniteError(
                    f"after {int(shared.samples)} samples, the model that all keys share got numbers that are not "
                    "finite. Lower the learning rate, or look for odd rows after that.",
                    int(shared.steps) + 1,
                    shared,
                )
            for into, block in zip(blocks, own, strict=True):
                into[call.keys] = np.asarray(block)[: len(call.keys)]
            shared, made = new, np.asarray(made)
            outputs = np.zeros((len(places), *made.shape[2:]), made.dtype) if outputs is None else outputs
            there = call.group, call.lane
            losses[call.rows], outputs[call.rows] = np.asarray(lost)[there], made[there]
        return shared, outputs, losses

    def _inputs(self, call: "Call", rows: tuple, learns: np.ndarray) -> tuple:
        """What a program takes, of fixed sizes."""
        most = max(CALL, self.window)

        def shaped(part: np.ndarray) -> np.ndarray:
            # Of the width that costs least, there are at most this many groups.
            full = np.zeros((most * (1 + GROUP) // (call.width + GROUP), call.width, *part.shape[1:]), part.dtype)
            full[call.group, call.lane] = part
            return full

        lanes = shaped(call.key.astype(np.int32)), shaped(learns[call.rows]), shaped(np.ones(len(call.key), bool))
        rounds = np.zeros(most + 1, np.int32)
        rounds[: len(call.first)] = call.first
        return *jax.tree.map(lambda leaf: shaped(leaf[call.rows]), rows), lanes, rounds, len(call.first) - 1


class Call(NamedTuple):
    """Consecutive rows for one call of a program: in rounds with one row of a key each, and there in groups.

    Attributes:
        rows: where they stand in the chunk.
        keys: the slots of their keys.
        key: the key of each row, by its number in `keys`.
        width: the rows in a group.
        group: the group of each row.
        lane: its place in the group.
        first: the first group of every round, and the one after the last.
    """

    rows: slice
    keys: np.ndarray
    key: np.ndarray
    width: int
    group: np.ndarray
    lane: np.ndarray
    first: np.ndarray


def calls(places: np.ndarray, window: int) -> Iterator[Call]:
    """Divide rows into calls of whole windows. How a window is computed depends on its own rows alone.

    In a round, rows stand as they came, whatever the slots of their keys: in this order gradients are added up.
    """
    windows = np.arange(len(places)) // window
    turn, *_ = ranks(windows * (places.max() + 1) + places)
    place, number, sizes = ranks(windows * window + turn)
    begins = number[::window]  # the first row of a window is in its first round
    costs = [np.add.reduceat(-(-sizes // width), begins) * (width + GROUP) for width in WIDTHS]
    widths = np.argmin(costs, axis=0)
    start, most = 0, max(1, CALL // window)
    while start < len(widths):
        same = widths[start : start + most] == widths[start]
        stop = start + (len(same) if same.all() else int(same.argmin()))
        rows, width = slice(start * window, stop * window), WIDTHS[widths[start]]
        rounds = sizes[begins[start] : begins[stop] if stop < len(begins) else None]
        keys, key = np.unique(places[rows], return_inverse=True)
        first = np.concatenate([[0], np.cumsum(-(-rounds // width))])
        group = first[number[rows] - begins[start]] + place[rows] // width
        yield Call(rows, keys, key, width, group, place[rows] % width, first)
        start = stop


def ranks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many of the same value come before each, its number among the different values, and how many it is of each.

    >>> ranks(np.array([5, 0, 5, 5]))
    (array([0, 0, 1, 2]), array([1, 0, 1, 1]), array([1, 3]))
    """
    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    rank = np.empty_like(number)
    rank[np.argsort(number, kind="stable")] = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank, number, counts


def _taken(blocks: list[np.ndarray], places: np.ndarray) -> list[jax.Array]:
    """The runs of keys, for a program that uses them up; of fixed sizes, with the first key again at the end."""
    size = RUNG
    while size < len(places):
        size *= RUNG
    places = np.concatenate([places, np.repeat(places[:1], size - len(places))])
    if jax.default_backend() != "cpu":
        return [jnp.asarray(block[places]) for block in blocks]
    # XLA reads the arrays of all keys where they are: one copy, where NumPy and a program would make two.
    return _take(blocks, places)


@jax.jit
def _take(blocks: list[jax.Array], places: jax.Array) -> list[jax.Array]:
    return [block.at[places].get(mode="promise_in_bounds") for block in blocks]


def _program(update: Update, learned: Tree, ahead: Tree):
    """Round after round: groups of keys are taken out of all, learn, and are put back; one update; then answers."""
    learning = len(without_keys(learned))
    step = _step_of_all(update.estimator)
    transition = jax.vmap(update.transition, in_axes=(None, 0, 0))

    def taken(like: Tree, blocks: list[jax.Array], at: jax.Array) -> Tree:
        leaves = [block.at[at].get(mode="promise_in_bounds") for block in blocks]
        return with_keys(jax.tree.unflatten(jax.tree.structure(like), leaves), like)

    def put(blocks: list[jax.Array], at: jax.Array, where: jax.Array, new: Tree) -> list[jax.Array]:
        """Put keys back; those that stay as they are go to a place that does not exist."""
        to = jnp.where(where, at, len(blocks[0]))
        parts = zip(blocks, without_keys(strong(new)), strict=True)
        return [block.at[to].set(part, mode="drop") for block, part in parts]

    def batch(own, shared, xs, targets, newest, lanes, first, count):
        def learn(group, carried):
            params, (total, rows, loss), own, (losses, outputs) = carried
            x, target, (at, learns, _) = _entry((xs, targets, lanes), group)
            state, carry, grads, losses_now, output = step(
                params, *taken(learned, own[:learning], at), x, target, learns
            )
            total = jax.tree.map(jnp.add, total, grads)
            lost = jnp.where(learns, losses_now, 0)
            own = put(own[:learning], at, learns, (state, carry)) + own[learning:]
            sums = total, rows + jnp.sum(learns, dtype=jnp.int32), loss + jnp.sum(lost)
            return params, sums, own, _with_entry((losses, outputs), (lost, output), group)

        def answer(group, carried):
            params, own, outputs = carried
            x, (at, _, present) = _entry((newest, lanes), group)
            newest_state, output = transition(params, taken(ahead, own[learning:], at), x)
            own = own[:learning] + put(own[learning:], at, present, newest_state)
            return params, own, _with_entry(outputs, output, group)

        def one_round(number, carried):
            shared, own, (losses, outputs) = carried
            groups = first[number], first[number + 1]
            nothing = jax.tree.map(jnp.zeros_like, shared.params), jnp.zeros((), jnp.int32), jnp.zeros((), losses.dtype)
            _, sums, own, (losses, outputs) = jax.lax.fori_loop(
                *groups, learn, (shared.params, nothing, own, (losses, outputs))
            )
            shared = jax.lax.cond(sums[1] > 0, lambda: _updated(update, shared, *sums), lambda: shared)
            if newest is not None:
                _, own, outputs = jax.lax.fori_loop(*groups, answer, (shared.params, own, outputs))
            return shared, own, (losses, outputs)

        x, target, (at, *_) = _entry((xs, targets, lanes), 0)
        mine = jax.eval_shape(lambda: taken(learned, own[:learning], at))
        found = jax.eval_shape(step, shared.params, *mine, x, target, at)[3:]
        empty = jax.tree.map(lambda one: jnp.zeros((len(lanes[0]), *one.shape), one.dtype), found)
        shared, own, found = jax.lax.fori_loop(0, count, one_round, (shared, own, empty))
        return shared, own, found, all_finite(shared.params)

    return batch


def _step_of_all(estimator: Estimator) -> Callable:
    """A step of several keys: their states and carries, the sum of the gradients of those that learn, their losses and
    outputs."""
    alone = jax.vmap(estimator.step, in_axes=(None, 0, 0, 0, 0))

    def step(params, states, carries, xs, targets, learns):
        weights = learns.astype(jnp.result_type(float))
        if estimator.streams_step is None or estimator.model is None:
            states, carries, found = alone(params, states, carries, xs, targets)
            return states, carries, weighted_sum(weights, found.grad), found.loss, found.output
        states, carries, found = estimator.streams_step(params, states, carries, xs, targets, weights)
        losses = jax.vmap(estimator.model.loss)(found.output, targets)
        return states, carries, found.grad, losses, found.output

    return step


def _updated(update: Update, shared: SharedRun, total: Tree, count: jax.Array, loss: jax.Array) -> SharedRun:
    """One update from the mean gradient of this many keys."""
    mean = jax.tree.map(lambda leaf: leaf / count.astype(jnp.finfo(leaf.dtype).dtype), total)
    updates, optimizer = update.optimizer.update(
        mean, at_sample(shared.optimizer, shared.samples), shared.params, value=loss / count, grad=mean
    )
    params = optax.apply_updates(shared.params, updates)
    return strong(
        SharedRun(params, optimizer, _saturating_add(shared.steps, 1), _saturating_add(shared.samples, count))
    )


def _entry(tree: Tree, number: Any) -> Tree:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(jnp.asarray(leaf), number, keepdims=False), tree)


def _with_entry(tree: Tree, new: Tree, number: Any) -> Tree:
    return jax.tree.map(lambda all, one: jax.lax.dynamic_update_index_in_dim(all, one, number, 0), tree, new)
