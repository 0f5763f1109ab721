"""Logistic mixing in two layers: weights chosen by context, weights for their results, then an adaptive map.

Every set of weights of the first layer predicts by itself and learns from its own error.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.learners.counting.tree import LARGEST_LOGIT

# The correction maps the mixed log-odds, in steps of a half from -8 to 8, to probabilities, for each context.
_STEPS_PER_LOGIT, _REACH = 2, 8
_KNOTS = 2 * _REACH * _STEPS_PER_LOGIT + 1
_MAP_RATE = 0.02
_LAST_RATE = 0.001
LEAST_PROBABILITY = 2.0**-16


class Mixer(NamedTuple):
    """One array (contexts, inputs) for each set of weights, the second layer (contexts, sets), the map."""

    weights: tuple[jax.Array, ...]
    last: jax.Array
    map: jax.Array


class Mixed(NamedTuple):
    """A prediction and what learning from its outcome needs. `one` is the probability of a one.

    `ones` are the predictions of the sets, `last_one` that of the second layer.
    """

    one: jax.Array
    inputs: jax.Array
    chosen: tuple[jax.Array, ...]
    weights: jax.Array
    logits: jax.Array
    ones: jax.Array
    last: jax.Array
    last_one: jax.Array
    map_at: tuple[jax.Array, jax.Array]
    knots: jax.Array
    share: jax.Array


def fresh(sizes: tuple[int, ...], start: jax.Array, maps: int) -> Mixer:
    """Every context begins with the same weights; the map begins as the identity."""
    knots = jax.nn.sigmoid((jnp.arange(_KNOTS) / _STEPS_PER_LOGIT - _REACH).astype(jnp.float32))
    weights = tuple(jnp.tile(start, (size, 1)) for size in sizes)
    last = jnp.full((sizes[0], len(sizes)), 1 / len(sizes), jnp.float32)
    return Mixer(weights, last, jnp.tile(knots, (maps, 1)))


def mixed(mixer: Mixer, inputs: jax.Array, chosen: tuple[jax.Array, ...], map_row: jax.Array) -> Mixed:
    """The probability of a one. `chosen` is a row for each set of weights; the first chooses for the second layer."""
    weights = jnp.concatenate(
        [jax.lax.dynamic_slice_in_dim(rows, row, 1) for rows, row in zip(mixer.weights, chosen, strict=True)]
    )
    # Barriers keep XLA from computing the inputs and the product again in everything that uses them.
    weights, inputs = jax.lax.optimization_barrier((weights, inputs))
    logits = jax.lax.optimization_barrier(weights @ inputs)
    logits = jnp.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT)
    last = jax.lax.dynamic_index_in_dim(mixer.last, chosen[0], keepdims=False)
    logit = jnp.clip((last * logits).sum(), -LARGEST_LOGIT, LARGEST_LOGIT)
    last_one = jax.nn.sigmoid(logit)
    place = jnp.clip((logit + _REACH) * _STEPS_PER_LOGIT, 0, _KNOTS - 1.001)
    knot = place.astype(jnp.int32)
    share = place - knot
    knots = jax.lax.dynamic_slice(mixer.map, (map_row, knot), (1, 2))
    low, high = knots[0]
    one = (last_one + low + share * (high - low)) / 2
    one = jnp.clip(one, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    ones = jax.nn.sigmoid(logits)
    return Mixed(one, inputs, chosen, weights, logits, ones, last, last_one, (map_row, knot), knots, share)


def learned(mixer: Mixer, mixed: Mixed, bit: jax.Array, rate: jax.Array) -> Mixer:
    """The mixer after this bit."""
    steps = rate * (bit - mixed.ones)
    rows = mixed.weights + steps[:, None] * mixed.inputs
    weights = tuple(
        jax.lax.dynamic_update_slice_in_dim(all, new[None], row, 0)
        for all, row, new in zip(mixer.weights, mixed.chosen, rows, strict=True)
    )
    last = mixed.last + _LAST_RATE * (bit - mixed.last_one) * mixed.logits
    last = jax.lax.dynamic_update_index_in_dim(mixer.last, last, mixed.chosen[0], 0)
    shares = _MAP_RATE * jnp.stack([1 - mixed.share, mixed.share])
    knots = mixed.knots + (bit - mixed.knots) * shares
    return Mixer(weights, last, jax.lax.dynamic_update_slice(mixer.map, knots, mixed.map_at))
