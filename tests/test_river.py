"""River's own checks of our estimators, and their place in River's pipelines and evaluation."""

import copy
import pickle

import pytest

pytest.importorskip("river")
pytest.importorskip("sklearn")  # River's checks use it

from river import checks, compose, datasets, evaluate, metrics, preprocessing

from norewind.people import river as ours

SMALL = {"method": "snap1", "cell": "lru", "hidden": 2}


def named(estimator):
    return [pytest.param(check, estimator, id=check.__name__) for check in checks.yield_checks(estimator)]


def checked(check, estimator):
    # As check_estimator does it.
    assert not estimator._unit_test_skips()
    check(estimator.clone())


@pytest.mark.slow
@pytest.mark.parametrize(("check", "estimator"), [*named(ours.Regressor(**SMALL)), *named(ours.Forecaster(**SMALL))])
def test_river_checks_of_numbers(check, estimator):
    checked(check, estimator)


@pytest.mark.slow
@pytest.mark.parametrize(("check", "estimator"), named(ours.Classifier(**SMALL)))
def test_river_checks_of_the_classifier(check, estimator):
    checked(check, estimator)


class Shuttle:
    """In place of CreditCard, which River would download: Shuttle is in its wheel."""

    def take(self, rows):
        return datasets.Shuttle().take(rows)


@pytest.mark.slow
def test_river_checks_of_the_detector(monkeypatch):
    monkeypatch.setattr(datasets, "CreditCard", Shuttle)
    checks.check_estimator(ours.AnomalyDetector(**SMALL))


def test_a_pipeline_behind_rivers_scaler_and_a_progressive_score():
    model = compose.Select("gallup", "ipsos") | preprocessing.StandardScaler() | ours.Regressor(**SMALL)
    score = evaluate.progressive_val_score(datasets.TrumpApproval().take(150), model, metrics.MAE())
    assert score.get() < 3


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
