"""Members of the mixture for classes, compared with slow references: neighbours, temperatures, random features."""

import numpy as np
import pytest

from norewind.learners import neighbours
from norewind.learners.calibrated import KEPT_CURVATURE, PRIOR_CURVATURE, CalibratedLearner
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
    return {"neighbours": ClassNeighbours(2, 3, steps=steps, windows=(20, 40)), "features": features}


@pytest.mark.parametrize("name", ["neighbours", "features"])
@pytest.mark.parametrize("steps", [(0,), (1, 3)])
def test_they_are_learners(name, steps):
    learner, (xs, targets) = members(steps)[name], table(steps)
    check_learner(learner, learner.init(), xs, targets)
    calibrated = CalibratedLearner(learner, 3, forecasts=2 if name == "neighbours" else 1)
    check_learner(calibrated, calibrated.init(), xs, targets)


def votes(xs, classes, row, step, window, scales):
    """The probabilities of three classes by the nearest rows whose class has come, latest first."""
    latest = row - max(step, 1)
    places = [place for place in range(latest, max(-1, latest - window), -1) if not np.isnan(classes[place + step])]
    sizes = (scales * (xs[places] - xs[row]) ** 2).sum(axis=1)
    nearest = np.argsort(sizes, kind="stable")[: neighbours.NEIGHBOURS]
    shares = np.full(3, neighbours.PRIOR_VOTES / 3)
    for one in nearest:
        full = len(nearest) == neighbours.NEIGHBOURS
        ratio = sizes[nearest[-1]] / max(sizes[one], neighbours.SMALLEST)
        shares[int(classes[places[one] + step])] += min(ratio, neighbours.LARGEST_VOTE) if full else 1
    return shares / shares.sum()


def relevance_after(xs, classes, row, relevance, scales, kept):
    """The relevance of each input after a row, among those whose inputs are kept."""
    if np.isnan(classes[row]):
        return relevance
    known = [place for place in range(max(0, row - kept), row) if not np.isnan(classes[place])]
    sizes = {place: (scales * (xs[place] - xs[row]) ** 2).sum() for place in known}
    same = [place for place in known if classes[place] == classes[row]]
    other = [place for place in known if classes[place] != classes[row]]
    if not same or not other:
        return relevance
    near, far = min(same, key=sizes.__getitem__), min(other, key=sizes.__getitem__)
    margin = np.abs(xs[far] - xs[row]) - np.abs(xs[near] - xs[row])
    return relevance + neighbours.RELEVANCE_RATE * (margin - relevance)


@pytest.mark.parametrize("step", [0, 1, 3])
def test_neighbours_are_those_of_a_slow_search(step):
    xs, targets = table()
    learner = ClassNeighbours(2, 3, steps=(step,), windows=(20, 40))
    run, losses, (made, due) = learner.scan(learner.init(), xs, targets, outputs=True)
    relevance = np.zeros(2)
    for row in range(ROWS):
        scales = (np.maximum(relevance, 0) + neighbours.PRIOR_RELEVANCE) ** 2
        scales /= (max(relevance.max(), 0) + neighbours.PRIOR_RELEVANCE) ** 2
        for place, window in enumerate(learner.windows):
            expected = votes(xs[:, :2], targets[:, 0], row, step, window, scales)
            found = np.exp(made[row, 3 * place : 3 * place + 3])
            np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=f"{row}, {window}")
        if step == 0:
            relevance = relevance_after(xs[:, :2], targets[:, 0], row, relevance, scales, learner.ring - 1)
    np.testing.assert_allclose(run.relevance, relevance, rtol=1e-4)
    assert losses[-1] == pytest.approx(-due[-1, 3 + int(targets[-1, 0])])


def test_an_input_that_says_nothing_loses_its_weight():
    random = np.random.default_rng(3)
    xs = random.normal(size=(2_000, 3)).astype(np.float32)
    learner = ClassNeighbours(3, 2)
    run, _, _ = learner.scan(learner.init(), xs, (xs[:, :1] * xs[:, 1:2] > 0).astype(np.float32))
    scales = np.empty(3, np.float32)
    neighbours.write_scales(run.relevance, scales)
    assert scales[2] < scales[:2].min() / 4


def test_temperatures_are_those_of_newton_steps_and_make_logits_calibrated():
    random, steps = np.random.default_rng(1), 2_000
    logits = random.normal(size=(steps, 3)) * 2
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    classes = (shares.cumsum(axis=1) < random.random((steps, 1))).sum(axis=1)

    class Given(ClassNeighbours):
        def scan(self, run, xs, targets, *, count=None, outputs=False):
            return run, np.zeros(len(xs), np.float32), Forecasts(xs, xs)

    learner = CalibratedLearner(Given(3, 3), 3)
    raw = (3 * logits).astype(np.float32)  # three times too sure
    run, _, (made, _) = learner.scan(learner.init(), raw, classes[:, None], outputs=True)
    assert run.temperatures[0, 0, 0] == pytest.approx(1 / 3, abs=0.05)
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
