"""River's own checks of our estimators, and their place in River's pipelines and evaluation."""

import copy
import pickle

import pytest

pytest.importorskip("river")
pytest.importorskip("sklearn")  # River's checks use it

from river import checks, compose, datasets, evaluate, metrics, preprocessing

from norewind.people import river as ours

SMALL = {"method": "snap1", "settings": {"cell": "lru", "hidden": 2}}


class Shuttle:
    """In place of CreditCard, which River would download: Shuttle is in its wheel."""

    def take(self, rows):
        return datasets.Shuttle().take(rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ours.Regressor, ours.Forecaster, ours.Classifier, ours.AnomalyDetector])
def test_river_checks(kind, monkeypatch):
    monkeypatch.setattr(datasets, "CreditCard", Shuttle)
    estimator = kind(**SMALL)
    assert not estimator._unit_test_skips()
    checks.check_estimator(estimator)


def test_a_pipeline_behind_rivers_scaler_and_a_progressive_score():
    model = compose.Select("gallup", "ipsos") | preprocessing.StandardScaler() | ours.Regressor(**SMALL)
    score = evaluate.progressive_val_score(datasets.TrumpApproval().take(150), model, metrics.MAE())
    assert score.get() < 3


def test_a_series_with_times_is_forecast():
    model = ours.Forecaster(**SMALL)
    for number, (x, y) in enumerate(datasets.AirlinePassengers().take(60)):
        if number:
            assert all(0 < value < 1000 for value in model.forecast(3, [x] * 3))
        model.learn_one(y, x)


def test_text_and_odd_features_are_taken():
    model = ours.Classifier(method="snap1", settings={"cell": "lru", "hidden": 4, "rate": 3e-2})
    for row in range(150):
        light = "red" if row % 3 else "green"
        x = {"light": light, "speed": float("nan") if row == 7 else row % 3, 5: True}
        assert set(model.predict_proba_one({**x, "new": row})) <= {False, True}
        model.learn_one({**x, **({"new": row} if row > 30 else {})}, row % 3 == 0)
    assert model.predict_one({"light": "green", "speed": 0}) is True
    assert sum(model.predict_proba_one({}).values()) == pytest.approx(1)


def test_a_copy_and_a_pickle_go_on_alike():
    model = ours.Regressor(**SMALL)
    rows = list(datasets.TrumpApproval().take(60))
    for x, y in rows[:40]:
        model.learn_one(x, y)
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for x, y in rows[40:]:
        assert {other.predict_one(x) for other in others} == {model.predict_one(x)}
        for one in (model, *others):
            one.learn_one(x, y)
