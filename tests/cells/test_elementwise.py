"""The elementwise cells: formulas, exact gradients, declarations, and the part of the gradient that a stack loses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured

from norewind import cells, declare, rtrl
from norewind.core.structure import structure_of
from norewind.estimators import lstm97
from norewind.testing import check_exact, check_structure

RING = (0.4, 0.95, 2.0)


def affine(p, h):
    return p["weight"] @ h + p["bias"]


def eigenvalues(p):
    return np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"]))


def parts(z):
    return np.concatenate([z.real, z.imag])


def lru_by_hand(p, state, x):
    eigen, (b_re, b_im) = eigenvalues(p), np.split(p["input"][x], 2)
    z = eigen * (state["re"] + 1j * state["im"]) + b_re + 1j * b_im
    gain = np.tile(np.sqrt(1 - np.abs(eigen) ** 2), 2)
    return {"re": z.real, "im": z.imag}, affine(p["readout"], gain * parts(z))


def rtu_by_hand(p, state, x, linear=False):
    r, angle, (w_1, w_2) = np.exp(-np.exp(p["nu"])), np.exp(p["theta"]), np.split(p["input"][x], 2)
    g, phi, gain = r * np.cos(angle), r * np.sin(angle), np.sqrt(1 - r**2)
    re = g * state["re"] - phi * state["im"] + gain * w_1
    im = g * state["im"] + phi * state["re"] + gain * w_2
    output = affine(p["readout"], np.tanh(np.concatenate([re, im])))
    return ({"re": re, "im": im} if linear else {"re": np.tanh(re), "im": np.tanh(im)}), output


def linear_rtu_by_hand(p, state, x):
    return rtu_by_hand(p, state, x, linear=True)


def elstm_by_hand(p, c, x):
    (f_x, z_x), (w_f, w_z), (b_f, b_z) = (np.split(part, 2) for part in (p["input"][x], p["recurrent"], p["bias"]))
    f, z = structured.sigmoid(f_x + w_f * c + b_f), np.tanh(z_x + w_z * c + b_z)
    c = f * c + (1 - f) * z
    return c, affine(p["readout"], structured.sigmoid(p["gate"]["input"][x] + affine(p["gate"], c)) * c)


def mingru_by_hand(p, h, x):
    z, c = np.split(p["input"][x] + p["bias"], 2)
    h = structured.sigmoid(z) * c + (1 - structured.sigmoid(z)) * h
    return h, affine(p["readout"], h)


def diagonal_gru_by_hand(p, h, x):
    """The GRU of the paper, with diagonal matrices written out."""
    (e_r, e_z, e_c), (b_r, b_z, b_c) = np.split(p["input"][x], 3), np.split(p["bias"], 3)
    u_r, u_z, u_c = (np.diag(u) for u in np.split(p["recurrent"], 3))
    r, z = structured.sigmoid(e_r + u_r @ h + b_r), structured.sigmoid(e_z + u_z @ h + b_z)
    h = z * np.tanh(e_c + u_c @ (r * h) + b_c) + (1 - z) * h
    return h, affine(p["readout"], h)


def selective_ssm_by_hand(p, h, x):
    delta, drive = np.split(p["input"][x], 2)
    keep = np.exp(-np.log1p(np.exp(delta + p["bias"])) * np.exp(p["nu"]))
    h = keep * h + (1 - keep) / np.exp(p["nu"]) * drive
    gate = p["output_gate"]["input"][x] + p["output_gate"]["bias"]
    return h, affine(p["readout"], gate * h)


BY_HAND = {
    "lru": lru_by_hand,
    "rtu": rtu_by_hand,
    "linear_rtu": linear_rtu_by_hand,
    "elstm": elstm_by_hand,
    "mingru": mingru_by_hand,
    "diagonal_gru": diagonal_gru_by_hand,
    "selective_ssm": selective_ssm_by_hand,
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", structured.ELEMENTWISE)
def test_formulas(name):
    model = structured.of_cell(name, 5)
    state, (params, expected_state) = model.state, jax.tree.map(np.asarray, (model.params, model.state))
    step = jax.jit(model.transition)
    for x in (0, 2, 1, 1):
        state, output = step(model.params, state, x)
        expected_state, expected = BY_HAND[name](params, expected_state, x)
        np.testing.assert_allclose(output, expected, rtol=1e-12)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected_state), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", structured.ELEMENTWISE)
def test_declarations_are_true(name):
    model = structured.from_cell(name, structured.ELEMENTWISE[name](3, 4, 3, symbols=False), symbols=False)
    assert structure_of(model.transition).elementwise
    check_structure(model.transition, model.params, model.state, model.xs[0])


def test_a_false_claim_of_elementwise_is_found():
    model = structured.of_cell("elman", 4)
    told = declare(model.transition, reads="own")
    with pytest.raises(AssertionError, match="not elementwise: state of one unit reaches state of another"):
        check_structure(told, model.params, model.state, model.xs[0])

    def across_leaves(params, state, x):
        return {"a": params * state["a"], "b": state["a"][::-1] + state["b"]}, x

    state = {"a": jnp.ones(2), "b": jnp.ones(2)}
    with pytest.raises(AssertionError, match=r"state\['a'\] of one unit reaches state\['b'\] of another"):
        check_structure(declare(across_leaves, reads="own"), jnp.ones(2), state, jnp.array(0))

    def turned(params, state, x):
        return params * state[::-1], x

    state = jnp.ones(3, jnp.complex64)
    check_structure(declare(lambda params, state, x: (params * state, x), reads="own"), jnp.ones(3), state, 0)
    with pytest.raises(AssertionError, match="not elementwise"):
        check_structure(declare(turned, reads="own"), jnp.ones(3), state, 0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", ["elstm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mingru", "diagonal_gru"))]
)
def test_the_traces_of_the_1997_lstm_are_exact_where_the_memory_is_all_of_the_state(name):
    check_exact(lstm97, models=[structured.of_cell(name)])


def test_initial_time_constants():
    params = jax.jit(cells.lru(3, 301, 2).init)(jax.random.key(0))
    times, phases = np.exp(-params["nu"]), np.exp(params["theta"])
    np.testing.assert_allclose(times, np.geomspace(1, 1000, 301), rtol=1e-5)
    bound = np.minimum(np.pi, 6 * np.pi / times)
    assert np.all(phases > 0)
    assert np.all(phases <= bound * (1 + 1e-5))
    # uniform below the bound: the mean of 301 shares is within five standard errors of a half
    assert np.mean(phases / bound) == pytest.approx(0.5, abs=5 * 12**-0.5 * 301**-0.5)
    other = jax.jit(cells.rtu(3, 4, 2, times=(2.0, 16.0)).init)(jax.random.key(0))
    np.testing.assert_allclose(np.exp(-other["nu"]), [2, 4, 8, 16], rtol=1e-5)


def test_initial_ring():
    r_min, r_max, max_phase = RING
    params = jax.jit(cells.lru(3, 1000, 2, ring=RING).init)(jax.random.key(0))
    radius, phases = np.exp(-np.exp(params["nu"])), np.exp(params["theta"])
    # uniform over an area: the share inside a radius grows with its square
    share = (radius**2 - r_min**2) / (r_max**2 - r_min**2)
    for uniform in (share, phases / max_phase):
        np.testing.assert_allclose(np.sort(uniform), (np.arange(1000) + 0.5) / 1000, atol=0.07)  # Kolmogorov–Smirnov
    whole_disc = jax.jit(cells.lru(3, 1000, 2, ring=(0.0, 1.0, 6.28)).init)(jax.random.key(0))
    assert all(np.all(np.isfinite(whole_disc[name])) for name in ("nu", "theta"))


def test_a_wrong_spectrum_is_rejected():
    with pytest.raises(ValueError, match="lru: times must be two numbers of steps above 0, the shorter first"):
        cells.lru(3, 4, 2, times=(10.0, 1.0))
    with pytest.raises(ValueError, match="rtu: ring is .*0 ≤ r_min"):
        cells.rtu(3, 4, 2, ring=(0.5, 1.5, 3.0))


def test_a_slow_unit_has_no_smaller_output_than_a_fast_one():
    """Because of γ, all units respond to white noise about equally, with memories of one step to a hundred."""
    cell = cells.lru(1, 3, 1, times=(1.0, 100.0), symbols=False)
    params = cell.init(jax.random.key(0)) | {"input": jnp.ones((1, 6))}
    xs = np.random.default_rng(0).normal(size=(20000, 1)).astype(np.float32)

    def body(state, x):
        return cell.transition(params | {"readout": None}, state, x)

    _, outputs = jax.jit(lambda: jax.lax.scan(body, cell.initial_state(), xs))()
    np.testing.assert_allclose(np.mean(outputs[1000:, :3] ** 2 + outputs[1000:, 3:] ** 2, axis=0), 2, rtol=0.3)


@pytest.mark.parametrize("name", structured.ELEMENTWISE)
def test_inputs_and_dtypes(name):
    make, model = structured.ELEMENTWISE[name], structured.of_cell(name)
    both = jax.jit(lambda *xs: [model.transition(model.params, model.state, x)[1] for x in xs])
    by_symbol, by_vector = both(jnp.array(2), jnp.array([0.0, 0.0, 1.0]))
    np.testing.assert_allclose(by_symbol, by_vector, rtol=1e-5)
    half = make(3, 4, 2, dtype=jnp.bfloat16)
    params = jax.eval_shape(half.init, jax.random.key(0))
    state, output = jax.eval_shape(half.transition, params, half.initial_state(), 0)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state, output))} == {jnp.dtype(jnp.bfloat16)}
    vector = make(100, 4, 2, symbols=False).init(jax.random.key(0))
    assert np.abs(vector["input"]).max() <= 0.1


def without_influence_across_layers(model, lower_rows):
    """RTRL that forgets at every step how the weights of the first layer influence the layers above."""
    exact = rtrl(model.transition, model.loss)

    def step(params, state, carry, x, target):
        state, carry, estimate = exact.step(params, state, carry, x, target)
        cut = jax.tree.map(lambda rows: rows.at[lower_rows:].set(0), carry[0])
        return state, (cut, *carry[1:]), estimate

    return exact._replace(step=step)


def gradients_of(estimator, model):
    def body(loop, inputs):
        state, carry, estimate = estimator.step(model.params, *loop, *inputs)
        return (state, carry), estimate.grad

    start = model.state, estimator.init(model.params, model.state, jax.random.key(0))
    return jax.jit(lambda: jax.lax.scan(body, start, (model.xs, model.targets))[1])()


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_in_a_stack_traces_per_layer_are_exact_in_the_top_layer_only():
    """In the lower layers, traces drop the influence through the past states of the layer above."""
    hidden = 4
    cell = cells.stack(cells.lru(3, hidden, hidden), cells.lru(hidden, hidden, 3, symbols=False))
    model = structured.from_cell("stack", cell, length=30)
    wanted = gradients_of(rtrl(model.transition, model.loss), model)
    got = gradients_of(without_influence_across_layers(model, 2 * hidden), model)
    below, above = (relative_error(got[layer], wanted[layer]) for layer in (0, 1))
    assert above < 1e-10
    assert below > 1e-2


def relative_error(got, wanted):
    """Return the share of the gradient of the total loss that is lost."""
    got, wanted = (
        np.concatenate([np.sum(leaf, axis=0).ravel() for leaf in jax.tree.leaves(tree)]) for tree in (got, wanted)
    )
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
