"""Sliding truncated BPTT: exact when the window covers the past, else autodiff with the state stopped T steps ago."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from norewind import ModelError, bptt, rtrl, sliding_bptt
from norewind.testing import check_estimator, check_exact, examples, run_estimator

LENGTH = 5


def named(name, **options):
    return next(example for example in examples(**options) if example.name == name)


def first(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def grads_of(estimator, example):
    carry = estimator.init(example.params, example.state, jax.random.key(0))
    return jax.jit(lambda carry: run_estimator(estimator, example, carry)[2].grad)(carry)


def assert_same(got, wanted):
    worst = jax.tree.map(lambda a, b: float(np.max(np.abs(np.asarray(a) - np.asarray(b)))), got, wanted)
    assert max(jax.tree.leaves(worst)) < 1e-10


def stopped_before(example, length):
    """Each loss differentiated by plain autodiff through its last `length` steps only."""

    def loss_at(params, t):
        state = example.state
        for k in range(t + 1):
            if k == t - length + 1:
                state = jax.tree.map(jax.lax.stop_gradient, state)
            x, target = jax.tree.map(lambda leaf, k=k: leaf[k], (example.xs, example.targets))
            state, output = example.transition(params, state, x)
        return example.loss(output, target)

    def all_grads(params):
        grads = [jax.grad(loss_at)(params, t) for t in range(LENGTH)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *grads)

    return jax.jit(all_grads)(example.params)


def test_conformance():
    make = lambda transition, loss, x: sliding_bptt(transition, loss, length=3, x=x)  # noqa: E731
    check_estimator(make, models=[named("user_made")], example_x=True)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["lstm", "user_made"])
def test_as_long_as_the_past_it_is_exact(name):
    example = named(name)
    check_exact(lambda *model: sliding_bptt(*model, length=4, x=first(example.xs)), models=[example])


@pytest.mark.usefixtures("x64")
def test_shorter_it_is_autodiff_with_the_state_stopped():
    example, length = named("rnn", length=LENGTH), 3
    estimator = sliding_bptt(example.transition, example.loss, length=length, x=first(example.xs))
    got = grads_of(estimator, example)
    assert_same(got, stopped_before(example, length))
    # and it is not some other length
    exact = grads_of(rtrl(example.transition, example.loss), example)
    assert np.max(np.abs(got["recurrent"] - exact["recurrent"])) > 1e-4


@pytest.mark.usefixtures("x64")
def test_of_length_one_it_is_one_step_bptt():
    example = named("rnn")
    estimator = sliding_bptt(example.transition, example.loss, length=1, x=first(example.xs))
    assert_same(grads_of(estimator, example), grads_of(bptt(example.transition, example.loss), example))


def test_length_is_checked():
    example = named("rnn")
    with pytest.raises(ModelError, match="sliding_bptt: length must be at least 1"):
        sliding_bptt(example.transition, example.loss, length=0, x=jnp.array(0))
