"""The noise of the stochastic estimators, from replaceable sources."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from norewind.core.checks import ModelError
from norewind.core.trees import Tree

# `noise(key, like) -> (noise, next_key)` returns the noise of one step, shaped like the tree `like`, and the next key.
Noise = Callable[[jax.Array, Tree], tuple[Tree, jax.Array]]


def random_signs(key: jax.Array, like: Tree) -> tuple[Tree, jax.Array]:
    """Draw independent signs ±1 in the shape of a tree of floating arrays.

    The keys form a chain, so the noise of step t depends on the first key and on t alone.

    Args:
        key: the PRNG key of this step.
        like: a tree of arrays with the shapes and dtypes of the signs.

    Returns:
        The signs, and the key of the next step.

    >>> import jax, jax.numpy as jnp
    >>> signs, key = random_signs(jax.random.key(0), {"h": jnp.zeros(4)})
    >>> [float(abs(s)) for s in signs["h"]]
    [1.0, 1.0, 1.0, 1.0]
    """
    leaves, structure = jax.tree.flatten(like)
    total = sum(leaf.size for leaf in leaves)
    old = jax.random.key_data(key)
    # One draw for the next key and the signs, with one random bit per sign: more would slow down every step.
    words = jax.random.bits(key, (old.size + -(-total // 32),), jnp.uint32)
    next_key = jax.random.wrap_key_data(words[: old.size].reshape(old.shape), impl=jax.random.key_impl(key))
    bits = (words[old.size :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    signs = 1 - 2 * bits.reshape(-1).astype(jnp.int32)
    parts, start = [], 0
    for leaf in leaves:
        parts.append(signs[start : start + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
        start += leaf.size
    return jax.tree.unflatten(structure, parts), next_key


def as_key(key: jax.Array) -> jax.Array:
    """Convert a PRNG key of either kind to a typed one.

    Args:
        key: a typed key (`jax.random.key`) or a raw one (`jax.random.PRNGKey`).

    Returns:
        A typed key.

    Raises:
        ModelError: it is not one PRNG key.
    """
    if not hasattr(key, "dtype"):
        raise ModelError(f"the key is {key!r}, not a PRNG key. Make one with jax.random.key(0).")
    if jnp.issubdtype(key.dtype, jnp.uint32) and key.shape == (2,):
        return jax.random.wrap_key_data(key)
    if key.shape:
        raise ModelError(f"the key is an array of shape {key.shape}, not one PRNG key. Pass one of them.")
    return key


def gaussian(key: jax.Array, like: Tree) -> tuple[Tree, jax.Array]:
    """Draw independent standard normal numbers in the shape of a tree of floating arrays.

    Args:
        key: the PRNG key of this step.
        like: a tree of arrays with the shapes and dtypes of the numbers.

    Returns:
        The numbers, and the key of the next step.
    """
    next_key, draw = jax.random.split(key)
    leaves, structure = jax.tree.flatten(like)
    draws = jax.random.split(draw, max(1, len(leaves)))
    numbers = [jax.random.normal(draws[i], leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, numbers), next_key
