"""UORO is Algorithm 1, its variance falls with the rank, and every rank evaluates the model once."""

import re

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest

from norewind import average, parallel, uoro, window
from norewind.core import random_signs
from norewind.core.losses import squared_error
from norewind.testing import exact_grads, run_estimator


def algorithm_1(params, state, s_tilde, theta_tilde, x, target, nu):
    """One step of Algorithm 1 for s' = W tanh(s) + x, o = s', ℓ = ½|o − target|², by hand, in numpy."""
    w, h = params, np.tanh(state)
    new_state = w @ h + x
    output_error = new_state - target
    jacobian = w * (1 - h**2)
    delta_s, delta_theta = output_error @ jacobian, np.outer(output_error, h)
    grad = (delta_s @ s_tilde) * theta_tilde + delta_theta
    pushed = jacobian @ s_tilde
    delta_theta_g = np.outer(nu, h)
    epsilon = 1e-7
    rho0 = np.sqrt(np.linalg.norm(theta_tilde) / (np.linalg.norm(pushed) + epsilon)) + epsilon
    rho1 = np.sqrt(np.linalg.norm(delta_theta_g) / (np.linalg.norm(nu) + epsilon)) + epsilon
    return new_state, grad, rho0 * pushed + rho1 * nu, theta_tilde / rho0 + delta_theta_g / rho1


def linear_readout(w, s, x):
    s = w @ jnp.tanh(s) + x
    return s, s


@pytest.mark.usefixtures("x64")
def test_every_number_is_that_of_algorithm_1():
    rng = np.random.default_rng(0)
    w, state = rng.normal(size=(3, 3)), rng.normal(size=3)
    estimator = uoro(linear_readout, squared_error)
    carry = estimator.init(jnp.asarray(w), jnp.asarray(state), jax.random.key(0))
    s_tilde, theta_tilde = np.zeros(3), np.zeros((3, 3))
    ours, step = jnp.asarray(state), jax.jit(estimator.step)
    for _ in range(5):
        x, target = rng.normal(size=3), rng.normal(size=3)
        nu = np.asarray(random_signs(carry.key, jnp.zeros(3))[0])
        state, grad, s_tilde, theta_tilde = algorithm_1(w, state, s_tilde, theta_tilde, x, target, nu)
        ours, carry, estimate = step(jnp.asarray(w), ours, carry, x, target)
        np.testing.assert_allclose(ours, state, rtol=1e-12)
        np.testing.assert_allclose(estimate.grad, grad, rtol=1e-11)
        np.testing.assert_allclose(carry.s_tilde, s_tilde, rtol=1e-11)
        np.testing.assert_allclose(carry.theta_tilde, theta_tilde, rtol=1e-11)


@pytest.mark.usefixtures("x64")
def test_the_released_normalisers_have_their_own_epsilon():
    x, w, state = jnp.ones(2), jnp.eye(2), jnp.array([0.5, -0.5])
    estimator = uoro(linear_readout, squared_error, rho="released", noise=lambda key, like: (jnp.ones(2), key))
    carry = estimator.init(w, state, jax.random.key(0))
    carry = jax.jit(estimator.step)(w, state, carry, x, x)[1]
    # s~ = 0 at the start, so s~ becomes ρ1 ν, with ‖νᵀI‖ = ‖ν‖ ‖tanh(s)‖
    expected = np.sqrt((np.sqrt(2) * np.linalg.norm(np.tanh(state)) + 1e-5) / (np.sqrt(2) + 1e-5))
    np.testing.assert_allclose(carry.s_tilde, expected, rtol=1e-12)


def test_unknown_normalisers_are_rejected():
    with pytest.raises(ValueError, match="'paper', 'released'"):
        uoro(linear_readout, squared_error, rho="authors")


def test_signs_are_balanced_and_independent():
    """Means and pairwise correlations of 4096 draws of 40 signs, each within 5 standard errors of zero."""
    keys = jax.random.split(jax.random.key(0), 4096)
    like = {"a": jnp.zeros((4, 5)), "b": jnp.zeros(20)}
    signs, following = jax.jit(jax.vmap(lambda key: random_signs(key, like)))(keys)
    flat = np.concatenate([np.reshape(leaf, (4096, -1)) for leaf in jax.tree.leaves(signs)], axis=1)
    assert set(np.unique(flat)) == {-1.0, 1.0}
    later = jax.jit(jax.vmap(lambda key: random_signs(key, like)[0]))(following)
    both = np.concatenate([flat, np.reshape(later["a"], (4096, -1))], axis=1)
    correlation = both.T @ both / 4096 - np.eye(both.shape[1])
    assert np.abs(both.mean(axis=0)).max() < 5 / 64
    assert np.abs(correlation).max() < 5 / 64


