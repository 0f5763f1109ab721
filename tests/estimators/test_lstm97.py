"""The 1997 LSTM's gradient by traces equals autodiff with the recurrent h stopped and the cell kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from structured import plain_lstm

from norewind import declare
from norewind.core import ModelError, losses
from norewind.estimators import lstm97
from norewind.testing import Example, check_estimator, check_structure, exact_grads, run_estimator
from norewind.testing import example as built_in


def leaky_unit():
    """A user-defined model: a leaky memory with a learned leak per unit, and an output that is fed back."""

    def transition(params, state, x):
        leak = jax.nn.sigmoid(params["leak"] + state["seen"])
        memory = leak * state["memory"] + jnp.tanh(params["mix"] @ state["seen"] + params["gain"] * x)
        return {"memory": memory, "seen": jnp.sin(memory)}, params["out"] @ memory

    rows = np.arange(2)
    units = {"leak": rows, "mix": rows[:, None], "gain": rows, "out": None}
    told = declare(transition, units=lambda params: units, memory=lambda state: state["memory"])
    params = {
        "leak": jnp.array([0.3, -0.2]),
        "mix": jnp.array([[0.8, -0.5], [0.4, 0.6]]),
        "gain": jnp.array([0.7, 0.4]),
        "out": jnp.array([1.0, -0.8]),
    }
    state = {"memory": jnp.array([0.2, -0.1]), "seen": jnp.array([0.1, 0.4])}
    xs = jnp.sin(1.0 + jnp.arange(6))
    return Example("leaky_unit", params, state, told, losses.squared_error, xs, jnp.cos(xs))


def h_stopped(example, stopped):
    def transition(params, state, x):
        return example.transition(params, {**state, stopped: jax.lax.stop_gradient(state[stopped])}, x)

    return transition


def error(example, stopped):
    """Return the largest difference from autodiff with one leaf of the state stopped (or none)."""
    estimator = lstm97(example.transition, example.loss)
    carry = estimator.init(example.params, example.state, jax.random.key(0))
    got = jax.jit(lambda carry: run_estimator(estimator, example, carry)[2].grad)(carry)
    transition = h_stopped(example, stopped) if stopped else example.transition
    wanted = exact_grads(transition, example.loss, example.params, example.state, example.xs, example.targets)
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), got, wanted)))


@pytest.mark.slow
def test_conformance():
    check_estimator(lstm97, models=[plain_lstm(2, 4)])


@pytest.mark.usefixtures("x64")
def test_it_is_autodiff_with_h_stopped_and_the_cell_kept():
    example = plain_lstm()
    assert error(example, "h") < 1e-10
    assert error(example, "c") > 1e-3
    assert error(example, None) > 1e-3


@pytest.mark.usefixtures("x64")
def test_it_takes_a_model_of_the_users_own():
    example = leaky_unit()
    check_structure(example.transition, example.params, example.state, example.xs[0])
    assert error(example, "seen") < 1e-10
    assert error(example, None) > 1e-3


def test_it_rejects_models_without_the_structure():
    gru, lstm, rnn = (built_in(name) for name in ("gru", "lstm", "rnn"))
    with pytest.raises(ModelError, match="does not declare units and memory"):
        lstm97(gru.transition, gru.loss)
    with pytest.raises(ModelError, match="does not declare memory"):
        lstm97(rnn.transition, rnn.loss)
    estimator = lstm97(lstm.transition, lstm.loss)
    carry = estimator.init(lstm.params, lstm.state, jax.random.key(0))
    with pytest.raises(ModelError, match="lstm97: params\\['embedding'\\] reaches the state"):
        jax.eval_shape(estimator.step, lstm.params, lstm.state, carry, lstm.xs[0], lstm.targets[0])
