"""Forecasts and code lengths by other libraries, in a separate environment without norewind.

    python others.py '{"model": "river linear", "horizon": 6, "season": 24, "tries": [0.01]}' values.npy forecasts.npy
    python others.py '{"model": "ppmd", "tries": [6, 16]}' text

`values.npy` holds the rows of a series. `forecasts.npy` will hold, for every try, the
forecast made at each row of the row `horizon` rows later. Every row is forecast before it
is seen. The CPU time does not include importing the library.
"""

import json
import sys
import time
import warnings
from collections import deque
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

import numpy as np

PACKAGES = ("river", "statsforecast", "pyppmd", "numpy", "scipy")
# The number of lags in River's regressions; with several columns, 8 of each.
LAGS = 24
# The number of rows that models of statsforecast are fitted to (five seasons for long seasons), and about how many
# times they are fitted.
HISTORY, FITS = 672, 20


def main() -> None:
    warnings.filterwarnings("ignore")
    job, path = json.loads(sys.argv[1]), sys.argv[2]
    import_module({"river": "river.time_series", "ppmd": "pyppmd"}.get(library(job), "statsforecast.models"))
    answers, made = [], []
    values = None if job["model"] == "ppmd" else np.load(path)
    for setting in job["tries"]:
        began = time.process_time()
        if values is None:
            answer = {"bytes": code_length(path, setting)}
        else:
            forecasts, failures = forecast(values, job, setting)
            made.append(forecasts)
            answer = {"failures": failures}
        answers.append(answer | {"cpu_seconds": round(time.process_time() - began, 2)})
    if made:
        np.save(sys.argv[3], np.stack(made))
    print(json.dumps({"answers": answers, "versions": {name: version(name) for name in PACKAGES}}))


def library(job: dict) -> str:
    return job["model"].split(" ", 1)[0]


def code_length(path: str, order: int) -> int:
    with open(path, "rb") as file:
        return len(import_module("pyppmd").compress(file.read(), max_order=order, mem_size=1 << 28, variant="I"))


def forecast(values: np.ndarray, job: dict, setting) -> tuple[np.ndarray, int]:
    """Forecast all columns.

    Args:
        values: the rows.
        job: the model, horizon and season.
        setting: the value to try.

    Returns:
        The forecasts, and the number of rows at which the library failed.
    """
    model = job["model"].split(" ", 1)[1]
    if model in REGRESSIONS:
        return regressed(values, job["horizon"], lambda: REGRESSIONS[model](setting)), 0
    roll = rolled_river if library(job) == "river" else rolled_statsforecast
    columns = [roll(column, job, model, setting) for column in values.T]
    return np.stack([made for made, _ in columns], axis=1), sum(failed for _, failed in columns)


def regressed(values: np.ndarray, horizon: int, make) -> np.ndarray:
    """Forecast with a regression of each column on lags of all columns, which learns when a target has arrived.

    Args:
        values: the rows.
        horizon: how many rows ahead to forecast.
        make: makes a regression model of River.
    """
    rows, columns = values.shape
    lags = LAGS if columns == 1 else 8
    models = [make() for _ in range(columns)]
    forecasts, waiting = np.empty_like(values), deque()
    for i in range(rows):
        newest = values[np.maximum(0, np.arange(i, i - lags, -1))].ravel().tolist()
        x = dict(enumerate(newest))
        due = waiting.popleft() if len(waiting) == horizon else None
        for column, model in enumerate(models):
            if due is not None:
                model.learn_one(due, float(values[i, column]))
            forecasts[i, column] = model.predict_one(x)
        waiting.append(x)
    return forecasts


def linear(rate: float):
    return standardised(import_module("river.linear_model").LinearRegression(import_module("river.optim").SGD(rate)))


def bayesian(smoothing: float | None):
    return standardised(import_module("river.linear_model").BayesianLinearRegression(smoothing=smoothing))


def standardised(model):
    preprocessing = import_module("river.preprocessing")
    return preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(regressor=model)


REGRESSIONS = {"linear": linear, "Bayesian linear": bayesian}


def rolled_river(values: np.ndarray, job: dict, model: str, setting: float) -> tuple[np.ndarray, int]:
    """Forecast with a time series model of River, which learns from every row and then forecasts.

    Args:
        values: one column.
        job: the horizon and the season.
        model: the name of the model.
        setting: the value to try.
    """
    season, time_series = job["season"], import_module("river.time_series")
    if model == "HoltWinters":
        made = time_series.HoltWinters(setting, beta=0.01, gamma=0.2, seasonality=season, multiplicative=False)
    else:
        made = time_series.SNARIMAX(p=LAGS, d=0, q=2, m=season, sp=2, sd=0, sq=1, regressor=linear(setting))
    forecasts, failures = values.copy(), 0
    for i, value in enumerate(values.tolist()):
        made.learn_one(value)
        if i >= 2 * season:
            try:
                forecasts[i] = made.forecast(job["horizon"])[-1]
            except (ArithmeticError, IndexError):
                failures += 1
    return forecasts, failures


class Schedule(NamedTuple):
    """When a model is fitted.

    Attributes:
        first: the number of rows at the first fit. After that, it is fitted again when there are half as many more.
        every: the most rows between two fits.
        history: the number of newest rows to fit to.
    """

    first: int
    every: int
    history: int

    def is_due(self, row: int, fitted_at: int | None) -> bool:
        return fitted_at is None or row >= fitted_at + min(self.every, max(1, fitted_at // 2))


def rolled_statsforecast(values: np.ndarray, job: dict, name: str, setting: None) -> tuple[np.ndarray, int]:
    season = job["season"]
    every = 12 if name == "MSTL" else max(336, len(values) // FITS)
    schedule = Schedule(2 * season + 2, every, HISTORY if season <= 24 else 5 * season)
    return rolled(values, job["horizon"], schedule, made_by_statsforecast(name, season), forward=name != "MSTL")


def rolled(values, horizon: int, schedule: Schedule, model, *, forward: bool) -> tuple[np.ndarray, int]:
    """Forecast at every row; with the newest value before the first fit, and where the model fails.

    Args:
        values: one column.
        horizon: how many rows ahead to forecast.
        schedule: when to fit the model.
        model: a model of statsforecast.
        forward: between fits, apply the fitted parameters to the newest rows. Otherwise, use the path that was
            forecast at the last fit.

    Returns:
        The forecasts, and the number of failures.
    """
    forecasts, failures = values.copy(), 0
    fitted_at, path = None, np.empty(0)
    for i in range(schedule.first - 1, len(values)):
        history = values[max(0, i + 1 - schedule.history) : i + 1]
        try:
            if schedule.is_due(i, fitted_at):
                model.fit(history)
                path = model.predict(horizon + schedule.every)["mean"]
                fitted_at = i
            if forward:
                forecasts[i] = model.forward(history, horizon)["mean"][-1]
            else:
                forecasts[i] = path[i - (fitted_at or 0) + horizon - 1]
        except Exception:
            failures += 1
    return forecasts, failures


def made_by_statsforecast(name: str, season: int):
    models = import_module("statsforecast.models")
    if name == "AutoETS":
        return models.AutoETS(season_length=season if season <= 24 else 1)
    if name == "AutoTheta":
        return models.AutoTheta(season_length=season)
    if name == "seasonal ARIMA":
        return models.ARIMA(order=(2, 0, 1), season_length=season, seasonal_order=(0, 1, 1))
    return models.MSTL(season_length=[season, 7 * season]) if name == "MSTL" else models.AutoARIMA()


if __name__ == "__main__":
    main()
