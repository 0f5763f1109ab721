"""One binary decision: the counts of every context, the match and the members in, one probability out.

Whatever is learned belongs to one level of the tree at most. So nothing that is learned
from a symbol's first bits changes what is said about its last, and the probabilities of
all symbols can be had at once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.learners.counting import contexts, matching, mixing, slots, tree
from norewind.learners.counting.plan import Plan

_COUNT_LIMIT = 250.0
_HISTORY_RATE, _RELIABILITY_RATE = 0.01, 0.005
_PROBABILITIES = (np.arange(4096) + 0.5) / 4096
_LOGITS = np.log(_PROBABILITIES / (1 - _PROBABILITIES)).astype(np.float32)
_MOST_RELIABLE = 1 - 1 / 4096
_RATE, _EXTRA_RATE, _RATE_HALVES_AT = 0.002, 0.013, 20_000
_INPUTS_PER_CONTEXT = 3
_BIAS = 0.3
# Of a large alphabet, several symbols share their weights.
_RECENT_ROWS = 256
_IN_BOUNDS = "promise_in_bounds"


class Memory(NamedTuple):
    """What nodes learn besides the tables: p(one) after a history, for each level and context; reliability; weights."""

    histories: jax.Array
    reliability: jax.Array
    reliability_seen: jax.Array
    mixer: mixing.Mixer


class Moment(NamedTuple):
    """What is known before a symbol: the contexts, and the symbol that the match expects, if its length is not 0."""

    hashes: jax.Array
    expected: jax.Array
    length: jax.Array
    recent: jax.Array


class Node(NamedTuple):
    """A prediction and what learning from its bit needs."""

    mixed: mixing.Mixed
    level: jax.Array
    slots: jax.Array
    indirect: jax.Array
    bucket: jax.Array
    expects_one: jax.Array
    possible: jax.Array


def fresh_memory(plan: Plan) -> Memory:
    """Histories begin with what a recency-weighted count of their bits says."""
    guesses = np.array([_guess(history) for history in range(slots.HISTORIES)], np.float32)
    lengths = np.arange(matching.BUCKETS)
    start = [1 / len(plan.contexts)] * (_INPUTS_PER_CONTEXT * len(plan.contexts)) + [0.25] * 2 + [0.3] * plan.members
    recent, rows = min(plan.symbols, _RECENT_ROWS), tree.node_rows(plan.depth)
    sizes = 4 * rows, *(plan.depth * number for number in (len(plan.contexts) + 1, recent, 3 * recent))
    return Memory(
        jnp.tile(guesses, (plan.depth, len(plan.contexts), 1)),
        jnp.tile((1 - 0.5 / (lengths + 1.5)).astype(np.float32), (plan.depth, 1)),
        jnp.zeros((plan.depth, matching.BUCKETS), jnp.float32),
        mixing.fresh(sizes, jnp.array([*start, 0.25], jnp.float32), recent * rows),
    )


def rows_for(plan: Plan, hashes: jax.Array, node: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where in the table the group of bits that begins at this node has its rows, and their checks."""
    hashed = contexts.scrambled(hashes + node.astype(jnp.uint32) * jnp.uint32(0x9E3779B1))
    return jnp.asarray(plan.offsets) + (hashed & (plan.masks - 1)).astype(jnp.int32), hashed


