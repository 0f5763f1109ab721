"""The match model: the symbol that followed when the last few symbols were seen before."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.learners.counting.plan import Plan, symbol_type

LEAST = 5
BUCKETS = 32
_COMPARED = 32
_TOLD_APART = 31
_LONGEST = 65535


class Matches(NamedTuple):
    """The symbols of the past in a ring, where each hashed run of symbols was last seen, and the match that goes on.

    `position` counts symbols (modulo 2³²), `pointer` is the position of the symbol that the match expects next.
    """

    ring: jax.Array
    places: jax.Array
    position: jax.Array
    pointer: jax.Array
    length: jax.Array


def no_matches(plan: Plan) -> Matches:
    """Nothing has been seen."""
    ring, places = jnp.zeros(plan.history, symbol_type(plan.symbols)), jnp.zeros(plan.history // 4, jnp.uint32)
    # Two zeros, because scan gives every array of a run away, and none can be given away twice.
    position, pointer = jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.uint32)
    return Matches(ring, places, position, pointer, jnp.zeros((), jnp.int32))


def at(matches: Matches, position: jax.Array) -> jax.Array:
    """The symbols at these positions, where 0 is the first of the stream. The ring forgets the oldest."""
    return matches.ring.at[position % matches.ring.shape[0]].get(mode="promise_in_bounds").astype(jnp.int32)


def followed(matches: Matches, symbol: jax.Array, hashed: jax.Array) -> Matches:
    """One symbol more; `hashed` stands for the last LEAST symbols, this one included."""
    size = matches.ring.shape[0]
    # Everything is read after the write, or XLA would copy the ring. The pointer is never where this symbol goes.
    ring = matches.ring.at[matches.position % size].set(symbol.astype(matches.ring.dtype))
    position = matches.position + 1
    place = hashed % matches.places.shape[0]
    candidate = matches.places.at[place].get(mode="promise_in_bounds")
    matches = matches._replace(ring=ring, position=position, places=matches.places.at[place].set(position))
    goes_on = (matches.length > 0) & (at(matches, matches.pointer) == symbol)
    back = jnp.arange(1, _COMPARED + 1, dtype=jnp.uint32)
    equal = (at(matches, candidate - back) == at(matches, position - back)) & (back <= candidate)
    found = jnp.cumprod(equal.astype(jnp.int32)).sum()
    age = position - candidate
    usable = (found >= LEAST) & (age < size - _COMPARED)
    length = jnp.where(goes_on, jnp.minimum(matches.length + 1, _LONGEST), jnp.where(usable, found, 0))
    return matches._replace(pointer=jnp.where(goes_on, matches.pointer + 1, candidate), length=length)


def bucket(length: jax.Array) -> jax.Array:
    """Lengths in 32 classes, finest where they are short."""
    classes = jnp.where(length < 16, length, jnp.where(length < 32, 12 + length // 4, 18 + length // 16))
    return jnp.minimum(classes, BUCKETS - 1)


def opinion(matches: Matches) -> tuple[jax.Array, jax.Array]:
    """The symbol that the match expects, and a number for it and the match's length: 0 if there is no match."""
    expected = at(matches, matches.pointer)
    known = (expected + 1) * (_TOLD_APART + 1) + jnp.minimum(matches.length, _TOLD_APART)
    return expected, jnp.where(matches.length > 0, known, 0)
