"""Echo state networks, liquid state machines and backpropagation-decorrelation."""

import jax
import jax.numpy as jnp
import models
import numpy as np
import optax
import pytest

from norewind import ModelError, bpdc, cells, losses, online, readout_only
from norewind.structure import reaches_state
from norewind.testing import Example, check_estimator, check_structure, exact_grads, run_estimator
from norewind.testing import example as built_in


def signal(cell, name, length=4):
    xs = np.sin(1.0 + np.arange(length))[:, None]
    params = jax.jit(cell.init)(jax.random.key(2))
    # A readout that starts at zero would hide mistakes.
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), params
    )
    state = jax.tree.map(lambda leaf: leaf + jnp.asarray(0.3).astype(leaf.dtype), cell.initial_state())
    return Example(
        name,
        params,
        state,
        cell.transition,
        losses.squared_error,
        xs.astype(params["bias"].dtype),
        np.cos(2 * xs).astype(params["bias"].dtype),
    )


def reservoir():
    return signal(cells.reservoir(1, 6, 1, sparsity=0.5, leak=0.7), "reservoir")


def liquid():
    return signal(cells.liquid(1, 8, 1, sparsity=0.5, input_scaling=2.0), "liquid")


def feedback():
    example = signal(cells.feedback_reservoir(1, 4, 2, sparsity=0.5, leak=0.7, feedback=0.5), "feedback")
    return example._replace(targets=np.concatenate([example.targets, np.sin(3 * example.xs)], axis=1))


def grads_of(estimator, example):
    carry = estimator.init(example.params, example.state, jax.random.key(0))
    return jax.jit(lambda carry: run_estimator(estimator, example, carry)[2].grad)(carry)


@pytest.mark.slow
def test_readout_only_conformance():
    check_estimator(readout_only, models=[built_in("user_made"), liquid()])


@pytest.mark.slow
def test_bpdc_conformance():
    check_estimator(bpdc, models=[feedback()])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", [reservoir, liquid])
def test_readout_gradient_is_that_of_autodiff_with_the_reservoir_stopped(make):
    example = make()

    def stopped(params, state, x):
        frozen = {name: leaf if name == "readout" else jax.lax.stop_gradient(leaf) for name, leaf in params.items()}
        return example.transition(frozen, state, x)

    wanted = exact_grads(stopped, example.loss, example.params, example.state, example.xs, example.targets)
    got = grads_of(readout_only(example.transition, example.loss), example)
    worst = jax.tree.map(lambda a, b: float(np.max(np.abs(np.asarray(a) - np.asarray(b)))), got, wanted)
    assert max(jax.tree.leaves(worst)) < 1e-10
    assert np.all(np.any(np.asarray(got["readout"]["weight"]) != 0, axis=(1, 2)))


def test_readout_only_refuses_a_model_without_a_readout():
    example = feedback()
    estimator = readout_only(example.transition, example.loss)
    with pytest.raises(ModelError, match="there is no readout to train"):
        jax.eval_shape(estimator.step, example.params, example.state, (), example.xs[0], example.targets[0])


@pytest.mark.parametrize("name", ["equinox_gru", "flax_gru", "haiku_gru", "surrogate_spikes", "checkpointed"])
def test_the_readout_is_found_in_models_of_all_kinds(name):
    example = getattr(models, name)()
    x = jax.tree.map(lambda leaf: leaf[0], example.xs)
    reach = reaches_state(example.transition, example.params, example.state, x)
    passing = [path[0].key for path, reaches in jax.tree_util.tree_leaves_with_path(reach) if not reaches]
    assert set(passing) == {"out" if name == "surrogate_spikes" else "readout"}


def narma10(length, seed):
    """The usual benchmark: y' = 0.3 y + 0.05 y Σ₀⁹ y₋ᵢ + 1.5 u₋₉ u + 0.1, with u uniform in (0, ½)."""
    u = np.random.default_rng(seed).uniform(0, 0.5, length)
    y = np.zeros(length)
    for t in range(9, length - 1):
        y[t + 1] = 0.3 * y[t] + 0.05 * y[t] * y[t - 9 : t + 1].sum() + 1.5 * u[t - 9] * u[t] + 0.1
    return u[:-1, None], y[1:, None]


@pytest.mark.usefixtures("x64")
def test_echo_state_network_reaches_the_error_known_for_its_size_on_narma10():
    """Around 0.1 of the variance with 100 units (Rodan & Tiňo, 2011), with the least-squares readout."""
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
    # That is where the estimator's gradient vanishes, on the samples of the fit, and not at the start.
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
    run, values = learner.scan(run, xs, ys)
    error = 2 * np.asarray(values).reshape(8, -1).mean(axis=1) / np.var(ys)
    assert error[-1] < 0.2 < error[0]
    assert np.array_equal(before["recurrent"], run.params["recurrent"])


