"""sktime's own checks of our forecaster. sktime needs an older pandas than the pinned one: see docs/sktime.md."""

import doctest

import numpy as np
import pytest

pytest.importorskip("sktime")

import pandas as pd
from sktime.utils.estimator_checks import check_estimator

import norewind
from norewind.forecasting import sktime as ours


def series(rows, columns=1):
    index = pd.period_range("2000-01", periods=rows, freq="M")
    values = np.sin(np.arange(rows)[:, None] / 5 + np.arange(columns))
    values += 0.1 * np.random.default_rng(0).normal(size=values.shape)
    values[7, 0] = np.nan
    return pd.DataFrame(values, index=index, columns=[*"abc"[:columns]])


# It requires that the series is kept, which would take ever more memory.
EXCLUDED = ["test__y_remember_data"]


@pytest.mark.slow
def test_sktimes_checks():
    results = check_estimator(ours.StreamForecaster, tests_to_exclude=EXCLUDED, raise_exceptions=False, verbose=False)
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}


def test_the_example():
    assert doctest.testmod(ours).failed == 0


@pytest.mark.parametrize("columns", [1, 2])
def test_update_after_fit_is_fit_on_all_of_it(columns):
    y, fh = series(150, columns), [1, 3, 8]
    parts = ours.StreamForecaster(horizon=3, budget=30).fit(y[:77]).update(y[77:78])
    parts.update(y[70:120])  # values that were passed before are not learned from again
    parts.update(y[120:])
    whole = ours.StreamForecaster(horizon=3, budget=30).fit(y)
    assert parts.model_.samples == whole.model_.samples == 150
    pd.testing.assert_frame_equal(parts.predict(fh), whole.predict(fh), check_exact=True)
    pd.testing.assert_frame_equal(parts.predict_var(fh), whole.predict_var(fh), check_exact=True)


def test_forecasts_are_those_of_the_model_inside():
    y = series(60, 2)
    names = ["a", "b"]
    model = norewind.Forecaster(names, 2, inputs=names, method="auto", budget=30).fit(y)
    forecaster = ours.StreamForecaster(horizon=2, budget=30).fit(y)
    assert forecaster.predict([2]).to_numpy().tolist() == [model.forecast(2).iloc[1][names].tolist()]
    assert forecaster.predict([1]).index.tolist() == [pd.Period("2005-01", "M")]
