"""The paper's learning rate γ / (1 + α √t), with t in samples for every optimizer and window."""

import jax
import numpy as np
import optax
import pytest

from norewind import bptt, cells, inverse_sqrt, online, window
from norewind.core.losses import cross_entropy

CELL = cells.rnn(inputs=3, hidden=4, outputs=3)
OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam, "adagrad": optax.adagrad}


@pytest.mark.parametrize(("name", "length"), [("sgd", 1), ("sgd", 5), ("adam", 5), ("adagrad", 5)])
def test_time_is_counted_in_samples(name, length):
    """Equals the optimizer with rate 1, with each update multiplied by the paper's rate at its sample."""
    model = (CELL.transition, cross_entropy)
    estimator = bptt(*model) if length == 1 else bptt(*window(*model))
    text = np.random.default_rng(0).integers(0, 3, 31)
    shape = (-1,) if length == 1 else (-1, length)
    xs, targets = text[:-1].reshape(shape), text[1:].reshape(shape)

    learner = online(estimator, OPTIMIZERS[name](inverse_sqrt(0.1, alpha=0.5)))
    run = learner.init(CELL.init(jax.random.key(0)), CELL.initial_state(), jax.random.key(1))
    params, state = run.params, run.state
    run, _, _ = learner.scan(run, xs, targets)

    plain = OPTIMIZERS[name](1.0)
    plain_state = plain.init(params)

    @jax.jit
    def by_hand(params, state, plain_state, x, target, rate):
        state, _, estimate = estimator.step(params, state, (), x, target)
        updates, plain_state = plain.update(estimate.grad, plain_state, params)
        return optax.apply_updates(params, jax.tree.map(lambda update: rate * update, updates)), state, plain_state

    for number, (x, target) in enumerate(zip(xs, targets, strict=True)):
        rate = 0.1 / (1 + 0.5 * np.sqrt(number * length))
        params, state, plain_state = by_hand(params, state, plain_state, x, target, rate)
    assert int(run.samples) == 30
    for ours, expected in zip(jax.tree.leaves(run.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-6)
