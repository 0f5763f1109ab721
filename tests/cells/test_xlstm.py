"""The sLSTM against its unstabilised equations, in values and in gradients, and without overflow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured

from norewind import cells, losses, rtrl, uoro
from norewind.estimators import kf_rtrl, snap1
from norewind.testing import check_exact, check_structure, check_unbiased, exact_grads


def model_of(hidden=2, length=5):
    cell = cells.slstm(3, hidden, 3)
    model = structured.from_cell("slstm", cell, length)
    state = jax.tree.map(jnp.asarray, model.state | {"n": model.state["n"] + 1, "m": 0.2 * model.state["m"]})
    return model._replace(state=state)


def plain(params, state, x):
    """The paper's equations 8 to 14, without a stabiliser."""
    i, f, o, z = jnp.split(params["input"][x] + params["recurrent"] @ state["h"] + params["bias"], 4)
    c = jax.nn.sigmoid(f) * state["c"] + jnp.exp(i) * jnp.tanh(z)
    n = jax.nn.sigmoid(f) * state["n"] + jnp.exp(i)
    h = jax.nn.sigmoid(o) * c / n
    return {"c": c, "h": h, "n": n}, params["readout"]["weight"] @ h + params["readout"]["bias"]


@pytest.mark.usefixtures("x64")
def test_the_stabiliser_changes_neither_outputs_nor_gradients():
    model = model_of()
    scale = jnp.exp(model.state["m"])
    start = {"c": scale * model.state["c"], "n": scale * model.state["n"], "h": model.state["h"]}
    state, other = model.state, start
    for x in model.xs:
        state, output = model.transition(model.params, state, x)
        other, wanted = plain(model.params, other, x)
        np.testing.assert_allclose(output, wanted, rtol=1e-12)
    inputs = model.xs, model.targets
    got = exact_grads(model.transition, losses.cross_entropy, model.params, model.state, *inputs)
    wanted = exact_grads(plain, losses.cross_entropy, model.params, start, *inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), got, wanted)


def test_large_drives_do_not_overflow():
    model = model_of()
    params = model.params | {"input": 300.0 * jnp.asarray(model.params["input"])}
    grads = exact_grads(model.transition, losses.cross_entropy, params, model.state, model.xs, model.targets)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads))


def test_the_first_step_forgets_the_initial_memory():
    cell = cells.slstm(3, 4, 2)
    params = cell.init(jax.random.key(0))
    state, _ = cell.transition(params, cell.initial_state(), jnp.array(1))
    z = jnp.tanh((params["input"][1] + params["bias"])[12:])
    np.testing.assert_allclose(state["c"] / state["n"], z, rtol=1e-5)


@pytest.mark.usefixtures("x64")
def test_exact_in_rtrl():
    check_exact(rtrl, models=[model_of()])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_unbiased_also_through_its_affine_layer():
    check_unbiased(uoro, models=[model_of(1, 4)])
    check_unbiased(kf_rtrl, models=[model_of(1, 4)])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_declarations_are_true_and_traces_those_of_a_masked_rtrl():
    model = model_of(3)
    check_structure(model.transition, model.params, model.state, model.xs[0])
    wanted = structured.masked_rtrl(model)[0]
    got = structured.grads_of(snap1(model.transition, losses.cross_entropy), model)
    flat = np.concatenate([np.reshape(leaf, (len(model.xs), -1)) for leaf in jax.tree.leaves(got)], axis=1)
    np.testing.assert_allclose(flat, wanted, rtol=0, atol=1e-10)
