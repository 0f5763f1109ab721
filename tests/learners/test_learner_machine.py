"""Calls of a learner in any order equal a plain loop (a Hypothesis state machine)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import norewind

RATE, LENGTH = 0.1, 4
INITIAL = np.array([0.3, -0.2])
START = {"w": np.array([[0.5, -0.4], [0.2, 0.1]]), "u": np.array([1.0, -1.0])}
numbers = st.integers(-4, 4).map(lambda number: number / 4)
chunks = st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=LENGTH, max_size=LENGTH)


def transition(params, state, x):
    new = jnp.tanh(params["w"] @ state + params["u"] * x)
    return new, new.sum()


@pytest.fixture(scope="module")
def learner():
    with jax.enable_x64(True):
        yield norewind.online(norewind.rtrl(transition, norewind.losses.squared_error), optax.sgd(RATE))


class Plain:
    """A reference in NumPy: RTRL for two units, gradient descent, and a queue of pending inputs."""

    def __init__(self):
        self.w, self.u = START["w"].copy(), START["u"].copy()
        self.reset()
        self.samples, self.waiting = 0, []

    def reset(self):
        self.state, self.latest = INITIAL.copy(), INITIAL.copy()
        self.influence = np.zeros((2, 6))  # of the four entries of w and the two of u on the state

    def moved(self, state, x):
        return np.tanh(self.w @ state + self.u * x)

    def learn(self, x, target):
        new = self.moved(self.state, x)
        direct = np.zeros((2, 6))
        for unit in range(2):
            direct[unit, 2 * unit : 2 * unit + 2], direct[unit, 4 + unit] = self.state, x
        self.influence = (1 - new**2)[:, None] * (self.w @ self.influence + direct)
        error = new.sum() - target
        grad = error * self.influence.sum(axis=0)
        self.w, self.u = self.w - RATE * grad[:4].reshape(2, 2), self.u - RATE * grad[4:]
        self.state, self.samples = new, self.samples + 1
        return error**2 / 2

    def predict(self, x):
        before = self.latest if self.waiting else self.state
        self.latest = self.moved(before, x)
        self.waiting.append(x)
        return self.latest.sum()


def machine_of(learner):
    params, key = {name: jnp.array(array) for name, array in START.items()}, jax.random.key(0)

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.run, self.plain = learner.init(params, jnp.array(INITIAL), key), Plain()

        @rule(x=numbers)
        def predict(self, x):
            if len(self.plain.waiting) < 3:
                self.run, output = learner.predict(self.run, jnp.array(x))
                assert abs(float(output) - self.plain.predict(x)) < 1e-10

        @rule(y=numbers)
        def learn(self, y):
            if not self.plain.waiting:
                with pytest.raises(ValueError, match="no pending input"):
                    learner.learn(self.run, jnp.array(y))
                return
            self.run, estimate = learner.learn(self.run, jnp.array(y))
            assert abs(float(estimate.loss) - self.plain.learn(self.plain.waiting.pop(0), y)) < 1e-10

        @rule(x=numbers, y=numbers)
        def step(self, x, y):
            if self.plain.waiting:
                with pytest.raises(ValueError, match="still waiting for"):
                    learner.step(self.run, jnp.array(x), jnp.array(y))
                return
            self.run, estimate = learner.step(self.run, jnp.array(x), jnp.array(y))
            assert abs(float(estimate.loss) - self.plain.learn(x, y)) < 1e-10

        @precondition(lambda self: not self.plain.waiting)
        @rule(
            pairs=chunks,
            count=st.integers(0, LENGTH),
        )
        def scan(self, pairs, count):
            xs, targets, resets = (np.array(part) for part in zip(*pairs, strict=True))
            self.run, losses, _ = learner.scan(self.run, jnp.array(xs), jnp.array(targets), resets, count=count)
            expected = np.zeros(LENGTH)
            for place in range(count):
                if resets[place]:
                    self.plain.reset()
                expected[place] = self.plain.learn(xs[place], targets[place])
            np.testing.assert_allclose(losses, expected, atol=1e-10)

        @precondition(lambda self: not self.plain.waiting)
        @rule(when=st.booleans())
        def reset(self, when):
            self.run = learner.reset(self.run, when)
            if when:
                self.plain.reset()

        @invariant()
        def same(self):
            np.testing.assert_allclose(self.run.params["w"], self.plain.w, atol=1e-10)
            np.testing.assert_allclose(self.run.params["u"], self.plain.u, atol=1e-10)
            np.testing.assert_allclose(self.run.state, self.plain.state, atol=1e-10)
            assert int(self.run.samples) == self.plain.samples
            assert len(self.run.pending) == len(self.plain.waiting)

    return Machine


def test_any_order_of_calls(learner):
    quick = settings(max_examples=25, stateful_step_count=20, deadline=None, derandomize=True)
    run_state_machine_as_test(machine_of(learner), settings=quick)


@pytest.mark.slow
def test_any_order_of_many_calls(learner):
    many = settings(max_examples=1_000, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(machine_of(learner), settings=many)
