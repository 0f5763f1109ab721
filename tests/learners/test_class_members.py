"""Members of the mixture for classes, compared with slow references: neighbours, temperatures, random features."""

import numpy as np
import pytest

from norewind.learners import neighbours
from norewind.learners.calibrated import KEPT_CURVATURE, PRIOR_CURVATURE, Calibrated
from norewind.learners.class_least_squares import ClassLeastSquares
from norewind.learners.learner import Forecasts
from norewind.learners.neighbours import ClassNeighbours
from norewind.learners.random_features import WIDTHS, RandomFeatures
from norewind.testing import check_learner

ROWS = 120


def table(steps=(0,), seed=0):
    """Rows whose class depends on the product of their inputs; some classes are unknown."""
    random = np.random.default_rng(seed)
    xs = random.normal(size=(ROWS, 3)).astype(np.float32)
    classes = (xs[:, 0] * xs[:, 1] > 0) + (xs[:, 2] > 1.0).astype(np.float32)
    classes[[7, 50]] = np.nan
    return xs, np.repeat(classes[:, None], len(steps), axis=1).astype(np.float32)


def members(steps):
    features = RandomFeatures(ClassLeastSquares(16, 3, steps=steps), 2, 16)
    return {"neighbours": ClassNeighbours(2, 3, steps=steps, window=40), "features": features}


@pytest.mark.parametrize("name", ["neighbours", "features"])
@pytest.mark.parametrize("steps", [(0,), (1, 3)])
def test_they_are_learners(name, steps):
    learner, (xs, targets) = members(steps)[name], table(steps)
    check_learner(learner, learner.init(), xs, targets)
    calibrated = Calibrated(learner, 3)
    check_learner(calibrated, calibrated.init(), xs, targets)


def votes(xs, classes, row, step, window):
    """The probabilities of three classes by the nearest rows whose class has come, latest first."""
    latest = row - max(step, 1)
    places = [place for place in range(latest, max(-1, latest - window), -1) if not np.isnan(classes[place + step])]
    sizes = ((xs[places] - xs[row]) ** 2).sum(axis=1)
    nearest = np.argsort(sizes, kind="stable")[: neighbours.NEIGHBOURS]
    shares = np.full(3, neighbours.PRIOR_VOTES / 3)
    for one in nearest:
        full = len(nearest) == neighbours.NEIGHBOURS
        ratio = sizes[nearest[-1]] / max(sizes[one], neighbours.SMALLEST)
        shares[int(classes[places[one] + step])] += min(ratio, neighbours.LARGEST_VOTE) if full else 1
    return shares / shares.sum()


@pytest.mark.parametrize("step", [0, 1, 3])
def test_neighbours_are_those_of_a_slow_search(step):
    xs, targets = table()
    learner = ClassNeighbours(2, 3, steps=(step,), window=40)
    _, losses, (made, due) = learner.scan(learner.init(), xs, targets, outputs=True)
    for row in range(ROWS):
        expected = votes(xs[:, :2], targets[:, 0], row, step, 40)
        np.testing.assert_allclose(np.exp(made[row]), expected, rtol=1e-4, err_msg=str(row))
    assert losses[-1] == pytest.approx(-due[-1, int(targets[-1, 0])])


def test_temperatures_are_those_of_newton_steps_and_make_logits_calibrated():
    random, steps = np.random.default_rng(1), 2_000
    logits = random.normal(size=(steps, 3)) * 2
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    classes = (shares.cumsum(axis=1) < random.random((steps, 1))).sum(axis=1)

    class Given(ClassNeighbours):
        def scan(self, run, xs, targets, *, count=None, outputs=False):
            return run, np.zeros(len(xs), np.float32), Forecasts(xs, xs)

    learner = Calibrated(Given(3, 3), 3)
    raw = (3 * logits).astype(np.float32)  # three times too sure
    run, _, (made, _) = learner.scan(learner.init(), raw, classes[:, None], outputs=True)
    assert run.temperatures[0, 0] == pytest.approx(1 / 3, abs=0.05)
    factor, curvature = 1.0, PRIOR_CURVATURE
    for row in range(steps):
        np.testing.assert_allclose(made[row], factor * raw[row], rtol=1e-4)
        share = np.exp(factor * raw[row].astype(float))
        share /= share.sum()
        mean = share @ raw[row]
        curvature = KEPT_CURVATURE * curvature + share @ raw[row] ** 2 - mean**2 + 1 - KEPT_CURVATURE
        factor = min(max(factor - (mean - raw[row, classes[row]]) / curvature, 0.05), 20)


def test_products_of_random_features_are_gaussian_kernels():
    xs = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)
    features = RandomFeatures(ClassLeastSquares(20_000, 2), 2, 20_000).features_of(xs)
    distances = ((xs[:, None, :2] - xs[None, :, :2]) ** 2).sum(axis=-1)
    kernels = np.mean([np.exp(-distances / (2 * width * 4)) for width in WIDTHS], axis=0)
    np.testing.assert_allclose(features @ features.T / 20_000, kernels, atol=0.03)
