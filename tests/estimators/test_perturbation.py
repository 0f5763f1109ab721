"""Forward gradients and evolution strategies: unbiased over every draw, and what they drop otherwise."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alike import assert_same

from norewind import bptt, cells, declare, losses, window
from norewind.core import ModelError
from norewind.estimators import evolution, forward_gradient
from norewind.testing import Example, check_estimator, exact_grads, example, run_estimator

STEPS = 3


def tiny():
    """Three parameters, a nonlinear state of two entries in a nested tree, and a counter."""

    def transition(params, state, x):
        h = jnp.tanh(params["a"] * state["h"][::-1] + params["b"] * x)
        return {"h": h, "ticks": state["ticks"] + 1}, params["c"] * jnp.sum(h**2)

    params = {"a": jnp.array(0.8), "b": jnp.array(-0.6), "c": jnp.array(1.3)}
    state = {"h": jnp.array([0.3, -0.4]), "ticks": jnp.array(0, jnp.int32)}
    xs = np.sin(1.0 + np.arange(STEPS))
    return Example("tiny", params, state, transition, losses.squared_error, xs, np.cos(xs))


def linear():
    """A state that is linear in its parameters, so that finite differences are derivatives."""

    def transition(params, state, x):
        state = 0.7 * state + params * x
        return state, jnp.sum(state)

    xs = np.sin(1.0 + np.arange(2.0 * STEPS)).reshape(STEPS, 2)
    loss = lambda output, target: 0.5 * (output - target) ** 2  # noqa: E731
    return Example("linear", jnp.array([0.4, -0.9]), jnp.array([0.2, 0.5]), transition, loss, xs, np.cos(xs[:, 0]))


def all_signs(count):
    return jnp.array(list(product([1.0, -1.0], repeat=count)))


def given(draws, like):
    """A noise that reads the given numbers, one after another; the key is replaced by them and a place."""
    leaves, structure = jax.tree.flatten(like)
    parts, start = [], 0
    for leaf in leaves:
        parts.append(jax.lax.dynamic_slice(draws, (start,), (leaf.size,)).reshape(leaf.shape))
        start += leaf.size
    return jax.tree.unflatten(structure, parts), jnp.roll(draws, -start)


def mean_gradient(estimator, model, draws):
    carry = estimator.init(model.params, model.state, jax.random.key(0))

    def one(drawn):
        return run_estimator(estimator, model, carry._replace(key=drawn))[2].grad

    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), jax.jit(jax.vmap(one))(draws))


def exact(model):
    return exact_grads(*model[3:5], model.params, model.state, model.xs, model.targets)


@pytest.mark.usefixtures("x64")
def test_the_mean_forward_gradient_over_every_direction_is_exact():
    model = tiny()
    estimator = forward_gradient(model.transition, model.loss, noise=given)
    assert_same(mean_gradient(estimator, model, all_signs(3)), exact(model), absolute=1e-12)


@pytest.mark.usefixtures("x64")
def test_a_new_direction_forgets_how_the_old_one_changed_the_state():
    """With a horizon of one step, the mean is the gradient of one-step BPTT."""
    model = tiny()
    estimator = forward_gradient(model.transition, model.loss, horizon=1, noise=given)
    carry = bptt(model.transition, model.loss).init(model.params, model.state, jax.random.key(0))
    wanted = run_estimator(bptt(model.transition, model.loss), model, carry)[2].grad
    got = mean_gradient(estimator, model, all_signs(3 * STEPS))
    assert_same(got, wanted, absolute=1e-12)
    assert not np.allclose(got["a"], exact(model)["a"])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("pairs", [1, 2])
def test_evolution_is_unbiased_where_differences_are_derivatives(pairs):
    """A quadratic loss of a linear state: over every draw of signs, the mean is exact for any σ."""
    model = linear()
    estimator = evolution(model.transition, model.loss, pairs=pairs, sigma=0.7, noise=given)
    draws = all_signs(2 * pairs * STEPS) if pairs == 1 else all_signs(2 * pairs * (STEPS - 1))
    short = model if pairs == 1 else model._replace(xs=model.xs[:-1], targets=model.targets[:-1])
    assert_same(mean_gradient(estimator, short, draws), exact(short), absolute=1e-12)


@pytest.mark.usefixtures("x64")
def test_evolution_tends_to_the_gradient_like_sigma_squared():
    model = tiny()

    def error(sigma):
        estimator = evolution(model.transition, model.loss, sigma=sigma, noise=given)
        got = mean_gradient(estimator, model, all_signs(3 * STEPS))
        wanted = exact(model)
        return max(float(jnp.max(jnp.abs(got[name] - wanted[name]))) for name in got)

    coarse, fine = error(0.02), error(0.01)
    assert fine < 1e-3
    assert coarse / fine == pytest.approx(4, rel=0.02)


@pytest.mark.usefixtures("x64")
def test_an_ordinary_evolution_strategy_drops_the_past():
    model = linear()
    estimator = evolution(model.transition, model.loss, sigma=0.7, persistent=False, noise=given)
    carry = bptt(model.transition, model.loss).init(model.params, model.state, jax.random.key(0))
    wanted = run_estimator(bptt(model.transition, model.loss), model, carry)[2].grad
    assert_same(mean_gradient(estimator, model, all_signs(2 * STEPS)), wanted, absolute=1e-12)


def test_evolution_needs_no_derivative():
    def transition(params, state, x):
        state = jnp.sign(state + params * x)
        return state, state

    estimator = evolution(transition, losses.squared_error, pairs=32, sigma=1.0)
    carry = estimator.init(jnp.array(0.3), jnp.array(0.5), jax.random.key(0))
    _, _, estimate = jax.jit(estimator.step)(jnp.array(0.3), jnp.array(0.5), carry, 1.0, 1.0)
    assert float(estimate.grad) != 0


@pytest.mark.parametrize("make", [pytest.param(make, marks=pytest.mark.slow) for make in (forward_gradient, evolution)])
def test_conformance(make):
    check_estimator(make, models=[example("user_made")])


def test_a_window_is_one_step():
    cell = cells.rnn(3, 2, 3)
    transition, loss = window(cell.transition, losses.cross_entropy)
    estimator = evolution(transition, loss, pairs=2)
    params, state = jax.eval_shape(cell.init, jax.random.key(0)), cell.initial_state()
    carry = jax.eval_shape(estimator.init, params, state, jax.random.key(0))
    *_, estimate = jax.eval_shape(estimator.step, params, state, carry, jnp.array([0, 1]), jnp.array([1, 2]))
    assert estimate.output.shape == (2, 3)


def test_complex_parameters_and_bad_settings_are_rejected():
    turning = declare(lambda params, state, x: (params * state, jnp.real(state)))
    for make in (forward_gradient, evolution):
        with pytest.raises(ModelError, match=f"{make.__name__}: params is complex"):
            make(turning, losses.squared_error).init(jnp.array(1j), jnp.array(1j), jax.random.key(0))
    with pytest.raises(ModelError, match="horizon"):
        forward_gradient(turning, losses.squared_error, horizon=0)
    with pytest.raises(ValueError, match="sigma must be above 0"):
        evolution(turning, losses.squared_error, sigma=0)