def predicted(plan: Plan, memory: Memory, moment: Moment, level, node: jax.Array, found, members) -> Node:
    """The prediction at a node of this level. `found` are the contexts' slots, `members` the members' log-odds."""
    p, n, history = slots.unpacked(found)
    seen = n > 0
    indirect = memory.histories.at[level, np.arange(len(plan.contexts)), history].get(mode=_IN_BOUNDS)

    expected = moment.expected + (1 << plan.depth)
    agrees = (moment.length > 0) & (expected >> (plan.depth - level) == node)
    bucket = jnp.where(agrees, matching.bucket(moment.length), 0)
    expects_one = (expected >> (plan.depth - level - 1)) & 1
    reliable = memory.reliability.at[level, bucket].get(mode=_IN_BOUNDS)
    sign = jnp.where(agrees, 2.0 * expects_one - 1, 0.0)
    matched = sign * jnp.stack([_logit(reliable), 2 * reliable - 1])

    inputs = jnp.concatenate(
        [
            jnp.where(seen, _logit(p), 0),
            jnp.where(seen, _logit(indirect), 0),
            (p - 0.5) * jnp.minimum(n, 30) * 0.15,
            matched,
            members,
            jnp.array([_BIAS]),
        ]
    )
    quality = (bucket > 0) + (bucket >= 16).astype(jnp.int32) + (bucket >= 20)
    direction = jnp.where(agrees, 1 + expects_one, 0)
    rows, row = tree.node_rows(plan.depth), tree.node_row(node, level, plan.depth)
    last, before = moment.recent[0] % _RECENT_ROWS, moment.recent[1] % _RECENT_ROWS
    chosen = (
        quality * rows + row,
        seen.sum() * plan.depth + level,
        last * plan.depth + level,
        (direction * min(plan.symbols, _RECENT_ROWS) + before) * plan.depth + level,
    )
    mixed = mixing.mixed(memory.mixer, inputs, chosen, last * rows + row)
    possible = tree.can_be_one(node, level, plan.depth, plan.symbols)
    return Node(mixed, level, found, indirect, bucket, expects_one, possible)


def one(node: Node) -> jax.Array:
    """The probability of a one: exactly 0 where no symbol lies behind it."""
    return jnp.where(node.possible, node.mixed.one, 0.0)


def learned(memory: Memory, node: Node, bit: jax.Array, samples: jax.Array) -> tuple[Memory, jax.Array]:
    """The memory and the contexts' slots after this bit."""
    _, n, history = slots.unpacked(node.slots)
    histories, reliability, uses = (_of_level(all, node.level) for all in memory[:3])
    # Not a scatter: with one, XLA does not compile the loop over bits as one function, which takes twice the time.
    here = history[:, None] == np.arange(slots.HISTORIES, dtype=np.uint32)
    indirect = node.indirect + (bit - node.indirect) * jnp.where(n > 0, _HISTORY_RATE, 0)
    histories = jnp.where(here, indirect[:, None], histories)

    was_right = (node.expects_one == bit).astype(jnp.float32)
    used = (np.arange(matching.BUCKETS) == node.bucket) & (node.bucket > 0)
    step = jnp.maximum(1 / (uses + 1.5), _RELIABILITY_RATE)
    moved = jnp.clip(reliability + (was_right - reliability) * step, 0.3, _MOST_RELIABLE)

    rate = _RATE + _EXTRA_RATE / (1 + samples / _RATE_HALVES_AT)
    memory = Memory(
        jax.lax.dynamic_update_index_in_dim(memory.histories, histories, node.level, 0),
        jax.lax.dynamic_update_index_in_dim(memory.reliability, jnp.where(used, moved, reliability), node.level, 0),
        jax.lax.dynamic_update_index_in_dim(memory.reliability_seen, uses + used, node.level, 0),
        mixing.learned(memory.mixer, node.mixed, bit, rate),
    )
    return memory, slots.learned(node.slots, bit, _COUNT_LIMIT)


def _of_level(values: jax.Array, level: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(values, level, keepdims=False)


def _guess(history: int) -> float:
    ones, total, weight = 0.4, 0.8, 1.0
    for place in range(history.bit_length() - 1):
        ones, total = ones + weight * (history >> place & 1), total + weight
        weight *= 0.9
    return ones / total


def _logit(p: jax.Array) -> jax.Array:
    """From a table: logarithms would take half of all the time."""
    return jnp.asarray(_LOGITS).at[(p * _LOGITS.size).astype(jnp.int32)].get(mode=_IN_BOUNDS)
