"""Comparisons of two pytrees, PRNG keys included."""

import jax
import numpy as np

from norewind.core.trees import is_prng_key


def numbers(leaf):
    """Return a leaf as an array; for a PRNG key, its data."""
    return np.asarray(jax.random.key_data(leaf) if is_prng_key(leaf) else leaf)


def assert_same(a, b, tolerance=0.0, *, absolute=None):
    """Assert that two trees have the same structure, and that their numbers differ by no more than the tolerance.

    The tolerance is both relative and absolute, unless `absolute` is given too.
    """
    assert jax.tree.structure(a) == jax.tree.structure(b)
    absolute = tolerance if absolute is None else absolute
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(numbers(x), numbers(y), rtol=tolerance, atol=absolute)


def same_bits(a, b) -> bool:
    """Return whether two trees have the same structure, and leaves of the same type, shape and bytes."""

    def content(leaf):
        array = numbers(leaf)
        kind = jax.random.key_impl(leaf) if is_prng_key(leaf) else array.dtype
        return str(kind), array.shape, array.tobytes()

    return jax.tree.structure(a) == jax.tree.structure(b) and [*map(content, jax.tree.leaves(a))] == [
        *map(content, jax.tree.leaves(b))
    ]
