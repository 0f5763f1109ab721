"""`check_unbiased` enumerates the signs that an estimator draws, whatever their number, and can sample beyond that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from norewind import average, bptt, rtrl, uoro
from norewind.core import Estimator, losses, random_signs
from norewind.estimators import nobacktrack
from norewind.testing import Example, check_unbiased, example, sign_paths
from norewind.testing.paths import path_signs, signs_per_key

pytestmark = pytest.mark.usefixtures("x64")


def small(length=3):
    """A model with two parameters, three numbers of state and few samples."""

    def transition(params, state, x):
        state = jnp.tanh(params["a"] * jnp.roll(state, 1) + params["b"] * x)
        return state, jnp.sum(state)

    params, xs = {"a": np.array(0.7), "b": np.array(0.4)}, np.sin(1.0 + np.arange(length))
    return Example("small", params, np.array([0.2, -0.4, 0.3]), transition, losses.squared_error, xs, np.cos(xs))


def noisy_rtrl(disturbed, shapes):
    """RTRL whose gradient is disturbed by signs of any shapes."""

    def make(transition, loss, *, noise=random_signs):
        exact = rtrl(transition, loss)

        def init(params, state, key):
            return exact.init(params, state, key), key

        def step(params, state, carry, x, target):
            signs, key = noise(carry[1], shapes(params))
            state, influence, estimate = exact.step(params, state, carry[0], x, target)
            return state, (influence, key), estimate._replace(grad=disturbed(estimate.grad, signs))

        return Estimator.build(init, step, exact.model)

    return make


def along(grad, signs):
    """(g · v) v: the forward gradient, with as many signs as parameters."""
    slope = sum(jax.tree.leaves(jax.tree.map(lambda g, v: jnp.sum(g * v), grad, signs)))
    return jax.tree.map(lambda v: slope * v, signs)


def two_numbers(params):
    return [jnp.zeros(()), jnp.zeros(())]


UNBIASED = {
    "as many as parameters": noisy_rtrl(along, lambda params: params),
    "two": noisy_rtrl(lambda grad, v: jax.tree.map(lambda g: g + v[0] * v[1] + v[1], grad), two_numbers),
}
BIASED = {
    "as many as parameters": noisy_rtrl(lambda grad, v: along(grad, v | {"a": v["b"]}), lambda params: params),
    "two": noisy_rtrl(lambda grad, v: jax.tree.map(lambda g: g + v[0] * v[0] * 1e-6 + v[1], grad), two_numbers),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_noise_of_any_size_is_enumerated(name):
    check_unbiased(UNBIASED[name], models=[small()])
    with pytest.raises(AssertionError, match="mean gradient is biased"):
        check_unbiased(BIASED[name], models=[small()])


def test_signs_are_counted():
    """Signs of the last step count only where its gradient depends on them, and every copy has its own."""

    def count(make):
        model = small()
        estimator = make(model.transition, model.loss, noise=path_signs)
        carry = estimator.init(model.params, model.state, jax.random.key(0))
        return signs_per_key(estimator, model, carry).tolist()

    assert count(uoro) == count(nobacktrack) == [3 * 2]
    assert count(lambda *model, noise: average(uoro(*model, noise=noise), 2)) == [6, 6]
    assert count(UNBIASED["as many as parameters"]) == count(UNBIASED["two"]) == [2 * 3]
    assert count(lambda *model, noise: rtrl(*model)) == []


def test_sources_of_different_sizes_are_independent():
    carry = sign_paths({"a": jax.random.key(0), "b": jax.random.key(1)}, np.array([1, 2]))
    assert sorted(zip(carry["a"].tolist(), carry["b"].tolist(), strict=True)) == [
        (a, b) for a in (0, 1) for b in range(4)
    ]


def test_it_rejects_with_the_reason():
    with pytest.raises(ValueError, match=r"the noise consists of 27 signs.*draws="):
        check_unbiased(uoro, models=[small(10)])

    def in_init(transition, loss, *, noise):
        good = uoro(transition, loss, noise=noise)

        def init(params, state, key):
            return good.init(params, state, key)._replace(s_tilde=noise(key, state)[0])

        return good._replace(init=init)

    with pytest.raises(ValueError, match="draws noise from a PRNG key in init"):
        check_unbiased(in_init, models=[small()])

    def splitting(transition, loss, *, noise):
        return uoro(transition, loss, noise=lambda key, like: (like, jax.random.split(key)[0]))

    with pytest.raises(ValueError, match="otherwise than by noise"):
        check_unbiased(splitting, models=[small()])


def test_rounding_of_float32_is_not_taken_for_a_bias():
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"needs float64, which is off: .* jax.enable_x64"):
        check_unbiased(uoro, models=[small()])


def test_sampling_finds_a_bias_and_accepts_noise():
    long = small(10)
    check_unbiased(uoro, models=[long], draws=4_000)
    with pytest.raises(AssertionError, match=r"biased at \['a'\].* standard errors .* over 4,000 draws"):
        check_unbiased(BIASED["as many as parameters"], models=[long], draws=4_000)
    with pytest.raises(AssertionError, match="biased at"):
        check_unbiased(bptt, models=[long], draws=3)


def test_the_confidence_is_that_of_unbiased_estimators():
    """Over many estimators with normal means, about as many are rejected as the confidence says."""
    model = small()

    def make(seed):
        def shifted(grad, signs):
            return jax.tree.map(lambda g: g + jnp.mean(signs) if jnp.ndim(g) == 0 else g, grad)

        base = noisy_rtrl(shifted, lambda params: jnp.zeros(16))
        return lambda *parts: _salted(base(*parts), seed)

    rejected = 0
    for seed in range(20):
        try:
            check_unbiased(make(seed), models=[model], draws=200, confidence=0.5)
        except AssertionError:
            rejected += 1
    assert 1 <= rejected <= 15


def _salted(estimator, seed):
    def init(params, state, key):
        return estimator.init(params, state, jax.random.fold_in(key, seed))

    return estimator._replace(init=init)


def test_it_still_condemns_a_biased_uoro():
    def halved(transition, loss, *, noise=random_signs):
        good = uoro(transition, loss, noise=noise)

        def step(params, state, carry, x, target):
            state, carry, estimate = good.step(params, state, carry, x, target)
            return state, carry._replace(s_tilde=carry.s_tilde / 2), estimate

        return good._replace(step=step)

    with pytest.raises(AssertionError, match="mean gradient is biased"):
        check_unbiased(halved, models=[example("rnn", length=3)])
