"""What the tables hold: 16 words of 32 bits a row, one row for a context and a group of up to four bits.

Word 0 is the context's check, so that a row of another context is noticed and started
anew. Word i is the slot of node i of the group (1 to 15): from the top, 18 bits of the
probability of a one, 8 of how often the node was seen, and 6 of its last five bits
behind a leading one. A fresh slot is all zeros, so the probability is kept with its top bit
flipped.
"""

import jax
import jax.numpy as jnp

WIDTH = 16
HISTORIES = 64
_SCALE, _HALF = 1 << 18, 1 << 17


def unpacked(slots: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The probability of a one, how often the slot was seen (at most 255), and the last bits behind a leading one."""
    probability = ((slots >> 14) ^ _HALF).astype(jnp.float32)
    return (probability + 0.5) / _SCALE, ((slots >> 6) & 255).astype(jnp.float32), slots & 63


def learned(slots: jax.Array, bit: jax.Array, limit: float) -> jax.Array:
    """The slots after this bit: p ← p + (bit − p) · max(1/(n + 1.2), 1/limit)."""
    p, n, history = unpacked(slots)
    p = p + (bit - p) * jnp.maximum(1 / (n + 1.2), 1 / limit)
    p = jnp.clip((p * _SCALE).astype(jnp.int32), 0, _SCALE - 1).astype(jnp.uint32) ^ _HALF
    n = jnp.minimum(n + 1, 255).astype(jnp.uint32)
    history = 2 * jnp.maximum(history, 1) + bit.astype(jnp.uint32)
    history = jnp.where(history >= HISTORIES, history % 32 + 32, history)
    return (p << 14) | (n << 6) | history


def rows_of(table: jax.Array, places: jax.Array, checks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where each context's row is and what it holds: one of the two from this place on, which is even.

    If neither belongs to the context, the one that was used less makes room for a fresh one.
    """
    pairs = table.reshape(-1, 2, WIDTH).at[places >> 1].get(mode="promise_in_bounds")
    mine = pairs[..., 0] == checks[..., None]
    uses = pairs[..., 1] >> 6 & 255
    second = ~mine[..., 0] & (mine[..., 1] | (uses[..., 1] < uses[..., 0]))
    row = jnp.where(second[..., None], pairs[..., 1, :], pairs[..., 0, :])
    row = jnp.where((row[..., 0] == checks)[..., None], row, 0).at[..., 0].set(checks)
    return places + second, row
