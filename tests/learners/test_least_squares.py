"""Recursive least squares equals exact ridge regression, and all steps equal single ones."""

import numpy as np
import pytest

from norewind.core.checks import ModelError
from norewind.engines.kernels import kernel
from norewind.engines.vector_math import add_scaled, dot, exp_each, log_each, padded
from norewind.learners.least_squares import LeastSquares
from norewind.learners.linear import MAX_VARIANCE, Linear, init_linear, linear_plan, model_at, update
from norewind.testing import check_learner


def features_of(xs, lags):
    """Return the features: a constant and the latest rows, latest first."""
    past = np.concatenate([np.zeros((lags - 1, xs.shape[1])), xs])
    latest = [past[lags - 1 - lag : len(past) - lag] for lag in range(lags)]
    return np.concatenate([np.ones((len(xs), 1)), *latest], axis=1)


def prior_of(inputs, lags):
    return np.concatenate([[0.01], np.repeat(0.1 / (1 + np.arange(lags)), inputs)])


def covariance_of(learner, run):
    """U D Uᵀ."""
    features, width = learner.plan.sizes[0, :2]
    factors, start, columns = run.model.factors, 0, np.zeros((features, width))
    for j in range(features):
        columns[j, : padded(j + 1)] = factors[start : start + padded(j + 1)]
        start += padded(j + 1)
    columns, diagonal = columns[:, :features], factors[start : start + features]
    return columns.T @ np.diag(diagonal) @ columns


def test_vectors_of_eight_lanes():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 24)), rng.normal(size=48)
    row = a.copy()

    @kernel
    def both(a, b):
        add_scaled(a, 24, b, 8, 16, 0.5)
        return dot(a, 0, b, 16, 24)

    assert both(row, b) == pytest.approx(a[0] @ b[16:40], abs=1e-13)
    a[1, :16] += 0.5 * b[8:24]
    np.testing.assert_array_equal(row, a)


def test_exponentials_and_logarithms():
    rng = np.random.default_rng(1)
    numbers = np.concatenate([rng.uniform(-700, 700, 10_000), rng.uniform(-1, 1, 10_000), [0, -1e-300, -700, 700]])
    found = numbers.copy()
    exp_each(found, np.empty_like(found))
    np.testing.assert_allclose(found, np.exp(numbers), rtol=2e-14)
    positive = np.concatenate([np.exp(numbers), 1 + rng.uniform(-1e-3, 1e-3, 1_000), [1.0, 2.0, 0.5]])
    found = positive.copy()
    log_each(found, np.empty_like(found))
    np.testing.assert_allclose(found, np.log(positive), rtol=1e-15)


@pytest.mark.parametrize("forgetting", [1.0, 0.95])
def test_every_step_solves_the_weighted_ridge_regression(forgetting):
    rng = np.random.default_rng(3)
    xs, targets = rng.normal(size=(60, 2)).astype(np.float32), rng.normal(size=(60, 3)).astype(np.float32)
    targets[20] = np.nan
    targets[31:34] = np.nan
    learner = LeastSquares(2, 3, lags=3, forgetting=forgetting, together=True)
    run, losses, outputs = learner.scan(learner.init(), xs, targets, outputs=True)
    penalty, gram, moments = np.diag(1 / prior_of(2, 3)), 0, np.zeros((7, 3))
    for t, (row, target) in enumerate(zip(features_of(xs, 3), targets.astype(float), strict=True)):
        weights = np.linalg.solve(penalty + gram, moments)
        assert outputs.made[t] == pytest.approx(row @ weights, abs=1e-6)
        assert losses[t] == pytest.approx(0.5 * np.nansum((row @ weights - target) ** 2), abs=1e-5)
        if not np.isnan(target).any():
            penalty, gram = forgetting * penalty, forgetting * gram + np.outer(row, row)
            moments = forgetting * moments + np.outer(row, target)
    assert learner.weights(run) == pytest.approx(np.linalg.solve(penalty + gram, moments).T, abs=1e-12)
    assert covariance_of(learner, run) == pytest.approx(np.linalg.inv(penalty + gram), abs=1e-12)


def ridge(rows, targets, prior, forgetting):
    """Solve for the weights of one target from the rows in which it is known."""
    known = ~np.isnan(targets)
    rows, targets = rows[known], targets[known]
    age = forgetting ** np.arange(len(rows))[::-1, None]
    gram = forgetting ** len(rows) * np.diag(1 / prior) + (rows * age).T @ rows
    return np.linalg.solve(gram, (rows * age).T @ targets)


