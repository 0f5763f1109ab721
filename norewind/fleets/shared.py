"""Keys that share one model: those that have a sample make one step together, with a state and a carry each."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from norewind import checks
from norewind.compilation import compiled_loop
from norewind.estimator import Estimator
from norewind.fleets.records import Records
from norewind.fleets.scaling import Segments
from norewind.fleets.slots import Slots
from norewind.learner import Online as Learner
from norewind.optimizers import at_sample
from norewind.run import NonFiniteError, Update, _saturating_add
from norewind.trees import Tree, all_finite, strong, weighted_sum

WIDTHS = {1: 1, 32: 16}
"""The keys that a program computes side by side in steps of up to this many keys."""
WIDEST = 128
"""In larger steps. What this many small models carry fits a core's cache, and fills its vectors."""
CALL = 8192
"""Samples in one call of a program."""
RUNG = 16
"""The keys that a program holds are 16, 16² and so on."""
POOL = 1 << 26
"""Bytes of keys that a program holds, unless one window has more."""


class SharedRun(NamedTuple):
    """What all keys share. `steps` counts updates, `samples` the samples that they were made from."""

    params: Tree
    optimizer: Tree
    steps: jax.Array
    samples: jax.Array


class Own(NamedTuple):
    """What every key has for itself: the state and the carry after the rows learned from, and the newest state."""

    learned: tuple[Tree, Tree]
    ahead: Tree


class Rounds(NamedTuple):
    """Rows in the order in which they are learned from: by window, and there in rounds with one row of a key each.

    `first` and `sizes` have the first of the rows and the number of rows of every round.
    """

    rows: np.ndarray
    first: np.ndarray
    sizes: np.ndarray

    def part(self, start: int, stop: int) -> "Rounds":
        first, sizes = self.first[start:stop], self.sizes[start:stop]
        return Rounds(self.rows[first[0] : first[-1] + sizes[-1]], first - first[0], sizes)


