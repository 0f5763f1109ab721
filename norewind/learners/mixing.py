"""Logistic mixing: weights chosen by context, averaged in the logistic domain, then corrected by an adaptive map.

Every set of weights predicts by itself and learns from its own error.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.learners.tree import LARGEST_LOGIT

# The correction maps the mixed log-odds, in steps of a half from -8 to 8, to probabilities, for each hashed context.
_STEPS_PER_LOGIT, _REACH = 2, 8
_KNOTS = 2 * _REACH * _STEPS_PER_LOGIT + 1
_MAPS = 1 << 16
_MAP_RATE = 0.02
import os

_LAST_RATE = float(os.environ.get("LR", "0.001"))
LEAST_PROBABILITY = 2.0**-16


class Mixed(NamedTuple):
    """A prediction and what learning from its outcome needs. `one` is the probability of a one."""

    one: jax.Array
    inputs: jax.Array
    chosen: tuple[jax.Array, ...]
    weights: jax.Array
    ones: jax.Array
    map_at: tuple[jax.Array, jax.Array]
    knots: jax.Array
    share: jax.Array
    logits: jax.Array
    last_row: jax.Array
    last: jax.Array
    last_one: jax.Array


class Mixer(NamedTuple):
    """One array (contexts, inputs) for each set of weights, and the map (contexts, knots)."""

    weights: tuple[jax.Array, ...]
    map: jax.Array
    last: jax.Array


def fresh(sizes: tuple[int, ...], start: jax.Array) -> Mixer:
    """Every context begins with the same weights; the map begins as the identity."""
    knots = jax.nn.sigmoid((jnp.arange(_KNOTS) / _STEPS_PER_LOGIT - _REACH).astype(jnp.float32))
    return Mixer(
        tuple(jnp.tile(start, (size, 1)) for size in sizes),
        jnp.tile(knots, (_MAPS, 1)),
        jnp.full((sizes[0], len(sizes)), 1 / len(sizes), jnp.float32),
    )


def mixed(mixer: Mixer, inputs: jax.Array, chosen: tuple[jax.Array, ...], context: jax.Array) -> Mixed:
    """The probability of a one. `chosen` is a row for each set of weights, `context` picks the map."""
    weights = jnp.concatenate(
        [jax.lax.dynamic_slice_in_dim(rows, row, 1) for rows, row in zip(mixer.weights, chosen, strict=True)]
    )
    # Barriers keep XLA from computing the inputs and the product again in everything that uses them.
    weights, inputs = jax.lax.optimization_barrier((weights, inputs))
    logits = jax.lax.optimization_barrier(weights @ inputs)
    logits = jnp.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT)
    last_row = chosen[0]
    last = jax.lax.dynamic_slice_in_dim(mixer.last, last_row, 1)[0]
    logit = jnp.clip((logits * last).sum(), -LARGEST_LOGIT, LARGEST_LOGIT)
    place = jnp.clip((logit + _REACH) * _STEPS_PER_LOGIT, 0, _KNOTS - 1.001)
    knot = place.astype(jnp.int32)
    share = place - knot
    map_at = (context % _MAPS).astype(jnp.int32), knot
    knots = jax.lax.dynamic_slice(mixer.map, map_at, (1, 2))
    low, high = knots[0]
    corrected = low + share * (high - low)
    one = jnp.clip((jax.nn.sigmoid(logit) + corrected) / 2, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    return Mixed(
        one,
        inputs,
        chosen,
        weights,
        jax.nn.sigmoid(logits),
        map_at,
        knots,
        share,
        logits,
        last_row,
        last,
        jax.nn.sigmoid(logit),
    )


def learned(mixer: Mixer, mixed: Mixed, bit: jax.Array, rate: jax.Array) -> Mixer:
    """The mixer after this bit."""
    steps = rate * (bit - mixed.ones)
    rows = mixed.weights + steps[:, None] * mixed.inputs
    weights = tuple(
        jax.lax.dynamic_update_slice_in_dim(all, new[None], row, 0)
        for all, row, new in zip(mixer.weights, mixed.chosen, rows, strict=True)
    )
    shares = _MAP_RATE * jnp.stack([1 - mixed.share, mixed.share])
    knots = mixed.knots + (bit - mixed.knots) * shares
    last = mixed.last + _LAST_RATE * (bit - mixed.last_one) * mixed.logits
    return Mixer(
        weights,
        jax.lax.dynamic_update_slice(mixer.map, knots, mixed.map_at),
        jax.lax.dynamic_update_slice_in_dim(mixer.last, last[None], mixed.last_row, 0),
    )
