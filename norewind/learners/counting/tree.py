"""A symbol as a path of bits from the root of a binary tree, the highest bit first.

A node is named by the bits that lead to it behind a leading one: the root is 1, the
children of node c are 2c and 2c + 1, and symbol s is the leaf 2^depth + s.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp

LARGEST_LOGIT = 12.0
# Lets a node that no symbol reaches have even odds, and stays far below any mass that matters.
_TINY_MASS = 1e-30


def depth_of(symbols: int) -> int:
    """The number of bits that name one of this many symbols."""
    return (symbols - 1).bit_length()


def groups_of(depth: int) -> list[range]:
    """The depths in as few groups of at most four as will do: each group's nodes share one row of a table."""
    number = -(-depth // 4)
    ends = [-(-depth * i // number) for i in range(number + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def can_be_one(node: jax.Array, level: jax.Array | int, depth: int, symbols: int) -> jax.Array:
    """Whether any of the symbols lies behind a one at this node of this level."""
    return ((2 * node + 1) << (depth - level - 1)) - (1 << depth) < symbols


def node_rows(depth: int) -> int:
    """How many rows of weights the nodes have."""
    return 1 << depth if depth <= 8 else 32 * depth


def node_row(node: jax.Array, level: jax.Array | int, depth: int) -> jax.Array:
    """The row of a node. In a large tree, several nodes share one, but never those of different levels."""
    return node if depth <= 8 else 32 * level + node % 32


def level_logits(log_probabilities: jax.Array, depth: int) -> list[jax.Array]:
    """For every level of the tree, the log-odds of a one at each of its nodes, along the last axis.

    What is not a number says nothing: even odds.
    """
    masses = jnp.exp(log_probabilities)
    missing = (1 << depth) - masses.shape[-1]
    masses = jnp.pad(masses, [(0, 0)] * (masses.ndim - 1) + [(0, missing)])
    levels = []
    for _ in range(depth):
        pairs = masses.reshape(*masses.shape[:-1], masses.shape[-1] // 2, 2)
        odds = jnp.log(pairs[..., 1] + _TINY_MASS) - jnp.log(pairs[..., 0] + _TINY_MASS)
        levels.append(jnp.clip(jnp.where(jnp.isnan(odds), 0, odds), -LARGEST_LOGIT, LARGEST_LOGIT))
        masses = pairs.sum(-1)
    return levels[::-1]


def path_logits(log_probabilities: jax.Array, targets: jax.Array, depth: int) -> jax.Array:
    """The log-odds of a one at every node on the way to the targets: (..., S) and (...) to (..., depth)."""
    levels = level_logits(log_probabilities, depth)
    targets = jnp.broadcast_to(targets, log_probabilities.shape[:-1])
    prefixes = [targets >> (depth - level) for level in range(depth)]
    picked = [
        jnp.take_along_axis(odds, prefix[..., None], -1)[..., 0] for odds, prefix in zip(levels, prefixes, strict=True)
    ]
    return jnp.stack(picked, -1)


def leaves(ones: jax.Array, symbols: int) -> jax.Array:
    """The log-probability of every symbol, from the probability of a one at each node, in the order of their names."""
    total, first = jnp.zeros(1), 0
    while first < len(ones):
        level = ones[first : first + len(total)]
        first += len(total)
        total = (total[:, None] + jnp.stack([jnp.log(1 - level), jnp.log(level)], -1)).reshape(-1)
    return total[:symbols]
