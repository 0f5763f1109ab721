"""Neighbours for numbers, compared with a slow search."""

import numpy as np

from norewind.learners import neighbours
from norewind.learners.least_squares import LeastSquares
from norewind.learners.number_neighbours import NumberNeighbours
from norewind.learners.random_features import RandomFeatures
from norewind.testing import check_learner

ROWS, WINDOWS = 90, (15, 40)


def table():
    """Rows with two targets, some of which are unknown; the last input says nothing."""
    random = np.random.default_rng(0)
    xs = random.normal(size=(ROWS, 3)).astype(np.float32)
    targets = np.stack([xs[:, 0] * xs[:, 1], np.abs(xs[:, 0])], axis=1).astype(np.float32)
    targets[[5, 33], 0] = np.nan
    return xs, targets


def test_they_are_learners():
    learner = NumberNeighbours(2, 2, windows=WINDOWS)
    check_learner(learner, learner.init(), *table())
    features = RandomFeatures(LeastSquares(16, 2), 2, 16)
    check_learner(features, features.init(), *table())


def test_predictions_are_means_over_a_slow_search():
    xs, targets = table()
    learner = NumberNeighbours(2, 2, windows=WINDOWS)
    _, losses, (made, _) = learner.scan(learner.init(), xs, targets)
    for row in range(ROWS):
        for place, window in enumerate(WINDOWS):
            known = [i for i in range(row - 1, max(-1, row - 1 - window), -1) if not np.isnan(targets[i]).any()]
            sizes = ((xs[known, :2] - xs[row, :2]) ** 2).sum(axis=1)
            nearest = np.argsort(sizes, kind="stable")[: neighbours.NEIGHBOURS]
            weights = np.ones(len(nearest))
            if len(nearest) == neighbours.NEIGHBOURS:
                weights = np.minimum(sizes[nearest[-1]] / sizes[nearest], neighbours.LARGEST_VOTE)
            total = neighbours.PRIOR_VOTES + weights.sum()
            mean = sum((w * targets[known[i]] for w, i in zip(weights, nearest, strict=True)), np.zeros(2)) / total
            np.testing.assert_allclose(made[row, 2 * place : 2 * place + 2], mean, rtol=1e-4, atol=1e-6)
    expected = np.nansum((made[:, 2:] - targets) ** 2, axis=1) / 2
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