@pytest.mark.parametrize("forgetting", [1.0, 0.95])
def test_every_target_is_learned_from_the_rows_in_which_it_is_known(forgetting):
    rng = np.random.default_rng(4)
    xs, targets = rng.normal(size=(90, 2)).astype(np.float32), rng.normal(size=(90, 3)).astype(np.float32)
    # One target is rarely known, one is unknown for a long time, and one is always known; some rows have none.
    targets[rng.random(90) < 0.7, 0] = np.nan
    targets[20:60, 1] = np.nan
    targets[70:73] = np.nan
    rows = features_of(xs.astype(float), 3)
    exact = np.array([ridge(rows, one, prior_of(2, 3), forgetting) for one in targets.astype(float).T])
    learner = LeastSquares(2, 3, lags=3, forgetting=forgetting)
    run, _, _ = learner.scan(learner.init(), xs, targets)
    np.testing.assert_allclose(learner.weights(run), exact, rtol=0, atol=1e-12)
    # With a shared covariance, a row also counts for targets that are unknown in it.
    shared = LeastSquares(2, 3, lags=3, forgetting=forgetting, together=True)
    run, _, _ = shared.scan(shared.init(), xs, targets)
    off = np.abs(shared.weights(run) - exact).max(axis=1)
    assert (off[:2] > 0.01).all()
    assert off[2] < 1e-12


def test_targets_with_their_own_covariance_are_those_of_separate_learners():
    xs, options = two_columns(200), {"lags": 3, "forgetting": 0.99, "limit": 3.0}
    targets = np.tile(xs, 2)
    rng = np.random.default_rng(0)
    targets[rng.random(200) < 0.3, 0] = np.nan
    targets[rng.random(200) < 0.3, 3] = np.nan
    both = LeastSquares(2, 2, steps=(1, 4), **options)
    check_learner(both, both.init(), xs[:60], targets[:60])
    _, losses, (made, due) = both.scan(both.init(), xs, targets)
    total = 0
    for target in range(2):
        alone = LeastSquares(2, 1, steps=(1, 4), **options)
        _, lost, (own_made, own_due) = alone.scan(alone.init(), xs, targets[:, target::2])
        np.testing.assert_array_equal(made[:, target::2], own_made)
        np.testing.assert_array_equal(due[:, target::2], own_due)
        total = total + lost
    np.testing.assert_allclose(losses, total, rtol=1e-5)


@pytest.mark.usefixtures("x64")
def test_it_is_a_learner_in_double_precision_too():
    xs = two_columns(60).astype(np.float64)
    learner = LeastSquares(2, 2, steps=(1, 3), lags=3, forgetting=0.99)
    check_learner(learner, learner.init(), xs, np.tile(xs, 2))


@pytest.mark.parametrize("forgetting", [1.0, 0.9998])
def test_it_is_exact_over_many_badly_conditioned_rows(forgetting):
    # Smooth inputs: neighbouring lags are nearly the same.
    rng, time = np.random.default_rng(5), np.arange(100_000)
    wave = 7 * np.sin(time / 30) + 2 * np.sin(time / 11) + 4e-3 * rng.normal(size=len(time))
    xs = wave.astype(np.float32)[:, None]
    targets = np.roll(xs, -3, axis=0)
    learner = LeastSquares(1, 1, lags=24, forgetting=forgetting)
    run, _, _ = learner.scan(learner.init(), xs, targets)
    rows, age = features_of(xs.astype(float), 24), forgetting ** np.arange(len(xs))[::-1, None]
    gram = forgetting ** len(xs) * np.diag(1 / prior_of(1, 24)) + (rows * age).T @ rows
    assert np.linalg.cond(gram) > 3e6
    exact = np.linalg.solve(gram, (rows * age).T @ targets[:, 0].astype(float))
    off = learner.weights(run)[0] - exact
    assert np.sqrt(off @ gram @ off / (exact @ gram @ exact)) < 1e-10
    assert covariance_of(learner, run) @ gram == pytest.approx(np.eye(25), abs=1e-7)


STEPS = (1, 2, 5, 12)


def two_columns(rows, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 2)).astype(np.float32).cumsum(axis=0) / 10


