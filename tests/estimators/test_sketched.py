"""SK-RTRL is exact at full rank, the best truncation below it, and never further from the influence than it says."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured
from hypothesis import given, settings
from jax.flatten_util import ravel_pytree
from quick import slow_but

from norewind import cells, losses, parallel, rtrl, uoro, window
from norewind.core import ModelError
from norewind.core.trees import real_leaves
from norewind.estimators import sketched
from norewind.estimators.sketched import _eigenvectors, error_bound, spectral_bound
from norewind.testing import check_exact
from norewind.testing.oracles import run_estimator

# A model to draw weights for, with two entries per unit.
SIZE, STEPS = 3, 12
CELL = cells.lstm(2, SIZE, 2, embedding=False, symbols=False)


def dense(estimator, example, carry):
    """The approximation of the influence as a matrix: state × parameters."""
    flat, unravel = ravel_pytree(real_leaves(example.state))

    def row(unit):
        grad = estimator.influence.product(example.params, unravel(unit), carry)
        return ravel_pytree(jax.tree.map(jnp.broadcast_to, grad, jax.tree.map(jnp.shape, example.params)))[0]

    return jax.vmap(row)(jnp.eye(flat.size, dtype=flat.dtype))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", slow_but(["rnn", "elman", "lstm", "gru_after", "reservoir", "rtu"], "elman"))
def test_it_is_exact_at_full_rank(name):
    check_exact(lambda *model: sketched(*model, terms=6), models=[structured.of_cell(name, 3)])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_it_is_exact_at_full_rank_for_larger_models_and_windows():
    check_exact(lambda *model: sketched(*model, terms=9), models=[structured.of_cell("elman", 9, 12)])
    check_exact(lambda *m: sketched(*window(*m), terms=4), window=2, models=[structured.of_cell("lstm", 2)])


@pytest.mark.usefixtures("x64")
def test_it_is_not_exact_below():
    with pytest.raises(AssertionError, match="not exact"):
        check_exact(lambda *model: sketched(*model, terms=1), models=[structured.of_cell("elman", 3)])


def errors_and_bounds(terms):
    """For a stream: ‖∂s/∂θ − S − L Rᵀ‖, its bound, and ‖∂s/∂θ‖ after every step."""
    model = CELL.transition, losses.squared_error
    ours, exact = sketched(*model, terms=terms), rtrl(*model)

    @jax.jit
    def measure(params, state, xs, targets):
        example = structured.from_cell("drawn", CELL, STEPS, symbols=False)._replace(params=params, state=state)

        def body(loop, sample):
            state, carry, influence = loop
            _, influence, _ = exact.step(params, state, influence, *sample)
            state, carry, _ = ours.step(params, state, carry, *sample)
            wanted = dense(exact, example, influence)
            error = jnp.linalg.norm(wanted - dense(ours, example, carry))
            return (state, carry, influence), (error, error_bound(carry), jnp.linalg.norm(wanted))

        start = (estimator.init(params, state, jax.random.key(0)) for estimator in (ours, exact))
        return jax.lax.scan(body, (state, *start), (xs, targets))[1]

    return measure


@pytest.fixture(scope="module")
def measures():
    with jax.enable_x64(True):
        yield {terms: errors_and_bounds(terms) for terms in (1, 4)}


@pytest.mark.usefixtures("x64")
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.0, 0.1, 0.7, 1.5, 4.0]),
    drive=st.sampled_from([0.0, 0.5, 30.0]),
    silent=st.floats(0, 1),
    terms=st.sampled_from([1, 4]),
)
def test_the_bound_holds_on_every_stream(measures, seed, scale, drive, silent, terms):
    """Weights and inputs of all sizes, with some or all of them zero."""
    rng = np.random.default_rng(seed)

    def draw(shape, size):
        return size * rng.normal(size=shape) * (rng.uniform(size=shape) >= silent)

    shapes = jax.eval_shape(CELL.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: draw(leaf.shape, scale), shapes)
    state = jax.tree.map(lambda leaf: draw(leaf.shape, scale), jax.eval_shape(CELL.initial_state))
    errors, bounds, size = map(np.asarray, measures[terms](params, state, draw((STEPS, 2), drive), draw((STEPS, 2), 1)))
    assert np.all(np.isfinite(bounds))
    assert np.all(errors <= bounds), (errors / bounds).max()
    if scale == 0.7 and silent < 0.1 and drive == 0.5 and terms == 4:
        assert bounds[-1] < size[-1], "the bound says nothing"


@pytest.mark.usefixtures("x64")
def test_every_step_is_the_best_truncation():
    """Against a mask and a singular value decomposition, on full matrices."""
    example = structured.of_cell("lstm", 3, 6)
    ours = sketched(*example[3:5], terms=2)
    (theta, unravel), (leaves, unravel_leaves) = map(ravel_pytree, (example.params, example.state))

    def step(theta, leaves, x):
        return ravel_pytree(example.transition(unravel(theta), unravel_leaves(leaves), x)[0])[0]

    derivatives = jax.jit(jax.jacrev(step, (0, 1)))
    mask = (np.arange(leaves.size) % 3)[:, None] == structured.fed_units(example)
    traces = rest = np.zeros(mask.shape)
    state, carry = example.state, ours.init(example.params, example.state, jax.random.key(0))
    for sample in zip(example.xs, example.targets, strict=True):
        immediate, jacobian = map(np.asarray, derivatives(theta, ravel_pytree(state)[0], sample[0]))
        whole = jacobian @ (traces + rest) + immediate
        traces = np.where(mask, jacobian @ traces + immediate, 0)
        left, values, right = np.linalg.svd(whole - traces, full_matrices=False)
        rest = (left[:, :2] * values[:2]) @ right[:2]
        state, carry, _ = jax.jit(ours.step)(example.params, state, carry, *sample)
        np.testing.assert_allclose(dense(ours, example, carry), traces + rest, atol=1e-9)
    assert np.linalg.norm(rest) > 0.01 * np.linalg.norm(traces)


@pytest.mark.usefixtures("x64")
def test_the_norm_is_bounded_closely():
    rng = np.random.default_rng(0)
    for matrix in (rng.normal(size=(5, 5)), 1e-160 * np.eye(4), np.zeros((3, 3)), 1e150 * rng.normal(size=(40, 40))):
        norm = np.linalg.norm(matrix, 2)
        assert norm <= spectral_bound(jnp.asarray(matrix)) <= 1.1 * norm


@pytest.mark.usefixtures("x64")
def test_the_kept_directions_have_the_derivative_of_the_best_truncation():
    """Equal values among those kept do no harm, nor does a matrix of zeros, as after the zero carry."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    matrix = turn @ np.diag([0.0, 1, 3, 3]) @ turn.T
    direction = np.random.default_rng(1).normal(size=(4, 4))

    def truncation(size):
        change = size * (direction + direction.T)
        vectors = _eigenvectors(matrix + change)[1][:, 2:]
        return vectors @ vectors.T @ (matrix + change)

    slope = jax.jvp(truncation, (0.0,), (1.0,))[1]
    np.testing.assert_allclose(slope, (truncation(1e-6) - truncation(-1e-6)) / 2e-6, atol=1e-8)
    nothing = jax.jvp(_eigenvectors, (np.zeros((4, 4)),), (np.zeros((4, 4)),))[1]
    assert all(np.all(np.asarray(leaf) == 0) for leaf in nothing)


