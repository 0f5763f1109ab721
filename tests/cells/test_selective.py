"""The selective state space model and DeltaNet: their formulas, and exact gradients for their structure."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured

from norewind import cells, rtrl, uoro
from norewind.core.structure import structure_of
from norewind.estimators import snap1
from norewind.testing import check_exact, check_structure, check_unbiased

RULES = ("delta", "gated", "additive")


def softplus(x):
    return np.log1p(np.exp(x))


def ssm_by_hand(p, h, x):
    """Zero-order hold of h' = −A h + B x over a time Δ, by the exponential of the matrix [[−A, B x], [0, 0]]."""
    step, drive = np.split(p["input"][x], 2)
    times, rates = softplus(step + p["bias"]), np.exp(p["nu"])
    h = np.array([
        np.asarray(jax.scipy.linalg.expm(np.array([[-a * t, b * t], [0, 0]]))) @ [old, 1.0]
        for a, t, b, old in zip(rates, times, drive, h, strict=True)
    ])[:, 0]  # fmt: skip
    gate = p["output_gate"]["input"][x] + p["output_gate"]["bias"]
    return h, p["readout"]["weight"] @ (gate * h) + p["readout"]["bias"]


def deltanet_by_hand(p, S, x, rule):
    """S' = S (α I − α β k kᵀ) + β v kᵀ, with the matrices written out."""
    k, q = (v / np.sqrt(np.sum(v**2) + 1e-6) for v in (structured.sigmoid(p[n][x]) * p[n][x] for n in ("key", "query")))
    v = p["value"][x]
    keep = structured.sigmoid(p["keep"]["input"][x] + p["keep"]["bias"]) if "keep" in p else np.ones(1)
    if rule == "additive":
        S = S @ np.diag(keep) + np.outer(v, k)
    else:
        (beta,) = structured.sigmoid(p["rate"]["input"][x] + p["rate"]["bias"])
        S = keep[0] * S @ (np.eye(len(k)) - beta * np.outer(k, k)) + beta * np.outer(v, k)
    return S, p["readout"]["weight"] @ S @ q + p["readout"]["bias"]


def small(name, cell, **options):
    model = structured.from_cell(name, cell, **options)
    return model._replace(state=model.state.reshape(jax.eval_shape(cell.initial_state).shape))


def assert_formula(model, by_hand):
    state, params, expected = model.state, jax.tree.map(np.asarray, model.params), np.asarray(model.state)
    step = jax.jit(model.transition)
    for x in (0, 2, 1, 1):
        state, output = step(model.params, state, x)
        expected, wanted = by_hand(params, expected, x)
        np.testing.assert_allclose(output, wanted, rtol=1e-10)
        np.testing.assert_allclose(state, expected, rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_formula_of_the_selective_ssm():
    assert_formula(small("ssm", cells.selective_ssm(3, 5, 2)), ssm_by_hand)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rule", RULES)
def test_formula_of_deltanet(rule):
    model = small(rule, cells.deltanet(3, 4, 2, keys=3, rule=rule))
    assert_formula(model, partial(deltanet_by_hand, rule=rule))


@pytest.mark.usefixtures("x64")
def test_traces_of_the_selective_ssm_are_exact():
    model = small("ssm", cells.selective_ssm(3, 3, 3))
    check_exact(snap1, models=[model])
    check_structure(model.transition, model.params, model.state, model.xs[0])
    assert structure_of(model.transition).elementwise


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "rule", ["gated", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("delta", "additive"))]
)
def test_traces_of_matrix_states_are_exact(rule):
    """Also for the weights of keys and gates, which all rows share."""
    model = small(rule, cells.deltanet(3, 2, 3, keys=3, rule=rule))
    check_exact(snap1, models=[model])
    check_structure(model.transition, model.params, model.state, model.xs[0])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rule", RULES)
def test_matrix_states_in_rtrl_and_uoro(rule):
    model = small(rule, cells.deltanet(3, 2, 3, keys=2, rule=rule))
    check_exact(rtrl, models=[model])
    check_unbiased(uoro, models=[model])


def test_deltanet_replaces_what_it_stored_under_a_key():
    """With β = 1, writing a second value under the same key leaves nothing of the first."""
    cell = cells.deltanet(3, 4, 2)
    params = cell.init(jax.random.key(0))
    params["rate"]["bias"] = jnp.full(1, 40.0)
    params["key"] = params["key"].at[1].set(params["key"][0])
    state = cell.initial_state()
    for x in (0, 1):
        state, _ = cell.transition(params, state, jnp.array(x))
    key = jax.nn.silu(params["key"][0])
    np.testing.assert_allclose(state @ key / jnp.linalg.norm(key), params["value"][1], atol=1e-4)


def test_a_large_step_replaces_the_state_and_a_small_one_keeps_it():
    cell = cells.selective_ssm(3, 4, 2, symbols=False)
    params = cell.init(jax.random.key(0))
    old, x = jnp.arange(4.0), jnp.ones(3)
    drive = (x @ params["input"])[4:]
    for bias, wanted in ((50.0, drive), (-50.0, old)):
        state, _ = cell.transition(params | {"bias": jnp.full(4, bias)}, old, x)
        np.testing.assert_allclose(state, wanted, atol=1e-5)


def test_initial_times_of_the_selective_ssm():
    cell = cells.selective_ssm(3, 3, 2, symbols=False, times=(1.0, 100.0))
    state, _ = cell.transition(cell.init(jax.random.key(0)), jnp.ones(3), jnp.zeros(3))
    np.testing.assert_allclose(state, np.exp(-1 / np.array([1.0, 10.0, 100.0])), rtol=1e-4)


def test_settings_out_of_range_are_rejected():
    with pytest.raises(ValueError, match="selective_ssm: times must be two numbers"):
        cells.selective_ssm(3, 3, 2, times=(0.0, 1.0))
    with pytest.raises(ValueError, match='rule must be "delta", "gated" or "additive", not \'add\''):
        cells.deltanet(3, 3, 2, rule="add")


@pytest.mark.parametrize("make", [cells.selective_ssm, *(partial(cells.deltanet, rule=rule) for rule in RULES)])
def test_inputs_and_dtypes(make):
    cell = make(3, 4, 2)
    params, state = cell.init(jax.random.key(0)), cell.initial_state()
    by_symbol, by_vector = (cell.transition(params, state, x)[1] for x in (jnp.array(2), jnp.array([0.0, 0.0, 1.0])))
    np.testing.assert_allclose(by_symbol, by_vector, rtol=1e-5)
    half = make(3, 4, 2, dtype=jnp.bfloat16)
    shapes = jax.eval_shape(half.init, jax.random.key(0))
    outcome = jax.eval_shape(half.transition, shapes, half.initial_state(), 0)
    assert {leaf.dtype for leaf in jax.tree.leaves((shapes, outcome))} == {jnp.dtype(jnp.bfloat16)}
