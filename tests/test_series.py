"""Forecasts of series by experts: what is mixed, and that nothing comes from the future."""

import jax.numpy as jnp
import numpy as np
import pytest

from norewind.learners import densities
from norewind.learners.series import PERIODS, Series, linear_members

HORIZON = 6


def waves(rows, seed=0):
    rng = np.random.default_rng(seed)
    day = np.sin(np.arange(rows) * 2 * np.pi / 24)
    return np.stack([day + 0.1 * rng.normal(size=rows), rng.normal(size=rows).cumsum() / 10], 1).astype(np.float32)


def targets_of(xs):
    """What comes with each row; the first rows were not forecast."""
    targets = xs.copy()
    targets[:HORIZON] = np.nan
    return targets


MEMBERS = linear_members(2, 2, HORIZON)[-3:]


def learner(gaussian=False):
    return Series(MEMBERS, 2, HORIZON, known=[0, 1], gaussian=gaussian)


def test_the_weights_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    forecasts, targets = rng.normal(size=(40, 3, 2)), rng.normal(size=(40, 2))
    targets[5, 1] = np.nan
    due = np.concatenate([np.zeros((2, 3, 2)), forecasts])[:40]
    weighing, (means, variances) = densities.scan(densities.fresh(3, 2), due, targets, forecasts, 40)
    spread, record, count = np.ones((3, 2)), np.zeros((3, 2)), np.zeros(2)
    for t in range(40):
        for k in range(2):
            if not np.isnan(targets[t, k]):
                count[k] += 1
                errors = (due[t, :, k] - targets[t, k]) ** 2
                spread[:, k] += max(1 / (count[k] + 1), 0.01) * (errors - spread[:, k])
                record[:, k] = 0.99 * record[:, k] + 0.1 * (errors / spread[:, k] + np.log(spread[:, k]))
            weights = np.exp(-record[:, k] / 2) / np.exp(-record[:, k] / 2).sum()
            mean = weights @ forecasts[t, :, k]
            assert means[t, k] == pytest.approx(mean, abs=1e-5)
            assert variances[t, k] == pytest.approx(
                weights @ (spread[:, k] + (forecasts[t, :, k] - mean) ** 2), abs=1e-4
            )
    assert np.array_equal(weighing.known, [40, 39])


def test_an_expert_that_fails_does_not_take_the_others_along():
    forecasts = jnp.array([[jnp.nan], [jnp.inf], [1.0]])
    weighing = densities.fresh(3, 1)
    for _ in range(300):
        weighing = densities.learned(weighing, forecasts, jnp.array([1.0]))
    mean, variance = densities.mixed(weighing, forecasts)
    assert mean == pytest.approx([1.0], abs=1e-3)
    assert np.isfinite(variance).all()


def test_chunks_and_their_filling_change_nothing():
    xs = waves(300)
    targets = targets_of(xs)
    series = learner()
    whole, (losses, (made, due)) = series.scan(series.init(), xs, targets, outputs=True)
    run, parts = series.init(), []
    for start, count in ((0, 70), (70, 100), (170, 3), (173, 100), (273, 27)):
        chunk = np.zeros((2, 100, 2), np.float32)
        chunk[0, :count], chunk[1, :count] = xs[start : start + count], targets[start : start + count]
        run, seen = series.scan(run, *chunk, count=count, outputs=True)
        parts.append((seen[0][:count], seen[1][0][:count], seen[1][1][:count]))
    for expected, found in zip((losses, made, due), zip(*parts, strict=True), strict=True):
        assert np.concatenate(found) == pytest.approx(expected, abs=1e-5)
    for a, b in zip(whole.waiting, run.waiting, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


def test_nothing_comes_from_the_future():
    xs = waves(200)
    other = xs.copy()
    other[120:] = 9 * waves(80, seed=1)
    series = learner()
    _, (_, (made, _)) = series.scan(series.init(), xs, targets_of(xs), outputs=True)
    _, (_, (changed, _)) = series.scan(series.init(), other, targets_of(other), outputs=True)
    assert np.array_equal(made[:120], changed[:120])
    assert not np.array_equal(made[120], changed[120])


def test_simple_rules_are_among_the_experts():
    xs = waves(400)
    series = Series([], 2, HORIZON, known=[0, 1])
    run, forecasts = series.init(), []
    for start in (0, 200):
        made, past = series._forecasts(run, xs[start : start + 200], [], 200)
        run = run._replace(history=past)
        forecasts.append(made)
    made = np.concatenate(forecasts)
    assert np.array_equal(made[:, 0], 0 * xs)
    assert np.array_equal(made[:, 1], xs)
    for number, period in enumerate(series.periods):
        assert period in PERIODS
        # At row t, the row that is to be forecast, one period before.
        assert np.array_equal(made[period:, 2 + number], xs[HORIZON : HORIZON + 400 - period])


def test_the_variance_it_forecasts_is_that_of_its_errors():
    xs = waves(3_000)
    series = learner(gaussian=True)
    _, (losses, (_, due)) = series.scan(series.init(), xs, targets_of(xs), outputs=True)
    variance = np.exp(10 * np.tanh(due[1_000:, 2:] / 10))
    errors = (due[1_000:, :2] - xs[1_000:]) ** 2
    assert np.mean(errors / variance, axis=0) == pytest.approx([1, 1], abs=0.3)
    nats = 0.5 * (errors / variance + np.log(2 * np.pi * variance)).sum(axis=1)
    assert losses[1_000:] == pytest.approx(nats, abs=1e-4)


def test_without_learning_the_weights_stay():
    xs = waves(150)
    series = learner()
    run, _ = series.scan(series.init(), xs[:100], targets_of(xs)[:100])
    after, (made, due) = series.forward(run, xs[100:])
    assert np.array_equal(after.weighing.records, run.weighing.records)
    _, (_, (taught, _)) = series.scan(run, xs[100:], xs[100:], outputs=True)
    assert made[0] == pytest.approx(taught[0], abs=0.3)
    assert np.array_equal(due[HORIZON:], made[:-HORIZON])
    again = series.reset(after)
    assert not np.any(again.waiting)


def test_labels_of_the_same_row_are_forecast_before_they_are_seen():
    rng = np.random.default_rng(4)
    xs = rng.normal(size=(400, 2)).astype(np.float32)
    labels = (xs @ np.array([[1.0], [-2.0]]) + 0.1 * rng.normal(size=(400, 1))).astype(np.float32)
    series = Series(linear_members(2, 1, 0)[-2:], 1, 0)
    _, (losses, made) = series.scan(series.init(), xs, labels, outputs=True)
    assert losses == pytest.approx(0.5 * np.sum((made - labels) ** 2, axis=1), abs=1e-5)
    assert np.mean(losses[-100:]) < 0.02
    other = labels.copy()
    other[200] += 5
    _, (_, changed) = series.scan(series.init(), xs, other, outputs=True)
    assert np.array_equal(made[:201], changed[:201])
    assert not np.array_equal(made[201], changed[201])
