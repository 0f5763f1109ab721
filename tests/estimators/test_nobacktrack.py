"""NoBackTrack: both forms are equal and unbiased, bad models are rejected, and its variance is below UORO's."""

import sys

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from structured import grads_of, plain_lstm, undeclared

from norewind import cells, declare, uoro, window
from norewind.core import losses
from norewind.estimators import nobacktrack
from norewind.testing import (
    Example,
    check_estimator,
    check_structure,
    check_unbiased,
    exact_grads,
    example,
    run_estimator,
)


def by_pullbacks(transition, loss, **options):
    return nobacktrack(undeclared(transition), loss, **options)


def windowed(transition, loss, **options):
    return nobacktrack(*window(transition, loss), **options)


@pytest.mark.slow
def test_conformance():
    check_estimator(nobacktrack, models=[example("rnn")])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", ["user_made", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gru", "rnn", "lstm", "stack"))]
)
def test_general_form_is_unbiased_for_any_model(name):
    check_unbiased(by_pullbacks, models=[example(name)])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("model", models.ODD, ids=lambda model: model.__name__)
def test_general_form_is_unbiased_for_unusual_models(model):
    check_unbiased(by_pullbacks, models=[model()])


@pytest.mark.usefixtures("x64")
def test_cheap_form_is_unbiased_and_equal_to_the_general_one():
    for model in (example("rnn"), plain_lstm(2, 4, dtype=float)):
        grads = [grads_of(make(model.transition, model.loss), model, seed=5) for make in (nobacktrack, by_pullbacks)]
        worst = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), *grads)
        assert max(jax.tree.leaves(worst)) < 1e-10
    check_unbiased(nobacktrack, models=[example("rnn")])


@pytest.mark.usefixtures("x64")
def test_windows_stay_unbiased():
    check_unbiased(windowed, window=2, models=[example("gru")])


@pytest.mark.usefixtures("x64")
def test_a_normaliser_that_sees_the_noise_is_caught(monkeypatch):
    """ρ must not depend on the noise. Any other ρ is unbiased, even one from a wrong declaration."""
    module = sys.modules[nobacktrack.__module__]
    right = module._norms_by_pullbacks

    def sees_noise(transition, loss, noise):
        seen = []

        def spying_noise(key, like):
            signs, key = noise(key, like)
            seen.append(signs)
            return signs, key

        # The signs are drawn before the norms are computed.
        monkeypatch.setattr(
            module,
            "_norms_by_pullbacks",
            lambda run, leaves: jax.tree.map(lambda n, s: n * (2 + s), right(run, leaves), seen[-1]),
        )
        return by_pullbacks(transition, loss, noise=spying_noise)

    # ν_i ρ_i and ν_i/ρ_i still cancel on the diagonal, but the cross terms between units do not.
    with pytest.raises(AssertionError, match="mean gradient is biased"):
        check_unbiased(sees_noise, models=[example("gru")])


@pytest.mark.usefixtures("x64")
def test_a_term_without_its_normaliser_is_caught(monkeypatch):
    def forgets(transition, loss, noise):
        estimator = nobacktrack(transition, loss, noise=noise)

        def step(params, state, carry, x, target):
            new, after, estimate = estimator.step(params, state, carry, x, target)
            return new, after._replace(s_tilde=jax.tree.map(lambda leaf: 1.1 * leaf, after.s_tilde)), estimate

        return estimator._replace(step=step)

    with pytest.raises(AssertionError, match="mean gradient is biased"):
        check_unbiased(forgets, models=[example("rnn")])


def test_a_model_that_declares_only_some_units_takes_the_general_form():
    model = example("lstm")  # its embedding has no unit
    ours, general = (
        grads_of(make(model.transition, model.loss), model, seed=5) for make in (nobacktrack, by_pullbacks)
    )
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.array_equal(a, b), ours, general))


def test_declarations_of_the_cells_are_true():
    for cell in (cells.rnn(3, 4, 2), cells.elman(3, 4, 2), cells.lstm(3, 4, 2, embedding=False)):
        state = jax.tree.map(lambda leaf: leaf + 0.3, cell.initial_state())
        check_structure(cell.transition, jax.jit(cell.init)(jax.random.key(1)), state, jnp.array(1))


def test_false_declarations_are_caught():
    cell = cells.rnn(3, 4, 2)
    params, state = jax.jit(cell.init)(jax.random.key(1)), cell.initial_state() + 0.3
    rows = np.arange(4)
    wrong = {"input": rows, "recurrent": rows, "bias": rows, "readout": None}  # columns in place of rows
    with pytest.raises(AssertionError, match="'recurrent'.*feeds a unit that is not the declared one"):
        check_structure(declare(cell.transition.transition, units=lambda _: wrong), params, state, jnp.array(1))
    hides = {"input": rows, "recurrent": rows[:, None], "bias": None, "readout": None}
    with pytest.raises(AssertionError, match="'bias'.*reaches the state"):
        check_structure(declare(cell.transition.transition, units=lambda _: hides), params, state, jnp.array(1))
    with pytest.raises(AssertionError, match="memory"):
        check_structure(declare(cell.transition.transition, memory=lambda state: state), params, state, jnp.array(1))


def squared_errors(make, cell, keys=400):
    """Return ‖g̃ − g‖² summed over 30 steps, for many keys."""
    symbols = np.random.default_rng(0).integers(0, 3, 31).astype(np.int32)
    params, model = jax.jit(cell.init)(jax.random.key(0)), (cell.transition, losses.cross_entropy)
    example = Example("", params, cell.initial_state(), *model, symbols[:-1], symbols[1:])
    exact = exact_grads(*model, params, example.state, example.xs, example.targets)
    estimator = make(*model)

    def one(key):
        grads = run_estimator(estimator, example, estimator.init(params, example.state, key))[2].grad
        return sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), grads, exact)))

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), keys)), np.float64)


@pytest.mark.slow
def test_variance_on_a_tanh_network_is_below_that_of_uoro():
    """Over many keys, the difference is far above its standard error."""
    theirs, ours = (squared_errors(make, cells.elman(3, 8, 3)) for make in (uoro, nobacktrack))
    error = np.hypot(theirs.std(ddof=1), ours.std(ddof=1)) / np.sqrt(len(ours))
    assert theirs.mean() - ours.mean() > 5 * error


@pytest.mark.usefixtures("x64")
def test_where_all_rows_are_equal_it_is_uoro():
    model = example("rnn")
    theirs, ours = (grads_of(make(model.transition, model.loss), model, seed=5) for make in (uoro, nobacktrack))
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), theirs, ours))