def test_it_reports_its_bound():
    example = structured.of_cell("elman")
    one = sketched(*example[3:5], terms=1)
    carry = one.init(example.params, example.state, jax.random.key(0))
    before = one.report(carry)["error_bound"]
    carry = run_estimator(one, example, carry)[1]
    assert before < 1e-30 < one.report(carry)["error_bound"] == error_bound(carry)
    state = jnp.stack([example.state] * 2)
    several = parallel(one, 2)
    carry = several.init(example.params, state, jax.random.key(0))
    assert several.report(carry)["error_bound"].shape == ()
    assert uoro(*example[3:5]).report is None
    huge = carry._replace(log_error=jnp.full(2, 1e30))
    assert np.isfinite(several.report(huge)["error_bound"])


def test_it_rejects_models_in_which_weights_feed_several_units():
    with pytest.raises(ModelError, match="sketched needs to know which unit each weight feeds"):
        sketched(*structured.of_cell("gru")[3:5])
    model = structured.of_cell("embedding")
    estimator = sketched(*model[3:5])
    carry = estimator.init(model.params, model.state, jax.random.key(0))
    with pytest.raises(ModelError, match=r"sketched: params\['embedding'\] reaches the state"):
        jax.eval_shape(estimator.step, model.params, model.state, carry, model.xs[0], model.targets[0])
    with pytest.raises(ModelError, match="terms"):
        sketched(*structured.of_cell("elman")[3:5], terms=0)
