"""River's own checks of our models, and their use in River's pipelines and evaluation."""

import copy
import pickle

import numpy as np
import pytest

pytest.importorskip("river")
pytest.importorskip("sklearn")  # River's checks use it

from river import checks, compose, datasets, evaluate, metrics, preprocessing

from norewind.forecasting import river as ours

SMALL = {"method": "snap1", "settings": {"cell": "lru", "hidden": 2}}


class Shuttle:
    """In place of CreditCard, which River would download: Shuttle is in its wheel."""

    def take(self, rows):
        return datasets.Shuttle().take(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [ours.RiverRegressor, ours.RiverForecaster, ours.RiverClassifier, ours.RiverAnomalyDetector]
)
def test_river_checks(kind, monkeypatch):
    monkeypatch.setattr(datasets, "CreditCard", Shuttle)
    estimator = kind(**SMALL)
    assert not estimator._unit_test_skips()
    checks.check_estimator(estimator)


def test_a_pipeline_behind_rivers_scaler_and_a_progressive_score():
    model = compose.Select("gallup", "ipsos") | preprocessing.StandardScaler() | ours.RiverRegressor(**SMALL)
    score = evaluate.progressive_val_score(datasets.TrumpApproval().take(150), model, metrics.MAE())
    assert score.get() < 3


def test_a_series_with_times_is_forecast():
    model = ours.RiverForecaster(**SMALL)
    for number, (x, y) in enumerate(datasets.AirlinePassengers().take(60)):
        if number:
            assert all(0 < value < 1000 for value in model.forecast(3, [x] * 3))
        model.learn_one(y, x)


def test_text_and_unusual_features_are_accepted():
    model = ours.RiverClassifier(method="snap1", settings={"cell": "lru", "hidden": 4, "rate": 3e-2})
    for row in range(150):
        light = "red" if row % 3 else "green"
        x = {"light": light, "speed": float("nan") if row == 7 else row % 3, 5: True}
        assert set(model.predict_proba_one({**x, "new": row})) <= {False, True}
        model.learn_one({**x, **({"new": row} if row > 30 else {})}, row % 3 == 0)
    assert model.predict_one({"light": "green", "speed": 0}) is True
    assert sum(model.predict_proba_one({}).values()) == pytest.approx(1)


def test_a_copy_and_a_pickle_continue_alike():
    model = ours.RiverRegressor(**SMALL)
    rows = list(datasets.TrumpApproval().take(60))
    for x, y in rows[:40]:
        model.learn_one(x, y)
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for x, y in rows[40:]:
        assert {other.predict_one(x) for other in others} == {model.predict_one(x)}
        for one in (model, *others):
            one.learn_one(x, y)


def test_on_unpredictable_rows_the_error_is_hardly_above_that_of_the_last_number():
    """On levels that jump, the errors of the model are several times those of repeating the previous number."""
    rng = np.random.default_rng(0)
    numbers = np.repeat(rng.choice([0.0, 1.0, 100.0], 60), 5) + rng.normal(scale=0.01, size=300)
    model, latest, total, simple = ours.RiverRegressor(**SMALL), 0.0, 0.0, 0.0
    for y in numbers.tolist():
        total, simple = total + abs(model.predict_one({"a": 1.0}) - y), simple + abs(latest - y)
        model.learn_one({"a": 1.0}, y)
        latest = y
    assert model._hedge.errors[0] > 1.3 * simple
    assert total < 1.1 * simple


@pytest.mark.parametrize("kind", [ours.RiverRegressor, ours.RiverForecaster])
def test_learning_does_not_depend_on_predictions(kind):
    """The weights follow the errors of predictions made before the row, whether or not they were requested."""
    asked, silent = kind(**SMALL), kind(**SMALL)
    ahead = kind is ours.RiverForecaster
    for row in range(40):
        x, y = {"a": 1.0}, float(row % 7)
        asked.forecast(1 + row % 4) if ahead else (asked.predict_one({"a": 9.0}), asked.predict_one(x))
        for model in (asked, silent):
            model.learn_one(y, x) if ahead else model.learn_one(x, y)
    assert asked._hedge.errors == silent._hedge.errors
    assert asked._hedge.errors[0] != asked._hedge.errors[1]


def test_a_target_that_is_not_finite_is_not_repeated():
    model = ours.RiverRegressor(**SMALL)
    for y in (3.0, float("nan"), float("inf")):
        model.learn_one({"a": 1.0}, y)
    assert model.predict_one({"a": 1.0}) == 3.0


def test_probabilities_are_the_callers_own():
    model = ours.RiverClassifier(**SMALL)
    for row in range(30):
        model.learn_one({"a": row % 2}, row % 2)
    before = dict(model.predict_proba_one({"a": 1}))
    model.predict_proba_one({"a": 1}).clear()
    assert model.predict_proba_one({"a": 1}) == before
