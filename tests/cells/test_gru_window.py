"""A window of the GRU computed at once equals the same window step by step."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind import bptt, cells, losses, window
from norewind.cells.dense import GruWindow
from norewind.core.combinators import one_step_of


def test_states_outputs_and_gradients_are_those_of_a_plain_window():
    cell = cells.gru(inputs=7, hidden=5, outputs=7)
    params, state = cell.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), 5)
    text = jnp.array([0, 3, 3, 6, 1, 0, 2, 5, 5])
    plain, loss = window(cell.transition, losses.cross_entropy)
    results = []
    for transition in (plain, GruWindow(cell.transition)):
        estimator = bptt(transition, loss)
        state_after, _, estimate = estimator.step(params, state, (), text[:-1], text[1:])
        results.append((state_after, estimate))
    expected, made = (jax.tree.leaves_with_path(result) for result in results)
    assert [path for path, _ in made] == [path for path, _ in expected]
    for (path, value), (_, other) in zip(made, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6, err_msg=jax.tree_util.keystr(path))


def test_the_gradient_reaches_the_state_before_the_window():
    cell = cells.gru(inputs=3, hidden=4, outputs=3)
    params, text = cell.init(jax.random.key(0)), jnp.array([0, 1, 2, 1])
    plain, loss = window(cell.transition, losses.cross_entropy)
    fast = GruWindow(cell.transition)
    state = jax.random.normal(jax.random.key(2), 4)
    grads = [jax.grad(lambda s, t=t: loss(t(params, s, text[:-1])[1], text[1:]))(state) for t in (plain, fast)]
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-5, atol=1e-6)
    assert np.abs(grads[0]).max() > 1e-3


def test_single_symbols_are_predicted_by_the_cell_itself():
    cell = cells.gru(inputs=3, hidden=4, outputs=3)
    assert one_step_of(GruWindow(cell.transition)) is cell.transition
