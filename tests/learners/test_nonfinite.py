"""Numbers that are not finite are detected wherever they appear, and reported or skipped."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alike import assert_same

import norewind
from norewind import bptt, online, uoro
from norewind.core import NonFiniteError
from norewind.core.losses import squared_error


def fragile(params, state, x):
    """Gives NaN in the loss when x is 9, and only in the gradient when x is 8."""
    state = jnp.tanh(params * state + jnp.where(x == 9, jnp.nan, x))
    output = state + jnp.sqrt(jnp.where(x == 8, 0.0 * params, 1.0))
    return state, output


FRAGILE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def fragile_learner(optimizer=None, **options):
    learner = online(uoro(fragile, squared_error), optimizer or optax.sgd(0.1), **options)
    return learner, learner.init(jnp.array(0.5), jnp.array(0.1), jax.random.key(0))


@pytest.mark.parametrize("poison", [8.0, 9.0])
@pytest.mark.parametrize("mode", ["scan", "step"])
def test_stopping_names_the_step_and_keeps_the_last_good_run(poison, mode):
    xs = np.array(FRAGILE, np.float32)
    xs[3] = poison
    learner, run = fragile_learner()
    first = run
    good, _, _ = learner.scan(run, xs[:3], xs[:3])

    def everything():
        if mode == "scan":
            return learner.scan(run, xs, xs)
        current = run
        for x in xs:
            current, _ = learner.step(current, x, x)

    with pytest.raises(NonFiniteError, match="step 4 ") as caught:
        everything()
    assert caught.value.step == 4
    assert_same(caught.value.run, good, tolerance=1e-6)
    assert_same(run, first)
    learner.scan(caught.value.run, xs[4:], xs[4:])  # training can continue from there


@pytest.mark.parametrize("poison", [8.0, 9.0])
@pytest.mark.parametrize("mode", ["scan", "step"])
@pytest.mark.parametrize(
    "optimizer", [optax.sgd(0.1), norewind.adam(0.1), optax.chain(optax.clip(1.0), norewind.adam(0.1))]
)
def test_skip_drops_the_sample_and_counts_it(poison, mode, optimizer):
    xs = np.array(FRAGILE, np.float32)
    clean = np.delete(xs, 3)
    xs[3] = poison
    learner, run = fragile_learner(optimizer, nonfinite="skip")
    expected, _, _ = learner.scan(run, clean, clean)
    if mode == "scan":
        run, losses, _ = learner.scan(run, xs, xs)
        assert losses.shape == (6,)
    else:
        for x in xs:
            run, _ = learner.step(run, x, x)
    assert (int(run.steps), int(run.skipped)) == (6, 1)
    assert_same(run.params, expected.params, tolerance=1e-6)
    assert_same(run.carry, expected.carry, tolerance=1e-6)
    assert_same(run.state, expected.state, tolerance=1e-6)


def breaks_only(part, value=jnp.nan):
    """An estimator of a model that ignores its state; when x is 9, this part of what a step returns is not finite."""
    inner = bptt(lambda params, state, x: (state + 1, params * x), squared_error)

    def step(params, state, carry, x, target):
        state, _, estimate = inner.step(params, state, (), jnp.where(x == 9, 1.0, x), target)
        broken = jnp.where(x == 9, value, 0.0)
        new = {"state": state, "carry": carry + 1, "loss": estimate.loss, "grad": estimate.grad}
        new[part] = new[part] + broken
        return new["state"], new["carry"], estimate._replace(loss=new["loss"], grad=new["grad"])

    return norewind.core.Estimator.build(lambda params, state, key: jnp.zeros(()), step, inner.model)


@pytest.mark.parametrize("part", ["loss", "grad", "state", "carry"])
@pytest.mark.parametrize("place", [2, 5], ids=["inside", "at the end"])
def test_any_part_alone_that_is_not_finite_is_noticed(part, place):
    xs = np.array(FRAGILE, np.float32)
    xs[place] = 9.0
    learner = online(breaks_only(part), optax.sgd(0.1))
    run = learner.init(jnp.array(0.5), jnp.array(0.0), jax.random.key(0))
    with pytest.raises(NonFiniteError) as caught:
        learner.scan(run, xs, xs)
    assert caught.value.step == place + 1
    current = run
    for x in xs[:place]:
        current, _ = learner.step(current, x, x)
    assert_same(caught.value.run, current, tolerance=1e-6)
    with pytest.raises(NonFiniteError):
        learner.step(current, xs[place], xs[place])
    skipping = online(breaks_only(part), optax.sgd(0.1), nonfinite="skip")
    last, _, _ = skipping.scan(run, xs, xs)
    assert (int(last.steps), int(last.skipped), float(last.state), float(last.carry)) == (6, 1, 5.0, 5.0)
    last, _ = skipping.step(current, xs[place], xs[place])
    assert_same(last, current._replace(steps=last.steps, samples=last.samples, skipped=last.skipped))
    assert int(last.skipped) == 1


def test_a_step_notices_an_infinite_gradient_that_the_optimizer_clips():
    for policy in ("stop", "skip"):
        learner = online(breaks_only("grad", jnp.inf), optax.chain(optax.clip(1.0), optax.sgd(0.1)), nonfinite=policy)
        run = learner.init(jnp.array(0.5), jnp.array(0.0), jax.random.key(0))
        if policy == "stop":
            with pytest.raises(NonFiniteError):
                learner.step(run, 9.0, 1.0)
        else:
            for after in (learner.step(run, 9.0, 1.0)[0], learner.scan(run, np.array([9.0]), np.array([1.0]))[0]):
                assert (int(after.skipped), float(after.params)) == (1, 0.5)


def test_skip_looks_at_every_step_only_where_something_is_not_finite(monkeypatch):
    xs = np.array(FRAGILE, np.float32)
    learner, run = fragile_learner(nonfinite="skip")
    stopping, _ = fragile_learner()
    seen = []
    monkeypatch.setattr(
        learner, "skipping_loop", lambda *rest, chunk=learner.skipping_loop: seen.append(1) or chunk(*rest)
    )
    after, losses, _ = learner.scan(run, xs, xs)
    assert seen == []
    assert_same((after, losses, None), stopping.scan(run, xs, xs), tolerance=1e-6)
    xs[3] = 9.0
    learner.scan(run, xs, xs)
    assert seen == [1]


def test_skip_inside_a_transformation_of_the_caller():
    xs = np.array(FRAGILE, np.float32)
    xs[3] = 9.0
    learner, run = fragile_learner(nonfinite="skip")
    expected, _, _ = learner.scan(run, xs, xs)
    after, _, _ = jax.jit(learner.scan)(run, xs, xs)
    assert int(after.skipped) == 1
    assert_same(after, expected, tolerance=1e-6)


def test_parameters_that_overflow_stop_the_run():
    learner = online(bptt(lambda p, s, x: (s, p * x), squared_error), optax.sgd(1e20))
    run = learner.init(jnp.array(1.0), jnp.array(0.0), jax.random.key(0))
    with pytest.raises(NonFiniteError) as caught:
        learner.scan(run, np.full(20, 2.0, np.float32), np.zeros(20, np.float32))
    assert np.isfinite(caught.value.run.params)


def test_an_infinity_that_belongs_to_the_state_is_not_an_error():
    """A running minimum of the positive inputs starts at infinity, in every new sequence."""

    def transition(params, state, x):
        least = jnp.where(x > 0, jnp.minimum(state["least"], x), state["least"])
        return {"h": jnp.tanh(params * state["h"] + x), "least": least}, state["h"]

    for policy in ("stop", "skip"):
        learner = online(uoro(transition, squared_error), optax.sgd(0.1), nonfinite=policy)
        run = learner.init(jnp.array(0.5), {"h": jnp.array(0.1), "least": jnp.array(jnp.inf)}, jax.random.key(0))
        run = learner.reset(run)
        run, _ = learner.step(run, 0.5, 0.5)
        run, _, _ = learner.scan(run, np.ones(3, np.float32), np.ones(3, np.float32))
        assert float(run.state["least"]) == 0.5
        xs = np.array([1, 1, -1], np.float32)
        run, _, _ = learner.scan(run, xs, xs, resets=xs < 0)
        assert float(run.state["least"]) == np.inf
        assert int(run.skipped) == 0
