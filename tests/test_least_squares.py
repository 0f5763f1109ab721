"""Recursive least squares against the closed form, and where a plain recursion explodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from norewind.checks import ModelError
from norewind.learners.least_squares import LARGEST, LeastSquares, lags, oscillators, together


def double(features):
    return features._replace(state=jax.tree.map(widened, features.state), prior=features.prior.astype(np.float64))


def widened(leaf):
    return leaf.astype(np.complex128 if np.iscomplexobj(leaf) else np.float64)


def rows_of(features, xs):
    state, rows = jax.tree.map(jnp.asarray, features.state), []
    for x in xs:
        state, row = features.transition(state, x)
        rows.append(np.asarray(row))
    return np.array(rows)


@pytest.mark.parametrize("forgetting", [1.0, 0.95])
def test_every_step_solves_the_weighted_ridge_regression(forgetting):
    rng = np.random.default_rng(3)
    xs, targets = rng.normal(size=(60, 2)), rng.normal(size=(60, 3))
    targets[20] = np.nan
    targets[31:34] = np.nan
    with jax.enable_x64(True):
        features = double(together(lags(2, 3), oscillators(2, 2)))
        learner = LeastSquares(features, targets=3, forgetting=forgetting)
        run, (_, outputs) = learner.scan(learner.init(), jnp.asarray(xs), jnp.asarray(targets), outputs=True)
        seen = rows_of(features, xs)
    penalty, gram, moments = np.diag(1 / features.prior), 0, 0
    for t, (row, target) in enumerate(zip(seen, targets, strict=True)):
        weights = np.linalg.solve(penalty + gram, moments + np.zeros((len(row), 3)))
        assert outputs[t] == pytest.approx(row @ weights, abs=1e-9)
        if not np.isnan(target).any():
            penalty, gram = forgetting * penalty, forgetting * gram + np.outer(row, row)
            moments = forgetting * moments + np.outer(row, target)
    assert run.weights == pytest.approx(np.linalg.solve(penalty + gram, moments), abs=1e-9)
    root = np.asarray(run.root)
    assert root @ root.T == pytest.approx(np.linalg.inv(penalty + gram), abs=1e-9)


def test_it_stays_finite_where_inputs_say_nothing():
    # Two equal columns, of which one stands still for a long time: forgetting alone would let the covariance overflow.
    rng = np.random.default_rng(0)
    wave = np.sin(np.arange(60_000) / 7)
    wave[20_000:50_000] = 0
    xs = np.stack([wave, wave], axis=1).astype(np.float32)
    targets = (wave + 0.01 * rng.normal(size=len(wave)))[:, None].astype(np.float32)
    learner = LeastSquares(lags(2, 8), targets=1, forgetting=0.99)
    run, losses = learner.scan(learner.init(), xs, targets)
    assert np.isfinite(run.root).all()
    assert run.size < LARGEST / 0.99
    assert np.mean(losses[-1000:]) < 1e-3


def test_a_limit_keeps_an_outlier_from_spoiling_what_was_learned():
    rng = np.random.default_rng(1)
    xs = rng.normal(size=(2_000, 1)).astype(np.float32)
    targets = (2 * xs + 0.1 * rng.normal(size=xs.shape)).astype(np.float32)
    targets[1_000] = 100.0
    after = {}
    for limit in (np.inf, 5.0):
        learner = LeastSquares(lags(1, 1), targets=1, forgetting=0.98, limit=limit)
        _, losses = learner.scan(learner.init(), xs, targets)
        after[limit] = float(np.mean(losses[1_001:1_050]))
    assert after[5.0] < after[np.inf] / 10


def test_without_learning_only_the_state_moves():
    rng = np.random.default_rng(2)
    xs = rng.normal(size=(50, 1)).astype(np.float32)
    learner = LeastSquares(lags(1, 4), targets=1)
    run, _ = learner.scan(learner.init(), xs[:30], 3 * xs[:30])
    after, outputs = learner.forward(run, xs[30:])
    assert np.array_equal(after.weights, run.weights)
    assert outputs == pytest.approx(rows_of(learner.features, xs)[30:] @ np.asarray(run.weights), abs=1e-5)
    assert np.array_equal(learner.reset(after).state, np.zeros((4, 1)))


def test_forgetting_is_a_share():
    with pytest.raises(ModelError, match="above 0 and at most 1"):
        LeastSquares(lags(1, 1), 1, forgetting=1.5)
