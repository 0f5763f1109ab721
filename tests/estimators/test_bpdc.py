"""Backpropagation-decorrelation is Steil's rule, and rejects models without output units."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reservoirs import feedback
from structured import grads_of

from norewind import cells, online
from norewind.core import ModelError, losses
from norewind.estimators import bpdc
from norewind.testing import check_estimator
from norewind.testing import example as built_in


@pytest.mark.slow
def test_bpdc_conformance():
    check_estimator(bpdc, models=[feedback()])


def steils_rule(example, leak, epsilon):
    """Return the paper's rule in NumPy for all steps: −Δw for η = 1."""
    recurrent, feed, bias = (np.asarray(example.params[name]) for name in ("recurrent", "input", "bias"))
    state, before, changes = np.asarray(example.state), np.zeros(2), []
    for x, target in zip(np.asarray(example.xs), np.asarray(example.targets), strict=True):
        active = np.tanh(state)
        inputs = np.concatenate([active, x, [1.0]])
        new = (1 - leak) * state + leak * (recurrent @ active + x @ feed + bias)
        error = new[-2:] - target
        mixing = (1 - leak) * np.eye(2) + leak * recurrent[-2:, -2:] * (1 - active[-2:] ** 2)
        gamma = mixing @ before - error
        changes.append(-np.outer(gamma, inputs) / leak / (inputs @ inputs + epsilon / leak**2))
        state, before = new, error
    return np.stack(changes)


@pytest.mark.usefixtures("x64")
def test_bpdc_is_steils_rule():
    example = feedback()
    grads = grads_of(bpdc(example.transition, example.loss, epsilon=2e-3), example)
    got = np.concatenate(
        [grads["recurrent"][:, -2:], np.swapaxes(grads["input"], 1, 2)[:, -2:], grads["bias"][:, -2:, None]], axis=2
    )
    assert np.max(np.abs(got - steils_rule(example, 0.7, 2e-3))) < 1e-10
    assert not np.any(grads["recurrent"][:, :-2])
    assert np.max(np.abs(got - steils_rule(example, 0.7, 2e-2))) > 1e-4


@pytest.mark.usefixtures("x64")
def test_bpdc_is_the_smallest_change_that_makes_up_for_the_errors():
    """Derive the rule by autodiff: with the network as constraints g = 0, Δw = −(∂g/∂w)⁺ (∂g/∂s) e."""
    example = feedback()
    estimator = bpdc(example.transition, example.loss, epsilon=0.0)
    carry = jnp.array([0.5, -0.8])
    x, target = example.xs[0], example.targets[0]
    new, _, estimate = estimator.step(example.params, example.state, carry, x, target)
    flat, unravel = jax.flatten_util.ravel_pytree(example.params)

    def constraints(flat, old, new):
        return (example.transition(unravel(flat), old, x)[0] - new)[-2:]

    by_weights, by_old, by_new = jax.jacrev(constraints, argnums=(0, 1, 2))(flat, example.state, new)
    error = new[-2:] - target
    change = jnp.linalg.pinv(by_weights) @ (by_old[:, -2:] @ carry + by_new[:, -2:] @ error)
    assert jnp.max(jnp.abs(jax.flatten_util.ravel_pytree(estimate.grad)[0] + change)) < 1e-10


def test_bpdc_learns_to_predict_a_chaotic_series():
    """On Mackey–Glass one step ahead, it is better than repeating the last value."""
    length, delay, fine = 6000, 17, 10
    values = np.full((length + delay + 1) * fine, 1.2)
    for t in range(delay * fine, len(values) - 1):
        late = values[t - delay * fine]
        values[t + 1] = values[t] + (0.2 * late / (1 + late**10) - 0.1 * values[t]) / fine
    series = (values[delay * fine :: fine] - 0.9).astype(np.float32)[:, None]
    cell = cells.feedback_reservoir(1, 50, 1, spectral_radius=0.8, input_scaling=0.3)
    learner = online(bpdc(cell.transition, losses.squared_error), optax.sgd(0.3))
    run = learner.init(jax.jit(cell.init)(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    _, values, _ = learner.scan(run, series[:-1], series[1:])
    persistence = 0.5 * np.mean((series[1:] - series[:-1]) ** 2)
    assert np.mean(np.asarray(values)[-2000:]) < 0.5 * persistence


def test_bpdc_rejects_models_without_output_units():
    gru = built_in("gru")
    with pytest.raises(ModelError, match="does not declare units and output_units"):
        bpdc(gru.transition, gru.loss)
