"""Forecasts of quantiles: their coverage on several distributions, their bound on any stream, and what they improve."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from norewind.learners.intervals import GAIN, MAX_THRESHOLD
from norewind.learners.least_squares import LeastSquares
from norewind.learners.number_mixture import NumberMixture
from norewind.learners.quantiles import QuantileLearner, pinball
from norewind.testing import check_learner

ROWS, BURN_IN = 6_000, 1_000
NOISE = {
    "normal": lambda rng, rows: rng.normal(size=rows),
    "heavy tails": lambda rng, rows: rng.standard_t(1.5, size=rows) / 4,
    "skewed": lambda rng, rows: rng.lognormal(0, 1, size=rows) - 1.6,
    "heavy tail on one side": lambda rng, rows: rng.pareto(1.5, size=rows) / 4 - 0.3,
    "uniform": lambda rng, rows: rng.uniform(-1, 1, size=rows),
    "two clusters": lambda rng, rows: rng.choice([-2, 1], size=rows) + 0.1 * rng.normal(size=rows),
}


def forecasts_of(series, quantile, steps=(1,)):
    """Return the forecasts of a quantile by least squares, each next to the row that it is of."""
    learner = QuantileLearner(LeastSquares(1, 1, steps=steps, lags=2, limit=5.0), quantile, targets=1)
    xs = series[:, None].astype(np.float32)
    targets = np.tile(xs, len(steps))
    start = learner.init(learner.learner.learner.init())
    _, losses, outputs = learner.scan(start, xs, targets)
    errors = targets - outputs.due
    known = np.arange(len(xs))[:, None] >= np.array(steps)
    expected = (pinball(errors.astype(np.float64), quantile) / 2).sum(axis=1)
    np.testing.assert_allclose(losses[max(steps) :], expected[max(steps) :], rtol=1e-5)
    return errors, known


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_as_many_targets_are_below_as_the_quantile_says(kind, quantile):
    rng = np.random.default_rng(0)
    series = NOISE[kind](rng, ROWS)
    # A level that the learner can forecast, below the noise.
    series[1:] += 0.5 * np.tanh(series[:-1])
    errors, _ = forecasts_of(series, quantile, (1, 4))
    below = (errors[BURN_IN:] <= 0).mean(axis=0)
    np.testing.assert_allclose(below, quantile, atol=0.02)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(-90, 90, width=32), min_size=30, max_size=80),
    quantile=st.sampled_from([0.05, 0.5, 0.9]),
    step=st.sampled_from([1, 3]),
)
def test_the_number_of_targets_below_is_bounded_for_every_stream(values, quantile, step):
    errors, known = forecasts_of(np.array(values), quantile, (step,))
    below = (errors[step:, 0] < 0).sum()
    targets = known.sum()
    assert below <= quantile * targets + 2 * MAX_THRESHOLD * np.sqrt(step) / GAIN + (1 - quantile) * step


@pytest.mark.parametrize("kind", ["skewed", "heavy tail on one side"])
def test_the_median_has_smaller_absolute_errors_than_the_mean(kind):
    series = NOISE[kind](np.random.default_rng(1), ROWS)
    errors, _ = forecasts_of(series, 0.5)
    learner = LeastSquares(1, 1, steps=(1,), lags=2, limit=5.0)
    xs = series[:, None].astype(np.float32)
    _, _, plain = learner.scan(learner.init(), xs, xs)
    mean = np.abs(xs - plain.due)[BURN_IN:].mean()
    assert np.abs(errors[BURN_IN:]).mean() < 0.95 * mean


def test_it_is_a_learner_and_its_parts_add_up():
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(60, 2)).astype(np.float32)
    mixture = NumberMixture(2, 1, steps=(1, 3), known=(0,))
    learner = QuantileLearner(mixture, 0.8, targets=1)
    start = learner.init(mixture.init())
    check_learner(learner, start, xs, np.tile(xs[:, :1], 2))
    run, _, outputs = learner.scan(learner.init(mixture.init()), xs, np.tile(xs[:, :1], 2))
    np.testing.assert_allclose(sum(learner.explain(run).parts.values()), outputs.made[-1], atol=1e-6)
