"""Echo state networks and liquid state machines learn their benchmarks, and declare their structure."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reservoirs import feedback, reservoir

from norewind import cells, online
from norewind.core import losses
from norewind.estimators import readout_only
from norewind.testing import Example, check_structure, run_estimator


def narma10(length, seed):
    """The usual benchmark: y' = 0.3 y + 0.05 y Σ₀⁹ y₋ᵢ + 1.5 u₋₉ u + 0.1, with u uniform in (0, ½)."""
    u = np.random.default_rng(seed).uniform(0, 0.5, length)
    y = np.zeros(length)
    for t in range(9, length - 1):
        y[t + 1] = 0.3 * y[t] + 0.05 * y[t] * y[t - 9 : t + 1].sum() + 1.5 * u[t - 9] * u[t] + 0.1
    return u[:-1, None], y[1:, None]


@pytest.mark.usefixtures("x64")
def test_echo_state_network_reaches_the_error_known_for_its_size_on_narma10():
    """With a least-squares readout and 100 units, about 0.1 of the variance (Rodan & Tiňo, 2011)."""
    cell = cells.reservoir(1, 100, 1, spectral_radius=0.95, input_scaling=0.1)
    estimator = readout_only(cell.transition, losses.squared_error)

    @jax.jit
    def states(params, xs):
        return jax.lax.scan(lambda s, x: (cell.transition(params, s, x)[0],) * 2, cell.initial_state(), xs)[1]

    @jax.jit
    def mean_grad(params, state, xs, ys):
        example = Example("", params, state, cell.transition, losses.squared_error, xs, ys)
        grads = run_estimator(estimator, example, ())[2].grad["readout"]
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), grads)

    errors = []
    for seed in range(4):
        params = jax.jit(cell.init)(jax.random.key(seed))
        xs, ys = narma10(4201, seed)
        features = np.concatenate([np.asarray(states(params, xs)), np.ones((len(xs), 1))], axis=1)
        fit, test = slice(200, 2200), slice(2200, 4200)
        weights = np.linalg.lstsq(features[fit], ys[fit], rcond=None)[0]
        errors.append(np.mean((features[test] @ weights - ys[test]) ** 2) / np.var(ys[test]))
    assert 0.05 < np.mean(errors) < 0.12
    # There the estimator's gradient vanishes on the samples of the fit, unlike at the start.
    start = jnp.asarray(features[199, :-1])
    solved = params | {"readout": {"weight": jnp.asarray(weights[:-1].T), "bias": jnp.asarray(weights[-1])}}
    sizes = [
        max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(mean_grad(p, start, xs[fit], ys[fit])))
        for p in (params, solved)
    ]
    assert sizes[1] < 1e-10 < 1e-2 < sizes[0]


def test_echo_state_network_learns_online():
    cell = cells.reservoir(1, 100, 1, spectral_radius=0.95, input_scaling=0.1)
    learner = online(readout_only(cell.transition, losses.squared_error), optax.sgd(0.3))
    run = learner.init(jax.jit(cell.init)(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    before = run.params
    xs, ys = (data.astype(np.float32) for data in narma10(40001, 0))
    run, values, _ = learner.scan(run, xs, ys)
    error = 2 * np.asarray(values).reshape(8, -1).mean(axis=1) / np.var(ys)
    assert error[-1] < 0.2 < error[0]
    assert np.array_equal(before["recurrent"], run.params["recurrent"])


def test_liquid_state_machine_remembers():
    """A spiking reservoir recalls the input three steps ago far better than chance, which is log 2 = 0.693."""
    cell = cells.liquid(2, 100, 2, times=(3.0, 2.0, 2))
    learner = online(readout_only(cell.transition, losses.cross_entropy), optax.adam(1e-2))
    run = learner.init(jax.jit(cell.init)(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    bits = np.random.default_rng(0).integers(0, 2, 12000).astype(np.int32)
    run, values, _ = learner.scan(run, bits[3:], bits[:-3])
    spikes = float(jnp.mean(run.state["trace"]))
    assert 0.02 < spikes < 0.7
    assert np.mean(np.asarray(values)[-2000:]) < 0.6 < 0.65 < np.mean(np.asarray(values)[:200])


def test_declarations_are_true():
    for example in (reservoir(), feedback()):
        check_structure(example.transition, example.params, example.state, example.xs[0])