def test_signs_reveal_nothing_of_the_next_key():
    """Signs and key come from one draw, no word of which may be used twice."""
    signs, following = random_signs(jax.random.key(0), jnp.zeros(64))
    words = np.packbits(np.asarray(signs) < 0, bitorder="little").view(np.uint32)
    assert not set(words.tolist()) & set(np.asarray(jax.random.key_data(following)).tolist())


def gradient_samples(make, example, number, seed):
    """Return the flattened gradients of the last step for many keys."""
    estimator = make(example.transition, example.loss)

    def last_gradient(key):
        carry = estimator.init(example.params, example.state, key)
        grads = run_estimator(estimator, example, carry)[2].grad
        return jnp.concatenate([leaf[-1].reshape(-1) for leaf in jax.tree.leaves(grads)])

    return np.asarray(jax.jit(jax.vmap(last_gradient))(jax.random.split(jax.random.key(seed), number)))


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_averaging_r_carries_divides_the_variance_by_r():
    """Over 4000 keys each: var(r)·r / var(1) is 1 within 4 standard errors, for r = 2 and 8."""
    example = models.checkpointed()

    def variance(rank, seed):
        samples = gradient_samples(lambda *model: average(uoro(*model), rank), example, 4000, seed)
        squares = ((samples - samples.mean(axis=0)) ** 2).sum(axis=1)
        return squares.mean(), squares.std() / np.sqrt(len(squares))

    single, single_error = variance(1, 0)
    assert single > 0
    for rank in (2, 8):
        value, error = variance(rank, rank)
        ratio = value * rank / single
        standard_error = ratio * np.hypot(error / value, single_error / single)
        assert abs(ratio - 1) < 4 * standard_error, (rank, ratio, standard_error)
        assert standard_error < 0.1  # sharp enough to tell r from r − 1


@pytest.mark.usefixtures("x64")
def test_the_mean_over_random_keys_goes_to_the_exact_gradient():
    """With real noise, not enumerated: within 5 standard errors in every coordinate."""
    example = models.checkpointed()
    samples = gradient_samples(uoro, example, 4000, 0)
    exact = exact_grads(example.transition, example.loss, example.params, example.state, example.xs, example.targets)
    exact = np.concatenate([np.reshape(leaf[-1], -1) for leaf in jax.tree.leaves(exact)])
    error = samples.std(axis=0) / np.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0) - exact) <= 5 * error + 1e-12)


def program(estimator, streams=None):
    state, x = jnp.zeros(5), jnp.zeros(5)
    if streams:
        state, x = jnp.zeros((streams, 5)), jnp.zeros((streams, 5))
    w = jnp.eye(5)
    carry = estimator.init(w, state, jax.random.key(0))
    return jax.jit(estimator.step).lower(w, state, carry, x, x).compile().as_text()


@pytest.mark.parametrize("windowed", [False, True])
def test_the_model_is_evaluated_once_whatever_the_rank(windowed):
    """Count the model's tanh in the compiled program: as many, and as large, for rank 7 as for rank 1."""
    calls = []

    def counted(w, s, x):
        calls.append(None)
        return linear_readout(w, s, x)

    model = (counted, squared_error)
    if windowed:
        inner, loss = window(*model)
        model = (lambda w, s, x: inner(w, s, jnp.stack([x, x])), lambda o, t: loss(o, jnp.stack([t, t])))
    found, traced = {}, {}
    for rank in (1, 7):
        calls.clear()
        text = program(average(uoro(*model), rank))
        traced[rank] = len(calls)
        found[rank] = sorted(re.findall(r"= (\S+?)(?:\{\S*)? tanh\(", text))
    assert found[1], "the program shows no tanh at all: this test proves nothing"
    assert found[7] == found[1]
    assert all("[5]" in shape or "[2,5]" in shape for shape in found[7])
    assert traced[7] == traced[1] == 1


def test_the_model_is_evaluated_once_for_all_streams():
    text = program(parallel(uoro(linear_readout, squared_error), 3), streams=3)
    assert sorted(re.findall(r"= (\S+?)(?:\{\S*)? tanh\(", text)) == ["f32[3,5]"]
