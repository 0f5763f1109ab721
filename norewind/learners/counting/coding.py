"""A binary arithmetic coder in the compiled loop: symbols become bytes, and bytes the same symbols again."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# The precision of a probability in bits. Counts are never more certain than this.
PRECISION = 16
_TOP = jnp.uint32(0xFF000000)


class Coder(NamedTuple):
    """The interval `low` to `high` that the bits so far have left, and the bytes of a piece of the code.

    `place` is how many of `data` were written, or read. When decoding, `value` is where
    the code lies.
    """

    low: jax.Array
    high: jax.Array
    value: jax.Array
    data: jax.Array
    place: jax.Array


def fresh() -> Coder:
    return Coder(jnp.uint32(0), jnp.uint32(0xFFFFFFFF), jnp.uint32(0), jnp.zeros(0, jnp.uint8), jnp.int32(0))


def coded(coder: Coder, one: jax.Array, bit: jax.Array, decoding: jax.Array) -> tuple[jax.Array, Coder]:
    """Write the bit, or read it, where `one` is the probability that it is a one: `(bit, coder)`."""
    share = jnp.clip((one * (1 << PRECISION)).astype(jnp.uint32), 1, (1 << PRECISION) - 1)
    width = coder.high - coder.low
    middle = coder.low + (width >> PRECISION) * share + (((width & 0xFFFF) * share) >> PRECISION)
    bit = jnp.where(decoding, (coder.value <= middle).astype(bit.dtype), bit)
    low, high = jnp.where(bit == 1, coder.low, middle + 1), jnp.where(bit == 1, middle, coder.high)

    def is_settled(coder):
        return ((coder.low ^ coder.high) & _TOP) == 0

    def shifted(coder):
        # The same statement writes the byte that is settled and reads the next one.
        byte = jnp.where(decoding, coder.data[coder.place], (coder.high >> 24).astype(jnp.uint8))
        data = coder.data.at[coder.place].set(byte)
        value = (coder.value << 8) | byte.astype(jnp.uint32)
        return Coder(coder.low << 8, (coder.high << 8) | 255, value, data, coder.place + 1)

    return bit, jax.lax.while_loop(is_settled, shifted, coder._replace(low=low, high=high))
