"""norewind.adam is optax.adam: the same updates to rounding, and the same state."""

import jax
import jax.numpy as jnp
import optax
import pytest
from alike import assert_same

from norewind import adam, inverse_sqrt


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.1},
        {"learning_rate": inverse_sqrt(0.1, alpha=0.5), "b1": 0.8, "b2": 0.9},
        {"learning_rate": 0.1, "eps": 0.3},  # large enough for a misplaced eps to be noticed
    ],
)
def test_the_same_as_optax(options):
    params = {"real": jnp.arange(3.0), "complex": jnp.array([1.0 + 2.0j]), "nothing": None}
    ours, theirs = adam(**options), optax.adam(**options)
    state, expected_state = ours.init(params), theirs.init(params)
    for i in range(6):
        grads = jax.tree.map(lambda leaf, i=i: jnp.sin(3 * i + leaf) * 10.0 ** (i - 3), params)
        updates, state = ours.update(grads, state, params)
        expected, expected_state = theirs.update(grads, expected_state, params)
        assert_same(updates, expected, 1e-14)
    # a state saved with one can be continued with the other
    assert jax.tree.structure(state) == jax.tree.structure(expected_state)
    assert_same(state, expected_state, 1e-14)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_dtypes_stay_the_same(dtype):
    params = jnp.ones(3, dtype)
    optimizer = adam(0.1)
    updates, state = optimizer.update(params, optimizer.init(params))
    dtypes = {leaf.dtype for leaf in jax.tree.leaves((updates, state)) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    assert dtypes == {jnp.dtype(dtype)}


def test_a_gradient_of_zero_moves_nothing():
    params = jnp.ones(2)
    optimizer = adam(0.1)
    updates, _ = optimizer.update(jnp.zeros(2), optimizer.init(params))
    assert updates.tolist() == [0.0, 0.0]
