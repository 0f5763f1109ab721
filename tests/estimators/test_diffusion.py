"""The likelihood-ratio gradient is that of the noisy system: on a linear-Gaussian model, exactly.

There the loss is quadratic and the score bilinear in the noise, each in the noise of
different steps, so that only first and second moments enter: the mean over all signs
±1 is the mean over Gaussian noise, and every path of signs can be enumerated.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from norewind import average, rtrl
from norewind.core import ModelError, losses
from norewind.core.noise import gaussian
from norewind.estimators import diffusion
from norewind.testing import Example, check_estimator, path_signs, run_estimator, sign_paths
from norewind.testing import example as built_in

STEPS, SIGMA = 5, 0.5


def transition(params, state, x):
    state = params["a"] @ state + params["b"] * x
    return state, params["c"] @ state


def linear_gaussian():
    params = {
        "a": jnp.array([[0.8, -0.4], [0.3, 0.6]]),
        "b": jnp.array([0.5, -0.7]),
        "c": jnp.array([1.0, 0.6]),
    }
    xs = jnp.sin(1.0 + jnp.arange(STEPS))
    return Example("linear", params, jnp.array([0.4, -0.3]), transition, losses.squared_error, xs, jnp.cos(2 * xs))


def expected_losses(params, example):
    """E[ℓ_t] in closed form, by the mean and covariance of the state before each step."""
    mean, covariance = example.state, jnp.zeros((2, 2))
    values = []
    for x, target in zip(example.xs, example.targets, strict=True):
        mean = params["a"] @ mean + params["b"] * x
        covariance = params["a"] @ covariance @ params["a"].T
        spread = params["c"] @ covariance @ params["c"]
        values.append(0.5 * ((params["c"] @ mean - target) ** 2 + spread))
        covariance = covariance + SIGMA**2 * jnp.eye(2)  # the noise comes after the output
    return jnp.stack(values)


def mean_over_paths(example, **options):
    estimator = diffusion(example.transition, example.loss, sigma=SIGMA, noise=path_signs, **options)
    carry = estimator.init(example.params, example.state, jax.random.key(0))
    paths = sign_paths(carry, 2 * (STEPS - 1))
    mean = jax.jit(lambda paths: jax.tree.map(lambda leaf: leaf.mean(axis=0), jax.vmap(grads)(paths)))
    grads = lambda carry: run_estimator(estimator, example, carry)[2].grad  # noqa: E731
    return mean(paths)


def distance(got, wanted):
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), got, wanted)))


@pytest.mark.slow
def test_conformance():
    check_estimator(diffusion, models=[built_in("user_made")])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("baseline", [True, False])
def test_unbiased_for_the_noisy_system(baseline):
    example = linear_gaussian()
    exact = jax.jit(jax.jacrev(lambda params: expected_losses(params, example)))(example.params)
    assert distance(mean_over_paths(example, baseline=baseline), exact) < 1e-10
    # The oracle distinguishes the noisy from the noiseless system, and notices a decay.
    noiseless = rtrl(example.transition, example.loss)
    carry = noiseless.init(example.params, example.state, jax.random.key(0))
    clean = jax.jit(lambda carry: run_estimator(noiseless, example, carry)[2].grad)(carry)
    assert distance(clean, exact) > 1e-3
    assert distance(mean_over_paths(example, baseline=baseline, decay=0.9), exact) > 1e-3


def test_the_baseline_lowers_the_variance():
    example = linear_gaussian()

    def variance(baseline):
        estimator = diffusion(example.transition, example.loss, sigma=0.1, baseline=baseline)

        def last(key):
            carry = estimator.init(example.params, example.state, key)
            return run_estimator(estimator, example, carry)[2].grad["b"][-1]

        return float(jnp.sum(jnp.var(jax.jit(jax.vmap(last))(jax.random.split(jax.random.key(1), 500)), axis=0)))

    assert variance(True) < 0.5 * variance(False)


def test_the_noise_is_gaussian():
    numbers = np.asarray(gaussian(jax.random.key(0), {"h": jnp.zeros(20000)})[0]["h"])
    moments = [np.mean(numbers**k) for k in (1, 2, 4)]
    assert np.allclose(moments, [0, 1, 3], atol=0.15)


def test_invalid_requests_are_rejected():
    example = linear_gaussian()
    with pytest.raises(ValueError, match="sigma must be above 0"):
        diffusion(example.transition, example.loss, sigma=0.0)
    with pytest.raises(ValueError, match="decay must be between"):
        diffusion(example.transition, example.loss, decay=1.5)
    with pytest.raises(ModelError, match="depends on its carry"):
        average(diffusion(example.transition, example.loss), 2)
