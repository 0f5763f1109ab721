"""RTRL and full BPTT are exact: equal to plain autodiff over the whole sequence, in float64, to 1e-10."""

import jax
import jax.numpy as jnp
import models
import pytest
from quick import slow_but

from norewind import bptt, parallel, rtrl, uoro, window
from norewind.core.losses import squared_error
from norewind.testing import EXAMPLES, check_exact, example

pytestmark = pytest.mark.usefixtures("x64")


def windowed_rtrl(transition, loss):
    return rtrl(*window(transition, loss))


@pytest.mark.parametrize("name", EXAMPLES)
def test_rtrl_is_exact_at_every_step(name):
    check_exact(rtrl, models=[example(name)])


@pytest.mark.parametrize("name", EXAMPLES)
def test_windowed_rtrl_is_exact(name):
    check_exact(windowed_rtrl, window=2, models=[example(name)])


@pytest.mark.parametrize(
    "make",
    slow_but(models.LIBRARIES, "equinox_gru", "haiku_lstm") + models.ODD,
    ids=lambda make: make.__name__,
)
def test_rtrl_is_exact_for_models_of_other_libraries_and_unusual_ones(make):
    check_exact(rtrl, models=[make()])
    check_exact(windowed_rtrl, window=2, models=[make()])


@pytest.mark.parametrize("name", slow_but(EXAMPLES, "gru", "user_made"))
def test_bptt_over_the_whole_sequence_is_the_gradient_of_the_total_loss(name):
    model = example(name)

    def total(params):
        state, losses = model.state, 0.0
        for i in range(4):
            x, target = jax.tree.map(lambda leaf, i=i: leaf[i], (model.xs, model.targets))
            state, output = model.transition(params, state, x)
            losses += model.loss(output, target)
        return losses

    estimator = bptt(*window(model.transition, model.loss))
    carry = estimator.init(model.params, model.state, jax.random.key(0))
    step = jax.jit(estimator.step)
    _, _, estimate = step(model.params, model.state, carry, model.xs, model.targets)
    value, grad = jax.jit(jax.value_and_grad(total))(model.params)
    assert jnp.abs(estimate.loss - value) < 1e-10
    worst = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), estimate.grad, grad)
    assert max(jax.tree.leaves(worst)) < 1e-10
    # The test can fail: without the past, the gradient differs.
    last = jax.tree.map(lambda leaf: leaf[-1:], (model.xs, model.targets))
    shorter = estimator.step(model.params, model.state, carry, *last)[2].grad
    assert max(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), shorter, grad))) > 1e-3


def test_one_step_bptt_is_not_exact():
    with pytest.raises(AssertionError, match="rnn: gradient is not exact"):
        check_exact(bptt, models=[example("rnn")])


@pytest.mark.parametrize(("make", "name"), [(rtrl, "gru"), (uoro, "gru"), (uoro, "lstm")])
def test_parallel_streams_give_the_mean_of_each_alone(make, name):
    model = example(name)
    estimator = make(model.transition, model.loss)
    both = parallel(estimator, 2)
    state_of = [model.state, jax.tree.map(jnp.negative, model.state)]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *state_of)
    xs, targets = jnp.stack([model.xs, model.xs[::-1]], 1), jnp.stack([model.targets, model.xs], 1)
    carry = both.init(model.params, states, jax.random.key(0))
    keys = jax.random.split(jax.random.key(0), 2)
    alone = [estimator.init(model.params, state, key) for state, key in zip(state_of, keys, strict=True)]
    step, step_both = jax.jit(estimator.step), jax.jit(both.step)
    for x, target in zip(xs, targets, strict=True):
        states, carry, estimate = step_both(model.params, states, carry, x, target)
        singles = []
        for s in range(2):
            state_of[s], alone[s], single = step(model.params, state_of[s], alone[s], x[s], target[s])
            singles.append(single)
        assert jnp.allclose(estimate.loss, (singles[0].loss + singles[1].loss) / 2, atol=1e-12)
        assert jnp.allclose(estimate.output, jnp.stack([singles[0].output, singles[1].output]), atol=1e-12)
        mean = jax.tree.map(lambda a, b: (a + b) / 2, singles[0].grad, singles[1].grad)
        assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-12), estimate.grad, mean))


@pytest.mark.parametrize("make", [rtrl, bptt, uoro])
def test_a_state_without_floating_leaves_has_no_influence(make):
    def transition(params, state, x):
        return state + 1, params * x

    estimator = make(transition, squared_error)
    carry = estimator.init(jnp.array(2.0), jnp.array(0), jax.random.key(0))
    step = jax.jit(estimator.step)
    state, carry, _ = step(jnp.array(2.0), jnp.array(0), carry, 3.0, 1.0)
    state, carry, estimate = step(jnp.array(2.0), state, carry, 3.0, 1.0)
    assert int(state) == 2
    assert float(estimate.grad) == pytest.approx((2 * 3 - 1) * 3)


@pytest.mark.parametrize("make", [rtrl, bptt, uoro])
def test_mixed_precision_stays_mixed(make):
    def transition(params, state, x):
        low = jnp.tanh(params["low"] * state["low"] + x).astype(jnp.float32)
        return {"low": low, "high": 0.5 * state["high"] + params["high"] * low.sum()}, state["high"]

    params = {"low": jnp.ones(2, jnp.float32), "high": jnp.array(1.0, jnp.float64)}
    state = {"low": jnp.zeros(2, jnp.float32), "high": jnp.array(0.0, jnp.float64)}
    estimator = make(transition, squared_error)
    carry = estimator.init(params, state, jax.random.key(0))
    after = jax.eval_shape(estimator.step, params, state, carry, jnp.float32(1), jnp.float64(1))
    got = [leaf.dtype for leaf in jax.tree.leaves((after[0], after[1], after[2].grad))]
    assert got == [leaf.dtype for leaf in jax.tree.leaves((state, carry, params))]


@pytest.mark.parametrize("make", [rtrl, uoro])
def test_plain_numbers_are_as_good_as_arrays(make):
    def transition(params, state, x):
        return {"h": jnp.tanh(params * state["h"] + x), "n": state["n"] + 1}, state["h"]

    estimator = make(transition, squared_error)
    grads = []
    for number in (lambda value: value, jnp.asarray):
        params, state = number(0.5), {"h": number(0.1), "n": number(0)}
        carry = estimator.init(params, state, jax.random.key(0))
        for _ in range(3):
            state, carry, estimate = estimator.step(params, state, carry, 0.3, 0.2)
        grads.append(float(estimate.grad))
    assert grads[0] == grads[1] != 0