class Shared:
    """Learns every key's samples with one model."""

    def __init__(self, learner: Any, start: Tree, window: int):
        if not isinstance(learner, Learner):
            raise checks.ModelError(f"fleet: with share, the learner must be from online(...), not {learner!r}.")
        self.start, self.window = start, window
        like = self.own(start)
        size = sum(leaf.nbytes for leaf in Records(like).numbers)
        self.pool = RUNG
        while self.pool < window or RUNG * self.pool * size <= POOL:
            self.pool *= RUNG
        self._batch = compiled_loop(_program(learner.update, like), donate_argnums=0)

    def own(self, run: Tree) -> Own:
        return Own((run.state, run.carry), run.ahead)

    def init(self) -> SharedRun:
        run = self.start
        return SharedRun(run.params, run.optimizer, run.steps, run.samples)

    def learn(self, shared: Tree, slots: Slots, parts: Segments, rows: tuple, idle: np.ndarray, order: np.ndarray):
        """Learn from rows sorted by key, window after window: `(shared, outputs, losses)`.

        `order` has the places of the rows in the stream.
        """
        learns = parts.turn >= idle[parts.key]
        rounds = _rounds(parts, order, self.window)
        losses, outputs = np.zeros(len(order)), None
        number, in_pool = np.empty(len(parts.places), np.int32), np.empty(len(order), np.int32)
        for call, keys, width in _calls(rounds, parts.key, self.pool, max(CALL, self.window)):
            number[keys] = np.arange(len(keys))
            in_pool[call.rows] = number[parts.key[call.rows]]
            places = parts.places[keys]
            group, lane, inputs = self._inputs(call, width, in_pool, learns, rows)
            new, own, (lost, made), finite = self._batch(self._taken(slots, places), shared, *inputs)
            if not bool(finite):
                raise NonFiniteError(
                    f"after {int(shared.samples)} samples, the model that all keys share got numbers that are not "
                    "finite. Lower the learning rate, or look for odd rows after that.",
                    int(shared.steps) + 1,
                    shared,
                )
            slots.put(places, own)
            shared, made = new, np.asarray(made)
            outputs = np.zeros((len(order), *made.shape[2:]), made.dtype) if outputs is None else outputs
            losses[call.rows], outputs[call.rows] = np.asarray(lost)[group, lane], made[group, lane]
        return shared, outputs, losses

    def _taken(self, slots: Slots, places: np.ndarray) -> list[jax.Array]:
        """The runs of keys, for a program that uses them up; of fixed sizes, with the first key again at the end."""
        size = RUNG
        while size < len(places):
            size *= RUNG
        places = np.concatenate([places, np.repeat(places[:1], size - len(places))])
        if jax.default_backend() != "cpu":
            return [jnp.asarray(block) for block in slots.runs(places)]
        # XLA reads the arrays of all keys where they are: one copy, where NumPy and a program would make two.
        return _take(slots.blocks, places)

    def _inputs(self, call: Rounds, width: int, in_pool: np.ndarray, learns: np.ndarray, rows: tuple):
        """The group and the lane of each row, and what a program takes, of fixed sizes."""
        capacity = -(-max(CALL, self.window) // width)
        first = np.zeros(capacity + 1, np.int32)
        groups = -(-call.sizes // width)
        first[1 : len(groups) + 1] = np.cumsum(groups)
        place = np.arange(len(call.rows)) - np.repeat(call.first, call.sizes)
        group, lane = np.repeat(first[: len(groups)], call.sizes) + place // width, place % width

        def shaped(part: np.ndarray) -> np.ndarray:
            full = np.zeros((capacity, width, *part.shape[1:]), part.dtype)
            full[group, lane] = part[call.rows]
            return full

        present = shaped(np.ones(len(in_pool), bool))
        lanes = shaped(in_pool), present & shaped(learns), present
        return group, lane, (*(jax.tree.map(shaped, part) for part in rows), lanes, first, len(groups))


def _rounds(parts: Segments, order: np.ndarray, window: int) -> Rounds:
    windows = order // window
    count = len(order)
    begins = np.flatnonzero(np.diff(parts.key, prepend=-1) | np.diff(windows, prepend=-1))
    turn = np.arange(count) - np.repeat(begins, np.diff(begins, append=count))
    # In a round, rows stand as they came, whatever the slots of their keys: in this order gradients are added up.
    in_order = np.empty(count, np.int64)
    in_order[order] = np.arange(count)
    rows = in_order[np.argsort((window * windows + turn)[in_order], kind="stable")]
    first = np.flatnonzero(np.diff(windows[rows], prepend=-1) | np.diff(turn[rows], prepend=-1))
    return Rounds(rows, first, np.diff(first, append=count))


def _calls(rounds: Rounds, key: np.ndarray, most: int, rows: int) -> Iterator[tuple[Rounds, np.ndarray, int]]:
    """Rounds that run in one program, its keys in the order in which they come, and the width of its groups.

    They have at most `rows` rows with those that fill groups up, of at most `most` keys.
    """
    keys, ends, start = key[rounds.rows], rounds.first + rounds.sizes, 0
    place = np.empty(len(keys), np.int64)
    place[rounds.rows] = np.arange(len(keys))
    # Rows are sorted by key, and those of a key are learned from in their order.
    before = np.full(len(keys), -1)
    before[place[1:]] = np.where(key[1:] == key[:-1], place[:-1], -1)
    width = np.array([*WIDTHS.values(), WIDEST])[np.searchsorted([*WIDTHS], rounds.sizes)]
    groups = -(-rounds.sizes // width)
    other = np.append(np.flatnonzero(np.diff(width)) + 1, len(width))
    full = np.cumsum(groups * width)
    while start < len(ends):
        begin = rounds.first[start]
        new = before[begin : begin + rows] < begin
        stop = min(
            int(np.searchsorted(ends, begin + np.count_nonzero(np.cumsum(new) <= most), side="right")),
            int(np.searchsorted(full, full[start] - groups[start] * width[start] + rows, side="right")),
            int(other[np.searchsorted(other, start, side="right")]),
        )
        length = ends[stop - 1] - begin
        yield rounds.part(start, stop), keys[begin : begin + length][new[:length]], int(width[start])
        start = stop


@jax.jit
def _take(blocks: list[jax.Array], places: jax.Array) -> list[jax.Array]:
    return [block.at[places].get(mode="promise_in_bounds") for block in blocks]


def _program(update: Update, like: Own):
    """Round after round: groups of keys are taken out of all, learn, and are put back; one update; then answers."""
    learned, ahead = (Records((part,)) for part in like)
    learning = len(learned.blocks)
    step = _step_of_all(update.estimator)
    transition = jax.vmap(update.transition, in_axes=(None, 0, 0))

    def taken(kind: Records, blocks: list[jax.Array], at: jax.Array) -> Tree:
        return jax.vmap(kind.split)([block.at[at].get(mode="promise_in_bounds") for block in blocks])[0]

    def put(kind: Records, blocks: list[jax.Array], at: jax.Array, where: jax.Array, new: Tree) -> list[jax.Array]:
        """Put keys back; those that stay as they are go to a place that does not exist."""
        to = jnp.where(where, at, len(blocks[0]))
        parts = jax.vmap(kind.join)(strong((new,)))
        return [block.at[to].set(part, mode="drop") for block, part in zip(blocks, parts, strict=True)]

    def batch(own, shared, xs, targets, newest, lanes, first, count):
        def learn(group, carried):
            params, (total, rows, loss), own, (losses, outputs) = carried
            x, target, (at, learns, _) = _entry((xs, targets, lanes), group)
            state, carry, grads, losses_now, output = step(
                params, *taken(learned, own[:learning], at), x, target, learns
            )
            total = jax.tree.map(jnp.add, total, grads)
            lost = jnp.where(learns, losses_now, 0)
            own = put(learned, own[:learning], at, learns, (state, carry)) + own[learning:]
            sums = total, rows + jnp.sum(learns, dtype=jnp.int32), loss + jnp.sum(lost)
            return params, sums, own, _with_entry((losses, outputs), (lost, output), group)

        def answer(group, carried):
            params, own, outputs = carried
            x, (at, _, present) = _entry((newest, lanes), group)
            newest_state, output = transition(params, taken(ahead, own[learning:], at), x)
            own = own[:learning] + put(ahead, own[learning:], at, present, newest_state)
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
