"""The fifty lines that explain UORO give the same numbers as the library."""

import jax
import jax.numpy as jnp
import numpy as np

import norewind
from examples import uoro_in_fifty_lines as fifty


def transition(params, h, x):
    h = jnp.tanh(params["W"] @ jnp.concatenate([jnp.eye(3)[x], h, jnp.ones(1)]))
    return h, params["V"] @ jnp.append(h, 1.0)


def test_its_losses_and_gradients_are_those_of_norewind_uoro():
    random, units, steps = np.random.default_rng(0), 5, 12
    W, V = random.normal(size=(units, units + 4)), random.normal(size=(3, units + 1))
    signs = random.choice([-1.0, 1.0], (steps, units))
    symbols = random.integers(0, 3, steps + 1)
    h, h_tilde, W_tilde = np.zeros(units), np.zeros(units), np.zeros_like(W)

    with jax.enable_x64(True):
        params, state = {"W": jnp.asarray(W), "V": jnp.asarray(V)}, jnp.zeros(units)
        noise = iter(signs)
        estimator = norewind.uoro(
            transition, norewind.losses.cross_entropy, noise=lambda key, like: (jnp.asarray(next(noise)), key)
        )
        carry = estimator.init(params, state, jax.random.key(0))
        for t in range(steps):
            x, target = int(symbols[t]), int(symbols[t + 1])
            state, carry, estimate = estimator.step(params, state, carry, jnp.array(x), jnp.array(target))
            loss, grad_W, grad_V, h, h_tilde, W_tilde = fifty.step(W, V, h, h_tilde, W_tilde, x, target, signs[t])
            np.testing.assert_allclose(loss, estimate.loss, rtol=1e-12)
            np.testing.assert_allclose(grad_W, estimate.grad["W"], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(grad_V, estimate.grad["V"], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(h_tilde, carry.s_tilde, rtol=1e-10, atol=1e-12)


def test_it_is_fifty_lines_and_learns(capsys):
    with open(fifty.__file__, encoding="utf-8") as file:
        body = file.read().split('"""', 2)[2]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 50
    fifty.main(samples=20_000)
    first, second = (float(line.split()[2]) for line in capsys.readouterr().out.splitlines())
    assert second < 0.8 < first