def test_liquid_state_machine_remembers():
    """A spiking reservoir tells what came three steps ago far better than by chance, which is log 2 = 0.693."""
    cell = cells.liquid(2, 100, 2, times=(3.0, 2.0))
    learner = online(readout_only(cell.transition, losses.cross_entropy), optax.adam(1e-2))
    run = learner.init(jax.jit(cell.init)(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    bits = np.random.default_rng(0).integers(0, 2, 12000).astype(np.int32)
    run, values = learner.scan(run, bits[3:], bits[:-3])
    spikes = float(jnp.mean(run.state["trace"]))
    assert 0.02 < spikes < 0.7
    assert np.mean(np.asarray(values)[-2000:]) < 0.6 < 0.65 < np.mean(np.asarray(values)[:200])


def steils_rule(example, leak, epsilon):
    """The rule of the paper, written with numpy, for all steps: Δw for η = 1, and its sign turned."""
    recurrent, feed, bias = (np.asarray(example.params[name]) for name in ("recurrent", "input", "bias"))
    state, before, changes = np.asarray(example.state), np.zeros(2), []
    for x, target in zip(np.asarray(example.xs), np.asarray(example.targets), strict=True):
        active = np.tanh(state)
        inputs = np.concatenate([active, x, [1.0]])
        new = (1 - leak) * state + leak * (recurrent @ active + x @ feed + bias)
        error = new[-2:] - target
        mixing = (1 - leak) * np.eye(2) + leak * recurrent[-2:, -2:] * (1 - active[-2:] ** 2)
        gamma = mixing @ before - error
        changes.append(-np.outer(gamma, inputs) / leak / (inputs @ inputs + epsilon / leak**2))
        state, before = new, error
    return np.stack(changes)


@pytest.mark.usefixtures("x64")
def test_bpdc_is_steils_rule():
    example = feedback()
    grads = grads_of(bpdc(example.transition, example.loss, epsilon=2e-3), example)
    got = np.concatenate(
        [grads["recurrent"][:, -2:], np.swapaxes(grads["input"], 1, 2)[:, -2:], grads["bias"][:, -2:, None]], axis=2
    )
    assert np.max(np.abs(got - steils_rule(example, 0.7, 2e-3))) < 1e-10
    assert not np.any(grads["recurrent"][:, :-2])
    assert np.max(np.abs(got - steils_rule(example, 0.7, 2e-2))) > 1e-4


@pytest.mark.usefixtures("x64")
def test_bpdc_is_the_smallest_change_that_makes_up_for_the_errors():
    """Where the rule comes from: with the network as constraints g = 0, Δw = −(∂g/∂w)⁺ (∂g/∂s) e, by autodiff."""
    example = feedback()
    estimator = bpdc(example.transition, example.loss, epsilon=0.0)
    carry = jnp.array([0.5, -0.8])
    x, target = example.xs[0], example.targets[0]
    new, _, estimate = estimator.step(example.params, example.state, carry, x, target)
    flat, unravel = jax.flatten_util.ravel_pytree(example.params)

    def constraints(flat, old, new):
        return (example.transition(unravel(flat), old, x)[0] - new)[-2:]

    by_weights, by_old, by_new = jax.jacrev(constraints, argnums=(0, 1, 2))(flat, example.state, new)
    error = new[-2:] - target
    change = jnp.linalg.pinv(by_weights) @ (by_old[:, -2:] @ carry + by_new[:, -2:] @ error)
    assert jnp.max(jnp.abs(jax.flatten_util.ravel_pytree(estimate.grad)[0] + change)) < 1e-10


def test_bpdc_learns_to_predict_a_chaotic_series():
    """Mackey–Glass, one step ahead: better than repeating the last value."""
    length, delay, fine = 6000, 17, 10
    values = np.full((length + delay + 1) * fine, 1.2)
    for t in range(delay * fine, len(values) - 1):
        late = values[t - delay * fine]
        values[t + 1] = values[t] + (0.2 * late / (1 + late**10) - 0.1 * values[t]) / fine
    series = (values[delay * fine :: fine] - 0.9).astype(np.float32)[:, None]
    cell = cells.feedback_reservoir(1, 50, 1, spectral_radius=0.8, input_scaling=0.3)
    learner = online(bpdc(cell.transition, losses.squared_error), optax.sgd(0.3))
    run = learner.init(jax.jit(cell.init)(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    _, values = learner.scan(run, series[:-1], series[1:])
    persistence = 0.5 * np.mean((series[1:] - series[:-1]) ** 2)
    assert np.mean(np.asarray(values)[-2000:]) < 0.5 * persistence


def test_bpdc_refuses_models_without_output_units():
    gru = built_in("gru")
    with pytest.raises(ModelError, match="does not declare units and output_units"):
        bpdc(gru.transition, gru.loss)


def test_declarations_are_true():
    for example in (reservoir(), feedback()):
        check_structure(example.transition, example.params, example.state, example.xs[0])
