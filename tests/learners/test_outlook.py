"""Least squares on the outlook: compared with a slow reference, and better than without where the calendar counts."""

import numpy as np
import pytest

from norewind.core.checks import ModelError
from norewind.learners import LeastSquares, outlook
from norewind.learners.intervals import IntervalLearner
from norewind.learners.linear import Linear
from norewind.learners.mixture import Member
from norewind.learners.number_mixture import NumberMixture
from norewind.learners.outlook import OutlookLearner, feature_count, write_outlook
from norewind.learners.outlook_shape import OutlookShape
from norewind.learners.quantiles import QuantileLearner
from norewind.testing import check_learner

STEPS = (1, 2, 24)
HOURLY = OutlookShape(("hour", "weekday"))


def series(rows, targets=1, seed=0):
    """Rows with a pattern of the hour and the weekday, their targets for all steps, and one other input."""
    random = np.random.default_rng(seed)
    hour, weekday = np.arange(rows) % 24, np.arange(rows) // 24 % 7
    pattern = random.normal(size=(7, 24, targets))[weekday, hour]
    values = pattern + 0.3 * random.normal(size=(rows, targets))
    blocks = [np.stack([(hour + ahead) % 24, (np.arange(rows) + ahead) // 24 % 7], 1) for ahead in (0, *STEPS)]
    xs = np.concatenate([values, random.normal(size=(rows, 1)), *blocks], axis=1).astype(np.float32)
    return xs, np.tile(values, len(STEPS)).astype(np.float32)


def learner_of(targets=1, shape=HOURLY):
    return OutlookLearner(targets + 1, targets, STEPS, range(targets), shape)


def member_of(learner):
    return Member(learner, learner.init(), learner.names)


@pytest.mark.parametrize("targets", [1, 2])
def test_a_mixture_with_it_is_a_learner(targets):
    learner, (xs, ys) = learner_of(targets), series(120, targets)
    ys[[30, 31], 0] = np.nan
    xs[60:63, -2:] = np.nan
    mixture = NumberMixture(targets + 1, targets, steps=STEPS, members=[member_of(learner)], known=range(targets))
    check_learner(mixture, mixture.init(), xs, ys)


def with_features(block):
    """A constant and the features of an outlook, as a slow reference sees them."""
    hour, weekday = map(int, block)
    features = np.zeros(1 + 24 + 7 + 24 * 7)
    features[[0, 1 + hour, 25 + weekday, 32 + 24 * weekday + hour]] = 1
    return features


def ridge(features, values, forgetting, prior):
    """The weights of a ridge regression in which older rows count less."""
    weights = forgetting ** np.arange(len(features) - 1, -1, -1)
    left = features.T * weights
    return np.linalg.solve(left @ features + forgetting ** len(features) * np.diag(1 / prior), left @ values)


def test_it_equals_ridge_regressions_that_are_solved_anew_at_every_row(monkeypatch):
    monkeypatch.setattr(outlook, "REMAINDERS", (Linear(1, 0.998, spread=30.0),))
    (xs, ys), learner = series(150), learner_of()
    _, _, (made, _) = learner.scan(learner.init(), xs, ys)
    blocks = xs[:, 2:].reshape(len(xs), 1 + len(STEPS), 2)
    features = np.array([[with_features(block) for block in row] for row in blocks])
    prior, explained = np.append(0.1, np.ones(features.shape[2] - 1)), np.zeros((len(xs), 1 + len(STEPS)))
    for t in range(len(xs)):
        weights = ridge(features[: t + 1, 0], xs[: t + 1, 0].astype(float), 0.9995, prior)
        explained[t] = features[t] @ weights
    seen = np.stack([np.ones(len(xs)), xs[:, 0] - explained[:, 0], xs[:, 1]], axis=1)
    for place, step in enumerate(STEPS):
        for t in range(step, len(xs), 7):
            errors = xs[step : t + 1, 0] - explained[: t + 1 - step, 1 + place]
            weights = ridge(seen[: t + 1 - step], errors, 0.998, np.array([0.3, 3.0, 3.0]))
            assert made[t, place] == pytest.approx(explained[t, 1 + place] + seen[t] @ weights, abs=2e-4)


def test_between_whole_hours_it_interpolates():
    places, features = np.array([0, -1, -1, -1, 1]), np.empty(24 + 1 + 24)
    assert feature_count(places, 0) == len(features)
    assert write_outlook(places, np.array([23.25, 1.0]), features)
    assert {place: features[place] for place in np.flatnonzero(features)} == {
        **{23: 0.75, 0: 0.25, 24: 1.0, 25 + 23: 0.75, 25: 0.25}
    }


def test_columns_known_in_advance_are_features_also_squared():
    places, features = np.array([0, -1, -1, -1, -1]), np.empty(24 + 2 * 2)
    assert feature_count(places, 2) == len(features)
    assert write_outlook(places, np.array([5.0, -2.0, 40.0]), features)
    assert features[24:].tolist() == [-2.0, 4.0, 10.0, 10.0]


def test_without_an_outlook_it_makes_no_forecast_and_learns_nothing():
    (xs, ys), learner = series(200), learner_of()
    run, _, _ = learner.scan(learner.init(), xs[:100], ys[:100])
    before = run.first.weights.copy()
    xs[100:, 2:] = np.nan
    run, _, (made, _) = learner.scan(run, xs[100:], ys[100:])
    assert np.isnan(made).all()
    np.testing.assert_array_equal(run.first.weights, before)


def test_a_mixture_uses_it_where_the_calendar_counts():
    xs, ys = series(24 * 7 * 6)
    losses = {}
    for members in ((), (member_of(learner_of()),)):
        mixture = NumberMixture(2, 1, steps=STEPS, members=members, known=(0,), models=[Linear(24)])
        _, found, _ = mixture.scan(mixture.init(), xs, ys)
        losses[len(members)] = found[len(found) // 2 :].mean()
    # Nobody can forecast the noise.
    floor = len(STEPS) * 0.3**2 / 2
    assert losses[1] - floor < 0.75 * (losses[0] - floor)


PRICES = OutlookShape((), 1)


def wrapped(kind):
    """A mixture that knows a price in advance, alone or inside another learner, and its run."""
    learner = learner_of(shape=PRICES)
    mixture = NumberMixture(
        2,
        1,
        steps=STEPS,
        models=[Linear(4, 0.998)],
        members=[member_of(learner)],
        known=[0],
        gaussian="gaussian" in kind,
    )
    if "quantile" in kind:
        quantiles = QuantileLearner(mixture, 0.9, targets=1)
        return quantiles, quantiles.init(mixture.init())
    if "interval" in kind:
        intervals = IntervalLearner(mixture, [0.8, 0.95], targets=1, gaussian="gaussian" in kind)
        return intervals, intervals.init(mixture.init())
    return mixture, mixture.init()


@pytest.mark.parametrize("kind", ["mixture", "gaussian", "interval", "gaussian interval", "quantile"])
def test_another_plan_at_the_latest_row_gives_the_forecasts_as_if_it_had_been_known_there(kind):
    random = np.random.default_rng(0)
    price = random.normal(size=200 + max(STEPS))
    load = 2 * price[:200] + 0.3 * random.normal(size=200)
    ahead = np.arange(200)[:, None] + [0, *STEPS]
    xs = np.column_stack([load, random.normal(size=200), price[ahead]]).astype(np.float32)
    ys = np.tile(load[:, None], len(STEPS)).astype(np.float32)
    other = xs.copy()
    other[-1, 3:] += [3, -3, 2]
    learner, run = wrapped(kind)
    planned, _, (made, _) = learner.scan(run, other, ys)
    expected = learner.upcoming(planned)
    learner, run = wrapped(kind)
    run, _, _ = learner.scan(run, xs, ys)
    before = learner.upcoming(run)
    replanned, again = learner.replan(run, other[-1])
    np.testing.assert_allclose(learner.upcoming(replanned), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(again, made[-1], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(learner.upcoming(run), before)
    assert abs(expected[0, 0] - before[0, 0]) > 3


def test_a_learner_that_knows_nothing_in_advance_cannot_plan():
    with pytest.raises(ModelError, match="LeastSquares knows nothing in advance"):
        LeastSquares(1, 1, steps=(1,)).replan((), np.zeros(1))
