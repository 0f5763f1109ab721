"""Averages of predictions by their absolute errors: the proven bound, on streams made to break it."""

import math

import numpy as np
import pytest

from norewind.forecasting.hedge import Hedge

RNG = np.random.default_rng(0)
ROWS = 400


def alternating(hedge, row):
    """The predictor with the larger weight is wrong."""
    return [0.0, 1.0], float(hedge.mixed([0.0, 1.0]) < 0.5)


def late(hedge, row):
    """The predictor that was better at first is worse later."""
    return [0.0, 1.0], float(row >= ROWS / 4)


def growing(hedge, row):
    return [0.0, 1.5**row], 1.5**row * (row % 3 > 0)


def small(hedge, row):
    return [0.0, 1e-300], 1e-300 * (row % 2)


def random(hedge, row):
    return RNG.normal(size=3).tolist(), RNG.standard_cauchy()


@pytest.mark.parametrize("stream", [alternating, late, growing, small, random])
def test_the_bound_holds(stream):
    predictors = 3 if stream is random else 2
    hedge, total, own, ranges = Hedge(predictors), 0.0, np.zeros(predictors), []
    for row in range(ROWS):
        predictions, target = stream(hedge, row)
        total += abs(hedge.mixed(predictions) - target)
        errors = np.abs(np.array(predictions) - target)
        own += errors
        ranges.append(float(np.ptp(errors)))
        hedge.learn(predictions, target)
    entropy = math.log(predictors)
    bound = math.hypot(*ranges) * math.sqrt(entropy) + max(ranges) * (4 / 3 * entropy + 2)
    assert total <= own.min() + bound
    # Without weights, the mean of the two would be far outside on the stream with a clear winner.
    assert stream is not late or own.mean() > own.min() + bound


def test_equal_predictors_stay_equal_and_one_that_is_right_takes_all():
    hedge = Hedge(2)
    assert hedge.mixed([0.0, 1.0]) == 0.5
    hedge.learn([2.0, 2.0], 5.0)
    assert hedge.mixed([0.0, 1.0]) == 0.5
    for _ in range(5):
        hedge.learn([1.0, 3.0], 3.0)
    assert hedge.mixed([0.0, 1.0]) > 0.99
