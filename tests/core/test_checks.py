"""Mistakes raise errors that name the place and say what to do, before anything is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import norewind
from norewind import average, bptt, online, parallel, rtrl, uoro, window
from norewind.core import ModelError
from norewind.core.losses import squared_error
from norewind.engines.compilation import FASTER_LOOPS, _supported

PARAMS = {"layer": {"w": jnp.ones((2, 2))}}
STATE = {"h": jnp.zeros(2), "n": jnp.array(0)}
X = jnp.ones(2)


def good(params, state, x):
    h = jnp.tanh(params["layer"]["w"] @ state["h"] + x)
    return {"h": h, "n": state["n"] + 1}, h


def never_compiled(monkeypatch):
    from jax._src import compiler

    def reject(*args, **kwargs):
        raise AssertionError("something was compiled before the model was checked")

    _supported(**FASTER_LOOPS)  # compiles one trivial program, once per process
    monkeypatch.setattr(compiler, "compile_or_get_cached", reject)


def test_the_check_for_compilations_detects_one(monkeypatch):
    learner = online(uoro(good, squared_error), optax.sgd(0.1))
    run = learner.init(PARAMS, STATE, jax.random.key(0))
    never_compiled(monkeypatch)
    with pytest.raises(AssertionError, match="compiled before"):
        learner.step(run, X, X)


def replaced(**changes):
    def transition(params, state, x):
        new, output = good(params, state, x)
        return new | {name: change(new[name]) for name, change in changes.items()}, output

    return transition


def dropped(params, state, x):
    new, output = good(params, state, x)
    return {"h": new["h"]}, output


def not_a_pair(params, state, x):
    return good(params, state, x)[0]


BAD_MODELS = {
    "shape": (replaced(h=lambda h: jnp.append(h, 0.0)), squared_error, r"shape of state\['h'\] from \(2,\) to \(3,\)"),
    "dtype": (
        replaced(h=lambda h: h.astype(jnp.float16)),
        squared_error,
        r"dtype of state\['h'\] from float32 to float16",
    ),
    "counter dtype": (replaced(n=lambda n: n * 1.0), squared_error, r"dtype of state\['n'\] from int32 to float32"),
    "structure": (dropped, squared_error, r"structure of the state \(it does not return state\['n'\]\)"),
    "not a pair": (not_a_pair, squared_error, r"must return a pair: \(new_state, output\)"),
    "vector loss": (good, lambda o, t: (o - t) ** 2, r"loss has shape \(2,\).*jax.numpy.sum"),
    "integer loss": (good, lambda o, t: jnp.array(3), r"loss has dtype int32"),
    "complex loss": (good, lambda o, t: jnp.sum(o) * 1j, r"loss has dtype complex64"),
    "no loss": (good, lambda o, t: None, r"loss returned a NoneType"),
}


@pytest.mark.parametrize("make", [uoro, rtrl, bptt])
@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_models(make, name, monkeypatch):
    transition, loss, message = BAD_MODELS[name]
    for pair, x in (((transition, loss), X), (window(transition, loss), jnp.stack([X, X]))):
        estimator = make(*pair)
        learner = online(estimator, optax.sgd(0.1))
        run = learner.init(PARAMS, STATE, jax.random.key(0))
        xs = x[None]
        with monkeypatch.context() as patch, pytest.raises(ModelError, match=message):
            never_compiled(patch)
            learner.step(run, x, x)
        with monkeypatch.context() as patch, pytest.raises(ModelError, match=message):
            never_compiled(patch)
            learner.scan(run, xs, xs)


@pytest.mark.parametrize("make", [uoro, rtrl, bptt])
def test_parameters_that_cannot_be_trained(make):
    estimator = make(good, squared_error)
    learner = online(estimator, optax.sgd(0.1))
    for start in (estimator.init, learner.init):
        with pytest.raises(ModelError, match=r"params\['layer'\]\['w'\] has dtype int32.*state"):
            start({"layer": {"w": jnp.ones((2, 2), int)}}, STATE, jax.random.key(0))
        with pytest.raises(ModelError, match=r"params\['f'\] is a function, not an array.*equinox.partition"):
            start({"f": good}, STATE, jax.random.key(0))
        with pytest.raises(ModelError, match=r"params\['w'\] has dtype int32"):
            start({"w": 1}, STATE, jax.random.key(0))
        with pytest.raises(ModelError, match=r"state\['h'\] is a str, not an array"):
            start(PARAMS, {"h": "zero"}, jax.random.key(0))


def test_lengths_that_do_not_match():
    learner = online(uoro(good, squared_error), optax.sgd(0.1))
    run = learner.init(PARAMS, STATE, jax.random.key(0))
    five, four = jnp.ones((5, 2)), jnp.ones((4, 2))
    with pytest.raises(ModelError, match="scan: xs has length 5 but targets has length 4.*same leading length"):
        learner.scan(run, five, four)
    with pytest.raises(ModelError, match=r"scan: xs\['a'\] has length 5 but xs\['b'\] has length 4"):
        learner.scan(run, {"a": five, "b": four}, five)
    with pytest.raises(ModelError, match="resets has length 4"):
        learner.scan(run, five, five, resets=np.zeros(4, bool))
    with pytest.raises(ModelError, match="xs is a scalar"):
        learner.scan(run, 1.0, five)
    windowed = uoro(*window(good, squared_error))
    carry = windowed.init(PARAMS, STATE, jax.random.key(0))
    with pytest.raises(ModelError, match="window: x has length 5 but target has length 4"):
        jax.eval_shape(windowed.step, PARAMS, STATE, carry, five, four)
    with pytest.raises(ModelError, match="window: x has length 0.*at least one"):
        jax.eval_shape(windowed.step, PARAMS, STATE, carry, five[:0], five[:0])


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
def test_invalid_counts(number):
    estimator = uoro(good, squared_error)
    with pytest.raises(ModelError, match="average: r must be"):
        average(estimator, number)
    with pytest.raises(ModelError, match="parallel: streams must be"):
        parallel(estimator, number)


def test_streams_that_do_not_match():
    estimator = parallel(uoro(good, squared_error), 3)
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), STATE)
    with pytest.raises(ModelError, match="parallel: the leading axis of state has length 2, but there are 3 streams"):
        estimator.init(PARAMS, {"h": jnp.zeros((2, 2)), "n": jnp.zeros(2, int)}, jax.random.key(0))
    carry = estimator.init(PARAMS, state, jax.random.key(0))
    with pytest.raises(ModelError, match=r"parallel: state\['h'\] has length 3 but target has length 2"):
        jax.eval_shape(estimator.step, PARAMS, state, carry, jnp.ones((3, 2)), jnp.ones((2, 2)))


def test_unknown_policies_and_targets_without_an_input():
    with pytest.raises(ValueError, match='"stop" or "skip"'):
        online(uoro(good, squared_error), optax.sgd(0.1), nonfinite="ignore")
    learner = online(uoro(good, squared_error), optax.sgd(0.1))
    run = learner.init(PARAMS, STATE, jax.random.key(0))
    with pytest.raises(ValueError, match="Call predict"):
        learner.learn(run, X)
    waiting, _ = learner.predict(run, X)
    for call in (lambda: learner.step(waiting, X, X), lambda: learner.scan(waiting, X[None], X[None])):
        with pytest.raises(ValueError, match="1 input is still waiting for its target"):
            call()


def test_likely_mistakes():
    estimator = uoro(good, squared_error)
    learner = online(estimator, optax.sgd(0.1))
    run = learner.init(PARAMS, STATE, jax.random.key(0))
    for start in (estimator.init, average(estimator, 2).init, learner.init):
        with pytest.raises(ModelError, match=r"the key is 0, not a PRNG key. Make one with jax.random.key\(0\)"):
            start(PARAMS, STATE, 0)
    for call in (lambda: online(good, optax.sgd(0.1)), lambda: average(good, 2), lambda: parallel(good, 2)):
        with pytest.raises(ModelError, match="takes an estimator, such as norewind.uoro"):
            call()
    with pytest.raises(ModelError, match="takes an optax optimizer.*not 0.001"):
        online(estimator, 1e-3)
    with pytest.raises(ModelError, match="`when` must be True, False or a boolean per stream"):
        learner.reset(run, STATE["h"])
    with pytest.raises(ModelError, match=r"prediction has shape \(2,\) but the target \(\)"):
        learner.step(run, X, jnp.array(1.0))


def test_a_cell_names_the_input_it_takes():
    cell = norewind.cells.gru(3, 4, 2)
    params, state = cell.init(jax.random.key(0)), cell.initial_state()
    for x in (jnp.array([0, 1]), jnp.ones(4), jnp.array(1.0)):
        with pytest.raises(ValueError, match=r"one integer symbol below 3 or a float vector of shape \(3,\)"):
            cell.transition(params, state, x)
