"""Synthetic gradients: unbiased with a perfect predictor, and better than the truncation they bootstrap from."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from norewind import bptt, online, window
from norewind.core import losses
from norewind.estimators import dni
from norewind.estimators.dni import Predictor
from norewind.testing import Example, check_estimator, run_estimator
from norewind.testing import example as built_in

STEPS = 4


@pytest.mark.slow
def test_conformance():
    check_estimator(dni, models=[built_in("gru"), built_in("user_made")])


def transition(params, state, x):
    h = jnp.tanh(params["mix"] @ state["h"] + params["gain"] * x)
    seen = jnp.where(x > 0, 2 * state["seen"] + 1, 2 * state["seen"])
    return {"h": h, "seen": seen, "time": state["time"] + 1}, params["out"] @ h


PARAMS = {
    "mix": np.array([[0.9, -0.6], [0.5, 0.7]]),
    "gain": np.array([0.8, -0.5]),
    "out": np.array([1.0, -0.8]),
}
START = {"h": np.array([0.1, -0.2]), "seen": np.array(0, np.int32), "time": np.array(0, np.int32)}
TARGETS = np.array([0.3, -0.2, 0.5, 0.1])


def losses_from(params, h, seen, time, xs, targets):
    """Return the sum of the losses of future steps."""
    state, total = {"h": h, "seen": seen, "time": time}, 0.0
    for x, target in zip(xs, targets, strict=True):
        state, output = transition(params, state, x)
        total += losses.squared_error(output, target)
    return total


def expected_future_gradients(params):
    """Return table[time, inputs seen so far] = E[∂(future losses)/∂h], over all possible future inputs."""
    table = np.zeros((STEPS + 1, 2**STEPS, 2))
    future = jax.jit(jax.grad(losses_from, argnums=1))
    for time in range(1, STEPS):
        for seen in range(2**time):
            past = [1.0 if seen >> (time - 1 - i) & 1 else -1.0 for i in range(time)]
            state = START
            for x in past:
                state, _ = transition(params, state, x)
            rest = STEPS - time
            futures = np.array(np.meshgrid(*[[-1.0, 1.0]] * rest)).reshape(rest, -1).T
            grads = [future(params, state["h"], seen, time, xs, TARGETS[time:]) for xs in futures]
            table[time, seen] = np.mean(grads, axis=0)
    return jnp.asarray(table)


@pytest.mark.usefixtures("x64")
def test_with_a_perfect_predictor_the_expectation_is_the_true_gradient():
    """The mean over all 16 sequences of inputs ±1 is exact; a single sequence is not."""
    table = expected_future_gradients(PARAMS)
    perfect = Predictor(
        lambda state: (), lambda weights, state: {"h": table[state["time"], state["seen"]], "seen": None, "time": None}
    )
    blind = Predictor(lambda state: (), lambda weights, state: {"h": 0 * state["h"], "seen": None, "time": None})
    paths = jnp.array(np.array(np.meshgrid(*[[-1.0, 1.0]] * STEPS)).reshape(STEPS, -1).T)

    def total(predictor):
        estimator = dni(transition, losses.squared_error, predictor=predictor)

        def one(xs):
            example = Example("", PARAMS, START, transition, losses.squared_error, xs, TARGETS)
            grads = run_estimator(estimator, example, estimator.init(PARAMS, START, jax.random.key(0)))[2].grad
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), grads)

        return jax.jit(jax.vmap(one))(paths)

    exact = jax.jit(jax.vmap(lambda xs: jax.grad(losses_from)(PARAMS, *START.values(), xs, TARGETS)))(paths)

    def distance(got, reduce):
        return max(
            jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(reduce(a) - reduce(b)))), got, exact))
        )

    mean = lambda leaf: jnp.mean(leaf, axis=0)  # noqa: E731
    got = total(perfect)
    assert distance(got, mean) < 1e-10
    assert distance(got, lambda leaf: leaf) > 1e-3
    assert distance(total(blind), mean) > 1e-3


@pytest.mark.usefixtures("x64")
def test_the_predictor_learns_the_bootstrapped_gradient_at_the_old_state():
    """One step of gradient descent on ½‖sg(s) − ∂(ℓ + sg(s')·s')/∂s‖², with s' moving and sg(s') held."""
    estimator = dni(transition, losses.squared_error, optimizer=optax.sgd(1.0))
    weights = {"A": jnp.array([[0.3, -0.2], [0.1, 0.4]]), "b": jnp.array([0.2, -0.5])}
    carry = estimator.init(PARAMS, START, jax.random.key(0))._replace(weights=weights)
    _, after, _ = estimator.step(PARAMS, START, carry, 0.7, 0.3)

    def ahead(h):
        new, output = transition(PARAMS, START | {"h": h}, 0.7)
        held = jax.lax.stop_gradient(weights["A"] @ new["h"] + weights["b"])
        return losses.squared_error(output, 0.3) + held @ new["h"]

    h = START["h"]
    wrong = weights["A"] @ h + weights["b"] - jax.grad(ahead)(h)
    assert jnp.max(jnp.abs(after.weights["b"] - (weights["b"] - wrong))) < 1e-10
    assert jnp.max(jnp.abs(after.weights["A"] - (weights["A"] - jnp.outer(wrong, h)))) < 1e-10


SIGNS = np.array([1.0] * 2 + [-1.0] * 4)
CHAIN = 0.5 * np.eye(6) + 0.5 * np.eye(6, k=1)


def balance(params, state, x):
    """Small influence balancing: the short-term influence of θ on the first unit is +, the long-term one −."""
    state = CHAIN @ state + params["theta"] * SIGNS
    return state, state[0]


@pytest.mark.parametrize("length", [1, 2])
def test_it_beats_the_truncation_it_bootstraps_from(length):
    """The loss is smallest at θ = −1/4. Truncated BPTT moves away from it and explodes; DNI does not."""
    steps = 3000 // length

    def train(make):
        model = (balance, losses.squared_error)
        estimator = make(*(window(*model) if length > 1 else model))
        learner = online(estimator, optax.sgd(3e-3 / length), nonfinite="skip")
        run = learner.init({"theta": jnp.array(0.5)}, jnp.zeros(6), jax.random.key(0))
        shape = (steps, length) if length > 1 else (steps,)
        run, values, _ = learner.scan(run, jnp.zeros(shape), jnp.ones(shape))
        return float(run.params["theta"]), float(np.mean(np.asarray(values)[-100:]))

    theta, loss = train(lambda *model: dni(*model, optimizer=optax.adam(1e-2)))
    assert abs(theta + 0.25) < 1e-3
    assert loss < 1e-5
    assert train(bptt)[1] > 1.0


def test_a_reset_keeps_what_the_predictor_learned():
    learner = online(dni(balance, losses.squared_error), optax.sgd(1e-3))
    run = learner.init({"theta": jnp.array(0.5)}, jnp.zeros(6), jax.random.key(0))
    run, _, _ = learner.scan(run, jnp.zeros(5), jnp.ones(5))
    assert float(jnp.max(jnp.abs(run.carry.weights["b"]))) > 0
    assert np.array_equal(learner.reset(run).carry.weights["b"], run.carry.weights["b"])
