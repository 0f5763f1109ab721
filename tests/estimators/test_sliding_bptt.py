"""Sliding truncated BPTT: exact when the window covers the past, else autodiff with the state stopped T steps ago."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alike import assert_same
from structured import grads_of

from norewind import bptt, rtrl
from norewind.core import ModelError
from norewind.estimators import sliding_bptt
from norewind.testing import check_estimator, check_exact, example

LENGTH = 5


def first(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def stopped_before(model, length):
    """Each loss differentiated by plain autodiff through its last `length` steps only."""

    def loss_at(params, t):
        state = model.state
        for k in range(t + 1):
            if k == t - length + 1:
                state = jax.tree.map(jax.lax.stop_gradient, state)
            x, target = jax.tree.map(lambda leaf, k=k: leaf[k], (model.xs, model.targets))
            state, output = model.transition(params, state, x)
        return model.loss(output, target)

    def all_grads(params):
        grads = [jax.grad(loss_at)(params, t) for t in range(LENGTH)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *grads)

    return jax.jit(all_grads)(model.params)


@pytest.mark.slow
def test_conformance():
    make = lambda transition, loss, x: sliding_bptt(transition, loss, length=3, x=x)  # noqa: E731
    check_estimator(make, models=[example("user_made")], example_x=True)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["lstm", "user_made"])
def test_it_is_exact_if_the_window_covers_the_past(name):
    model = example(name)
    check_exact(lambda *pair: sliding_bptt(*pair, length=4, x=first(model.xs)), models=[model])


@pytest.mark.usefixtures("x64")
def test_shorter_it_is_autodiff_with_the_state_stopped():
    model, length = example("rnn", length=LENGTH), 3
    estimator = sliding_bptt(model.transition, model.loss, length=length, x=first(model.xs))
    got = grads_of(estimator, model)
    assert_same(got, stopped_before(model, length), absolute=1e-10)
    # and not that of another length
    exact = grads_of(rtrl(model.transition, model.loss), model)
    assert np.max(np.abs(got["recurrent"] - exact["recurrent"])) > 1e-4


@pytest.mark.usefixtures("x64")
def test_of_length_one_it_is_one_step_bptt():
    model = example("rnn")
    estimator = sliding_bptt(model.transition, model.loss, length=1, x=first(model.xs))
    assert_same(grads_of(estimator, model), grads_of(bptt(model.transition, model.loss), model), absolute=1e-10)


def test_length_is_checked():
    model = example("rnn")
    with pytest.raises(ModelError, match="sliding_bptt: length must be at least 1"):
        sliding_bptt(model.transition, model.loss, length=0, x=jnp.array(0))
