"""The adaptive spiking neurons: their formula, their surrogate gradient, and the traces of e-prop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured

from norewind import cells, losses, rtrl, uoro
from norewind.cells.spiking import SURROGATE_HEIGHT, spike
from norewind.estimators import rflo
from norewind.testing import check_exact, check_structure, check_unbiased

TIMES = (5.0, 30.0, 4.0)


def model_of(hidden=2, length=4, symbols=True):
    cell = cells.alif(3, hidden, 3, symbols=symbols, times=TIMES)
    model = structured.from_cell("alif", cell, length, symbols=symbols)
    return model._replace(state=model.state | {"voltage": model.state["voltage"] + 0.5})


def alif_by_hand(p, state, x):
    """Neuron by neuron, as in the paper."""
    alpha, rho, kappa = (np.exp(-1 / t) for t in TIMES)
    new = {name: np.zeros_like(value) for name, value in state.items()}
    for j in range(len(state["voltage"])):
        current = p["input"][x][j] + p["bias"][j]
        current += sum(p["recurrent"][j, i] * state["spikes"][i] for i in range(len(state["spikes"])))
        new["voltage"][j] = alpha * state["voltage"][j] + current - state["spikes"][j]
        new["adaptation"][j] = rho * state["adaptation"][j] + state["spikes"][j]
        threshold = 1 + 0.1 * new["adaptation"][j]
        new["spikes"][j] = float(new["voltage"][j] > threshold)
        new["trace"][j] = kappa * state["trace"][j] + (1 - kappa) * new["spikes"][j]
    return new, p["readout"]["weight"] @ new["trace"] + p["readout"]["bias"]


@pytest.mark.usefixtures("x64")
def test_formula():
    model = model_of(6)
    state, expected = model.state, jax.tree.map(np.asarray, model.state)
    params, fired = jax.tree.map(np.asarray, model.params), 0
    for x in (0, 2, 1, 1, 0, 2, 2):
        state, output = model.transition(model.params, state, x)
        expected, wanted = alif_by_hand(params, expected, x)
        np.testing.assert_allclose(output, wanted, rtol=1e-12)
        for name in expected:
            np.testing.assert_allclose(state[name], expected[name], rtol=1e-12)
        fired += expected["spikes"].sum()
    assert 0 < fired < 42


def test_the_surrogate_derivative_is_a_triangle():
    distances = jnp.array([-1.5, -0.5, 0.0, 0.5, 1.5])
    slopes = jax.vmap(jax.grad(spike))(distances)
    np.testing.assert_allclose(slopes, SURROGATE_HEIGHT * np.array([0, 0.5, 1, 0.5, 0]), rtol=1e-6)
    assert spike(distances).tolist() == [0, 0, 0, 1, 1]


def test_every_spike_raises_the_threshold_for_a_while():
    cell = cells.alif(1, 2, 1, symbols=False, adaptation=0.5)
    params = cell.init(jax.random.key(0)) | {"input": jnp.full((1, 2), 1.2), "bias": jnp.zeros(2)}
    state = cell.initial_state() | {"adaptation": jnp.array([1.0, 0.1])}
    new, _ = cell.transition(params, state, jnp.ones(1))
    assert new["spikes"].tolist() == [0, 1]
    after, _ = cell.transition(params, new, jnp.zeros(1))
    risen = after["adaptation"] - new["adaptation"] * np.exp(-1 / 200)
    np.testing.assert_allclose(risen, [0, 1], atol=1e-5)


@pytest.mark.usefixtures("x64")
def test_exact_and_unbiased_for_the_surrogate():
    check_exact(rtrl, models=[model_of()])
    check_unbiased(uoro, models=[model_of(1, 4)])


@pytest.mark.usefixtures("x64")
def test_declarations_are_true():
    model = model_of(4, symbols=False)
    check_structure(model.transition, model.params, model.state, model.xs[0])


@pytest.mark.usefixtures("x64")
def test_with_rflo_the_traces_are_those_of_eprop():
    """Bellec et al. (2020): ε carries v and a of the same neuron, e = ψ (ε_v − β ε_a), low-passed by the readout."""
    model = model_of(3, 6)
    got = structured.grads_of(rflo(model.transition, losses.cross_entropy), model)
    alpha, rho, kappa = (np.exp(-1 / t) for t in TIMES)
    beta = 0.1
    params, state = jax.tree.map(np.asarray, (model.params, model.state))
    eps_v, eps_a, e, low = np.zeros((4, 3, 3))  # [neuron, presynaptic neuron]
    for t, x in enumerate(model.xs):
        new, output = alif_by_hand(params, state, x)
        # the adaptation by the neuron's own spike is part of its own dynamics; the reset is a constant
        eps_v, eps_a = alpha * eps_v + state["spikes"][None, :], rho * eps_a + e
        psi = SURROGATE_HEIGHT * np.maximum(0, 1 - np.abs(new["voltage"] - 1 - beta * new["adaptation"]))
        e = psi[:, None] * (eps_v - beta * eps_a)
        low = kappa * low + (1 - kappa) * e
        error = np.exp(output - output.max()) / np.exp(output - output.max()).sum()
        error[model.targets[t]] -= 1
        wanted = (params["readout"]["weight"].T @ error)[:, None] * low
        np.testing.assert_allclose(got["recurrent"][t], wanted, rtol=0, atol=1e-12)
        state = new


def test_settings_out_of_range_are_rejected():
    with pytest.raises(ValueError, match="alif: times must be above 0"):
        cells.alif(3, 2, 3, times=(0.0, 1.0, 1.0))
