"""The cells compute the formulas of the paper and its authors, with their initialisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from structured import sigmoid

from norewind import cells
from norewind.cells.cell import uniform
from norewind.training import registry

CELLS = {"rnn": cells.rnn, "gru": cells.gru, "lstm": cells.lstm}


def rnn_by_hand(p, s, x):
    s = p["input"][x] + p["recurrent"] @ np.tanh(s) + p["bias"]
    return s, p["readout"]["weight"] @ np.tanh(s) + p["readout"]["bias"]


def gru_by_hand(p, h, x):
    (e_r, e_z, e_c), (b_r, b_z, b_c) = np.split(p["input"][x], 3), np.split(p["bias"], 3)
    u_r, u_z = np.split(p["gates"], 2)
    r, z = sigmoid(e_r + u_r @ h + b_r), sigmoid(e_z + u_z @ h + b_z)
    c = np.tanh(e_c + p["candidate"] @ (r * h) + b_c)
    h = z * c + (1 - z) * h
    return h, p["readout"]["weight"] @ h + p["readout"]["bias"]


def lstm_by_hand(p, state, x):
    a = p["input"] @ p["embedding"][x] + p["input_bias"] + p["recurrent"] @ state["h"] + p["recurrent_bias"]
    i, f, o, g = np.split(a, 4)
    c = sigmoid(f - 0.3) * state["c"] + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return {"h": h, "c": c}, p["readout"]["weight"] @ h + p["readout"]["bias"]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "by_hand"), [("rnn", rnn_by_hand), ("gru", gru_by_hand), ("lstm", lstm_by_hand)])
def test_formulas(name, by_hand):
    cell = CELLS[name](3, 5, 2)
    params = jax.jit(cell.init)(jax.random.key(0))
    state = cell.initial_state()
    numpy_params = jax.tree.map(np.asarray, params)
    expected_state = jax.tree.map(np.asarray, state)
    for x in (0, 2, 1, 1):
        state, output = cell.transition(params, state, jnp.array(x))
        expected_state, expected = by_hand(numpy_params, expected_state, x)
        np.testing.assert_allclose(output, expected, rtol=1e-12)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected_state), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_a_one_hot_vector_is_a_symbol(name):
    cell = CELLS[name](3, 4, 2)
    params, state = cell.init(jax.random.key(0)), cell.initial_state()
    _, by_symbol = cell.transition(params, state, jnp.array(2))
    _, by_vector = cell.transition(params, state, jnp.array([0.0, 0.0, 1.0]))
    np.testing.assert_allclose(by_symbol, by_vector, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "options"), [("rnn", {}), ("gru", {}), ("lstm", {}), ("lstm", {"embedding": False})], ids=str
)
def test_initialisation_matches_the_authors_code(name, options):
    """Tables are N(0, 1), everything else (biases too) is uniform in ±1/√fan_in, and leaves are independent."""
    params = jax.jit(CELLS[name](50, 64, 40, **options).init)(jax.random.key(0))
    tables = {"embedding", "input"} & set(params) if "embedding" not in params else {"embedding"}
    draws = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        place, leaf = jax.tree_util.keystr(path), np.asarray(leaf)
        if path[0].key in tables:
            assert np.std(leaf) == pytest.approx(1, abs=0.05), place
        else:
            assert np.abs(leaf).max() <= 1 / 8, place
            assert np.abs(leaf).max() > 0.9 / 8, place
            assert np.std(leaf) == pytest.approx(1 / 8 / np.sqrt(3), rel=0.2), place
        draws[place] = leaf.reshape(-1)[:40] / np.std(leaf)
    assert len({tuple(np.round(draw, 4)) for draw in draws.values()}) == len(draws)


@pytest.mark.parametrize("name", CELLS)
def test_vectors_get_a_scaled_table(name):
    params = jax.jit(CELLS[name](100, 8, 3, symbols=False).init)(jax.random.key(0))
    table = np.asarray(params["embedding" if name == "lstm" else "input"])
    assert 0.09 < np.abs(table).max() <= 0.1


@pytest.mark.parametrize("name", CELLS)
def test_dtype_is_kept(name):
    cell = CELLS[name](3, 4, 2, dtype=jnp.bfloat16)
    params, state = jax.jit(cell.init)(jax.random.key(0)), cell.initial_state()
    state, output = cell.transition(params, state, jnp.array(0))
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state, output))} == {jnp.dtype(jnp.bfloat16)}


def test_an_empty_stack_is_rejected():
    with pytest.raises(ValueError, match="at least one"):
        cells.stack()


@pytest.mark.parametrize("name", registry.CELLS)
@pytest.mark.parametrize("symbols", [True, False])
def test_every_cell_can_be_made_by_its_name(name, symbols):
    cell = registry.cell(name)(3, 4, 2, symbols=symbols)
    x = jnp.array(1) if symbols else jnp.ones(3)
    params, state = jax.eval_shape(cell.init, jax.random.key(0)), cell.initial_state()
    new, output = jax.eval_shape(cell.transition, params, state, x)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, state)
    assert output.shape == (2,)


@pytest.mark.parametrize("shape", [(1,), (5, 7), (1024,), (40, 60), (64, 64)])
def test_initial_weights_are_the_numbers_that_jax_draws_for_the_shape(shape):
    key = jax.random.key(3)
    np.testing.assert_array_equal(
        uniform(key, shape, 4, jnp.float32), jax.random.uniform(key, shape, minval=-0.5, maxval=0.5)
    )