def test_all_steps_together_equal_separate_learners():
    xs = two_columns(400)
    options = {"lags": 5, "forgetting": 0.99, "limit": 3.0}
    together = LeastSquares(2, 2, steps=STEPS, **options)
    targets = np.tile(xs, 4)
    run, losses, (made, due) = together.scan(together.init(), xs, targets, outputs=True)
    total = 0
    for place, step in enumerate(STEPS):
        alone = LeastSquares(2, 2, steps=(step,), **options)
        own, lost, (own_made, own_due) = alone.scan(alone.init(), xs, xs, outputs=True)
        block = slice(2 * place, 2 * place + 2)
        np.testing.assert_allclose(together.weights(run)[block], alone.weights(own), rtol=0, atol=1e-10)
        np.testing.assert_array_equal(made[:, block], own_made)
        np.testing.assert_array_equal(due[:, block], own_due)
        np.testing.assert_array_equal(due[step:, block], made[:-step, block])
        total = total + lost
    np.testing.assert_allclose(losses, total, rtol=1e-5)
    assert losses[0] == 0
    # Every future row has the forecast of the nearest step that reaches it.
    expected = [made[-1, :2], made[-1, 2:4], made[-3, 4:6], made[-2, 4:6], made[-1, 4:6]]
    expected += [made[-1 - late, 6:] for late in range(6, -1, -1)]
    np.testing.assert_array_equal(together.upcoming(run), expected)


def test_no_target_is_read_before_it_is_due():
    xs, later = two_columns(120), two_columns(120, seed=1)
    learner = LeastSquares(2, 2, steps=STEPS, lags=3)

    def made(inputs, targets):
        return learner.scan(learner.init(), inputs, targets, outputs=True)[2][0]

    expected = made(xs, np.tile(xs, 4))
    for t in (0, 40, 41, 119):
        targets = np.tile(xs, 4)
        targets[t:] = np.tile(later[t:], 4)
        changed = made(xs, targets)
        np.testing.assert_array_equal(changed[:t], expected[:t])
        # A target is read when its forecast is due; before the first step, there is no forecast to learn from.
        assert t == 0 or not np.array_equal(changed[t], expected[t])


def test_a_row_without_its_nearest_target_changes_nothing():
    xs = two_columns(60)
    learner = LeastSquares(2, 2, steps=(1, 3), forgetting=0.9, together=True)
    run, _, _ = learner.scan(learner.init(), xs[:40], np.tile(xs[:40], 2))
    factors, weights = run.model.factors.copy(), learner.weights(run).copy()
    unknown = np.tile(xs[40:41], 2)
    unknown[:, :2] = np.nan
    run, _, _ = learner.scan(run, xs[40:41], unknown)
    np.testing.assert_array_equal(run.model.factors, factors)
    np.testing.assert_array_equal(learner.weights(run)[:2], weights[:2])
    # The farther step learns from row 37, whose nearest target was known.
    assert not np.array_equal(learner.weights(run)[2:], weights[2:])
    run, _, _ = learner.scan(run, xs[41:42], np.full((1, 4), np.nan))
    weights = learner.weights(run).copy()
    run, _, _ = learner.scan(run, xs[42:43], np.tile(xs[42:43], 2))
    # Now it is due for row 39, whose nearest target was unknown.
    np.testing.assert_array_equal(learner.weights(run)[2:], weights[2:])
    assert not np.array_equal(learner.weights(run)[:2], weights[:2])


def test_weights_stay_finite_for_constant_inputs():
    # Two equal columns, one of which is constant for a long time: forgetting alone would make the covariance overflow.
    rng = np.random.default_rng(0)
    wave = np.sin(np.arange(60_000) / 7)
    wave[20_000:50_000] = 0
    xs = np.stack([wave, wave], axis=1).astype(np.float32)
    targets = (wave + 0.01 * rng.normal(size=len(wave)))[:, None].astype(np.float32)
    learner = LeastSquares(2, 1, lags=8, forgetting=0.99)
    run, losses, _ = learner.scan(learner.init(), xs[:50_000], targets[:50_000])
    covariance = covariance_of(learner, run)
    assert MAX_VARIANCE / 2 < np.trace(covariance) / prior_of(2, 8).sum() < 1.2 * MAX_VARIANCE
    _, losses, _ = learner.scan(run, xs[50_000:], targets[50_000:])
    assert np.mean(losses[-1000:]) < 1e-3


