"""The methods that series are compared with use no later rows, and simple ones equal plain loops."""

import numpy as np
import pytest

from norewind.sweeps.record import read_records
from scoreboards.series import default_forecasts, errors_of, ratios_of
from scoreboards.series_data import NumberSeries
from scoreboards.series_rivals import last_value, ridge_of_lags, seasonal_naive

STEPS = (1, 5)
VALUES = np.sin(np.arange(80) * 2 * np.pi / 7) + 0.1 * np.random.default_rng(0).normal(size=80)


def series_of(values):
    return NumberSeries(values, (7,), STEPS[-1])


METHODS = {
    "default": lambda series: default_forecasts(series, STEPS, 0.0),
    "last value": lambda series: last_value(series, STEPS),
    "season": lambda series: seasonal_naive(series, STEPS, 7),
    "ridge": lambda series: ridge_of_lags(series, STEPS, 8, 0.1),
}


@pytest.mark.parametrize("method", METHODS)
def test_no_forecast_uses_a_later_row(method):
    before = METHODS[method](series_of(VALUES))
    changed = VALUES.copy()
    changed[50:] = np.random.default_rng(1).normal(size=30) * 10
    after = METHODS[method](series_of(changed))
    np.testing.assert_array_equal(before[:50], after[:50])
    assert not np.array_equal(before[50:], after[50:])


def test_errors_are_those_of_a_plain_loop():
    made = seasonal_naive(series_of(VALUES), STEPS, 7)
    for place, step in enumerate(STEPS):
        squares = [(VALUES[t + step] - VALUES[t + step - 7]) ** 2 for t in range(10, 80 - step)]
        assert errors_of(series_of(VALUES), made, STEPS)[place] == pytest.approx(np.sqrt(np.mean(squares)))


def test_ridge_equals_the_solution_of_its_normal_equations():
    lags, ridge, step = 3, 0.5, 1
    made = ridge_of_lags(series_of(VALUES), (step,), lags, ridge)
    center, scale = VALUES[:10].mean(), VALUES[:10].std()
    scaled = (VALUES - center) / scale
    rows = np.arange(lags - 1, 60 - step + 1)
    features = np.array([[1.0, *scaled[t - lags + 1 : t + 1]] for t in range(lags - 1, 61)])
    known, targets = features[: len(rows)], scaled[rows + step]
    weights = np.linalg.solve(known.T @ known + ridge * np.eye(lags + 1), known.T @ targets)
    assert made[60, 0] == pytest.approx(center + scale * features[-1] @ weights, rel=1e-9)


def test_the_report_divides_by_the_best_other_method(tmp_path):
    from norewind.sweeps.record import write_record

    for method, error in (("norewind", 2.0), ("last value", 4.0), ("ETS", 1.0)):
        entry = {"series": "waves", "method": method, "steps": [1, 5], "rmse": [error, 3.0]}
        write_record(tmp_path, f"waves/{method}", entry)
    (_, step, ratio, best), (_, _, equal, _) = ratios_of(read_records(tmp_path), ["waves"])
    assert (step, ratio, best, equal) == (1, 2.0, "ETS", 1.0)
