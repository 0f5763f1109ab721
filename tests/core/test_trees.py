"""The arithmetic that the estimators share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from norewind.core.trees import all_finite, norm


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 3), (1, 5), (8, 3), (13, 2), (3, 5, 7)])
def test_norm(shape):
    """For any number of rows, those that do not fill a fold are counted exactly once."""
    leaf = np.random.default_rng(0).normal(size=shape)
    tree = {"real": jnp.asarray(leaf), "complex": [jnp.asarray(leaf * (1 + 2j))]}
    assert float(norm(tree)) == pytest.approx(np.sqrt(6 * np.sum(leaf**2)), rel=1e-14)


def test_norm_of_low_precision_and_in_a_vmap():
    leaves = jnp.arange(48.0).reshape(2, 24, 1)
    assert jnp.allclose(jax.vmap(norm)(leaves), jnp.linalg.norm(leaves, axis=(1, 2)))
    assert jnp.allclose(norm(leaves.astype(jnp.bfloat16)), jnp.linalg.norm(leaves), rtol=1e-2)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 5), (8, 3), (3, 5, 7)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_non_finite_number_is_found_at_any_position(shape, bad):
    numbers = np.full(shape, 3e38, np.float32)  # the largest ones are finite, and so is their mean
    others = {"count": jnp.array(3), "none": None, "complex": jnp.ones(2, jnp.complex64), "empty": jnp.zeros((0, 2))}
    assert all_finite({"leaf": jnp.asarray(numbers), **others})
    for place in {0, numbers.size // 2, numbers.size - 1}:
        broken = numbers.ravel().copy()
        broken[place] = bad
        assert not all_finite({**others, "leaf": jnp.asarray(broken.reshape(shape))})
    assert all_finite({"count": jnp.array(3)})
