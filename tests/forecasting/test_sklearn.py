"""scikit-learn's own checks of our estimators, and their use with its other tools."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.model_selection import TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import norewind
from norewind.forecasting.sklearn import StreamClassifier, StreamRegressor

# Without a network, so that nothing is compiled for every number of columns.
REGRESSOR = StreamRegressor(budget=30)
CLASSIFIER = StreamClassifier(method="snap1", settings={"cell": "lru", "hidden": 2, "rate": 3e-2})


def rows_and_numbers(rows):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    return X, X @ [1.0, -2.0, 0.5] + 0.01 * rng.normal(size=rows)


# It needs SCIPY_ARRAY_API in the environment before SciPy is imported.
SKIPPED = {"check_array_api_input"}


def check_all(estimator):
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    assert {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"} == {}
    assert {result["check_name"] for result in results if result["status"] == "skipped"} <= SKIPPED


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [REGRESSOR, CLASSIFIER])
def test_scikit_learns_checks(estimator):
    check_all(estimator)


def test_partial_fit_continues_fit_exactly():
    X, y = rows_and_numbers(150)
    whole, parts = clone(REGRESSOR).fit(X, y), clone(REGRESSOR)
    for start, end in ((0, 40), (40, 41), (41, 150)):
        parts.partial_fit(X[start:end], y[start:end])
    assert (whole.predict(X) == parts.predict(X)).all()
    assert whole.score(X, y) > 0.99


def test_predictions_are_those_of_the_model_inside_and_nothing_is_learned_from_them():
    X, y = rows_and_numbers(60)
    model = norewind.Forecaster("y", 0, inputs=["a", "b", "c"], budget=30, method="auto")
    model.fit({"a": a, "b": b, "c": c, "y": target} for (a, b, c), target in zip(X, y, strict=True))
    estimator = clone(REGRESSOR).fit(X, y)
    expected = [model.predict_one(dict(zip("abc", x, strict=True))) for x in X[:5]]
    for _ in range(2):
        assert estimator.predict(X[:5]).tolist() == expected


def test_in_a_pipeline_with_cross_validation_in_order():
    X, y = rows_and_numbers(200)
    pipeline = make_pipeline(StandardScaler(), clone(REGRESSOR))
    pipeline.set_params(streamregressor__seed=3)
    assert cross_val_score(pipeline, X, y, cv=TimeSeriesSplit(2)).min() > 0.9


def test_a_constant_target_and_one_with_too_few_values_keep_their_last_value():
    assert clone(REGRESSOR).fit([[1.0], [2.0]], [3.0, 4.0]).predict([[5.0]]) == [4.0]
    assert clone(REGRESSOR).fit(np.arange(40.0)[:, None], np.full(40, 7.0)).predict([[5.0]]) == [7.0]


def test_classes_with_unusual_names_and_their_probabilities():
    rng = np.random.default_rng(0)
    X, names = rng.normal(size=(400, 1)), np.array(["nan", " a", "a", "True"])
    y = names[np.searchsorted([-0.7, 0.0, 0.7], X[:, 0])]
    estimator = clone(CLASSIFIER).partial_fit(X[:5], y[:5], classes=names).partial_fit(X[5:], y[5:])
    assert estimator.classes_.tolist() == sorted(names)
    chances = pickle.loads(pickle.dumps(estimator)).predict_proba(X[:9])
    assert (chances == estimator.predict_proba(X[:9])).all()
    assert np.allclose(chances.sum(axis=1), 1)
    assert estimator.score(X, y) > 0.6


def test_more_than_sixteen_classes_are_rejected():
    with pytest.raises(ValueError, match="y has 17 classes, but at most 16 are distinguished"):
        clone(CLASSIFIER).fit(np.arange(17.0)[:, None], np.arange(17))
