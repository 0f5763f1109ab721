"""Comparison of two pytrees, PRNG keys included."""

import jax
import jax.numpy as jnp
import numpy as np


def assert_same(a, b, tolerance=0.0):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