def test_larger_inputs_are_cut():
    xs = two_columns(100)
    wild, cut = xs.copy(), xs.copy()
    wild[[20, 50, 80], [0, 1, 0]] = 10.5, -1e9, np.inf
    cut[[20, 50, 80], [0, 1, 0]] = 10, -10, 10
    learner = LeastSquares(2, 2, steps=(1,), lags=2)
    _, _, (expected, _) = learner.scan(learner.init(), cut, xs)
    _, _, (made, _) = learner.scan(learner.init(), wild, xs)
    np.testing.assert_array_equal(made, expected)
    # Smaller inputs are not clipped.
    cut[20, 0] = 9.9
    assert not np.array_equal(learner.scan(learner.init(), cut, xs)[2].made, expected)


def test_inputs_and_targets_that_are_not_numbers_do_no_harm():
    xs = two_columns(200)
    targets = xs.copy()
    xs[50:60], targets[70] = np.nan, np.inf
    xs[90, 0] = -np.inf
    learner = LeastSquares(2, 2, steps=(1,), lags=2)
    _, losses, (made, _) = learner.scan(learner.init(), xs, targets, outputs=True)
    assert np.isfinite(losses).all()
    assert np.isfinite(made).all()


def test_a_limit_keeps_an_outlier_from_ruining_the_weights():
    rng = np.random.default_rng(1)
    xs = rng.normal(size=(2_000, 1)).astype(np.float32)
    targets = (2 * xs + 0.1 * rng.normal(size=xs.shape)).astype(np.float32)
    targets[1_000] = 100.0
    after = {}
    for limit in (np.inf, 5.0):
        learner = LeastSquares(1, 1, forgetting=0.98, limit=limit)
        _, losses, _ = learner.scan(learner.init(), xs, targets)
        after[limit] = float(np.mean(losses[1_001:1_050]))
    assert after[5.0] < after[np.inf] / 10


@pytest.mark.parametrize("steps", [(0,), (1,), STEPS])
def test_it_is_a_learner(steps):
    xs = two_columns(60)
    learner = LeastSquares(2, 2, steps=steps, lags=3, forgetting=0.99, limit=4.0)
    check_learner(learner, learner.init(), xs, np.tile(xs, len(steps)))


def test_a_new_sequence_knows_nothing_of_the_last_one():
    xs = two_columns(80)
    learner = LeastSquares(2, 2, steps=STEPS, lags=3)
    run, _, _ = learner.scan(learner.init(), xs, np.tile(xs, 4))
    weights = learner.weights(run).copy()
    run = learner.reset(run)
    run, losses, (made, due) = learner.scan(run, xs[:5], np.tile(xs[:5], 4), outputs=True)
    np.testing.assert_allclose(made[0], features_of(xs[:1].astype(float), 3)[0] @ weights.T, rtol=1e-5)
    assert losses[0] == 0
    assert not due[0].any()


def test_rows_without_an_earlier_forecast_are_not_learned_from():
    learner = LeastSquares(2, 2, steps=(1, 3), limit=5.0)
    run, losses, _ = learner.scan(learner.init(), two_columns(3), np.full((3, 4), 50, np.float32))
    np.testing.assert_array_equal(run.model.spreads[0, 2:], 1)
    assert run.model.spreads[0, 0] > 1
    assert not learner.weights(run)[2:].any()
    np.testing.assert_allclose(losses[0], 0)


def test_several_models_in_one_run_are_those_of_separate_runs():
    models = [Linear(2, 0.99), Linear(5, 1.0)]
    plan = linear_plan(models, 2, 1, (1, 2))
    run = init_linear(plan, models, 2, 1)
    gain = np.zeros(16)
    model = model_at(plan, run, 1)
    assert model.factors.shape == (8 * 8 + 3 * 16 + 16,)
    assert model.weights.shape == (2, 16)
    before = model_at(plan, run, 0).factors.copy()
    update(model.factors, 11, np.ones(16) * (np.arange(16) < 11), gain, 1.0, 1.0)
    np.testing.assert_array_equal(model_at(plan, run, 0).factors, before)
    prior = prior_of(2, 5)
    assert gain[:11] == pytest.approx(prior / (1 + prior.sum()), abs=1e-15)


def test_forgetting_is_a_share():
    with pytest.raises(ModelError, match="above 0 and at most 1"):
        LeastSquares(1, 1, forgetting=1.5)
