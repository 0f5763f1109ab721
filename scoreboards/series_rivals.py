"""The methods that the study of series compares with: what a person would use who knows the series.

Every function returns the forecasts made at each row, of shape (rows, steps): `[t, s]` is of row t + steps[s],
and uses rows up to t only. Where a method has too few rows, it repeats the last value.
"""

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

import numpy as np

from scoreboards.series_data import NumberSeries

# The rows at which methods are fitted again: these, and then every 500.
REFITTED = 20, 40, 80, 160, 320
REFIT_EVERY = 500
# The latest rows that a method is fitted on, in addition to four seasons.
FITTED_ROWS = 1_000
LONGEST_SEASON = {"ETS": 52, "Theta": 400, "AutoARIMA": 12}
RIDGES = {"strong": 1.0, "weak": 0.01}
MOST_LAGS = 336


def last_value(series: NumberSeries, steps: Sequence[int]) -> np.ndarray:
    """Repeat the last value."""
    return np.tile(series.values[:, None], len(steps)).astype(float)


def seasonal_naive(series: NumberSeries, steps: Sequence[int], period: int) -> np.ndarray:
    """Repeat the value one period before the forecast row, or a whole number of periods."""
    made = last_value(series, steps)
    for place, step in enumerate(steps):
        age = -step % period
        made[age:, place] = series.values[: len(made) - age]
    return made


def ridge_of_lags(
    series: NumberSeries, steps: Sequence[int], lags: int, ridge: float, calendar: bool = False
) -> np.ndarray:
    """Forecast by recursive least squares on the latest rows, in units of the deviation so far.

    Args:
        series: the series.
        steps: the steps.
        lags: the number of latest rows.
        ridge: the penalty of the weights.
        calendar: whether it also sees the phase of the forecast row in each season.
    """
    values, made = series.values, last_value(series, steps)
    first = max(10, int(min(lags, 50)))
    scaled = (values - values[:first].mean()) / (values[:first].std() or 1.0)
    padded = np.concatenate([np.zeros(lags - 1), scaled])
    own = np.column_stack([np.ones(len(values)), np.lib.stride_tricks.sliding_window_view(padded, lags)])
    for place, step in enumerate(steps):
        features = np.column_stack([own, _phases(series, step)]) if calendar else own
        covariance, weights = np.eye(features.shape[1]) / ridge, np.zeros(features.shape[1])
        for t in range(len(values)):
            if t >= step + lags - 1:
                x = features[t - step]
                gain = covariance @ x
                gain /= 1 + x @ gain
                covariance -= np.outer(gain, x @ covariance)
                weights += gain * (scaled[t] - weights @ x)
            if t >= step + lags - 1 + first:
                made[t, place] = features[t] @ weights * (values[:first].std() or 1.0) + values[:first].mean()
    return made


def _phases(series: NumberSeries, step: int) -> np.ndarray:
    """Return indicators of the calendar of the row `step` rows ahead: 48 phases of a day, 7 of a week."""
    columns, rows = [], np.arange(len(series.values)) + step
    for period, most in zip(series.periods, (48, 7), strict=False):
        bins = min(period, most)
        columns.append(np.eye(bins)[rows % period * bins // period])
    return np.column_stack([np.zeros((len(rows), 0)), *columns])


def fitted(series: NumberSeries, steps: Sequence[int], name: str) -> np.ndarray:
    """Forecast by a model of statsforecast, fitted again from time to time.

    Args:
        series: the series.
        steps: the steps.
        name: "ETS", "Theta" or "AutoARIMA".
    """
    models = import_module("statsforecast.models")
    season = max([1, *(period for period in series.periods if period <= LONGEST_SEASON[name])])
    season = season if len(series.values) > 3 * season else 1
    make = {"ETS": models.AutoETS, "Theta": models.AutoTheta, "AutoARIMA": models.AutoARIMA}[name]
    options = {"max_p": 3, "max_q": 3, "max_P": 1, "max_Q": 1} if name == "AutoARIMA" else {}
    made, farthest, model = last_value(series, steps), steps[-1], None
    warnings.simplefilter("ignore")
    for t in range(10, len(made)):
        window = series.values[max(0, t + 1 - FITTED_ROWS - 4 * season) : t + 1].astype(np.float64)
        if t in REFITTED or (t % REFIT_EVERY == 0 and t >= REFIT_EVERY):
            try:
                model = make(season_length=season if t > 2 * season + 5 else 1, **options).fit(window)
            except Exception as error:  # a rival that cannot be fitted keeps its previous fit
                print(f"{name}: row {t}: {error}")
        if model is not None:
            try:
                ahead = model.forward(window[-300 - 2 * season :], farthest)["mean"]
            except Exception:
                continue
            if np.isfinite(ahead).all():
                made[t] = [ahead[step - 1] for step in steps]
    return made


def decomposed(series: NumberSeries, steps: Sequence[int]) -> np.ndarray:
    """Forecast by MSTL: seasons that repeat, decomposed from time to time, and exponential smoothing of the rest."""
    models = import_module("statsforecast.models")
    made, farthest, seasonal, smoother = last_value(series, steps), steps[-1], None, None
    warnings.simplefilter("ignore")
    for t in range(10, len(made)):
        begin = max(0, t + 1 - FITTED_ROWS - 4 * max(series.periods))
        usable = [period for period in series.periods if 2 * period < t + 1 - begin]
        if usable and (t in REFITTED or t % REFIT_EVERY == 0):
            smoother = models.AutoETS(season_length=1, model="ZZN")
            try:
                fit = models.MSTL(season_length=usable, trend_forecaster=smoother).fit(series.values[begin : t + 1])
            except Exception as error:  # a rival that cannot be fitted keeps its previous fit
                print(f"MSTL: row {t}: {error}")
                continue
            smoother = fit.trend_forecaster
            seasonal = np.zeros(len(made) + farthest)
            parts = [name for name in fit.model_ if name.startswith("seasonal")]
            for name, period in zip(parts, sorted(usable), strict=True):
                cycle = np.empty(period)
                cycle[np.arange(t + 1 - period, t + 1) % period] = fit.model_[name].to_numpy()[-period:]
                seasonal += cycle[np.arange(len(seasonal)) % period]
        if seasonal is not None and smoother is not None:
            rows = slice(max(0, t - 299), t + 1)
            ahead = smoother.forward(series.values[rows] - seasonal[rows], farthest)["mean"]
            if np.isfinite(ahead).all():
                made[t] = [ahead[step - 1] + seasonal[t + step] for step in steps]
    return made


def boosted_trees(series: NumberSeries, steps: Sequence[int]) -> np.ndarray:
    """Forecast by LightGBM on lags and the phase of each season, fitted again every 500 rows on all rows so far."""
    lightgbm = import_module("lightgbm")
    values, made = series.values, last_value(series, steps)
    count = len(values)
    for place, step in enumerate(steps):
        ages = {*range(24), *(-step % period for period in series.periods)}
        ages |= {age + period for period in series.periods for age in (-step % period, 0)}
        ages = sorted(age for age in ages if age < count // 2)
        padded = np.concatenate([np.full(max(ages), np.nan), values])
        columns = [padded[max(ages) - age :][:count] for age in ages]
        columns += [(np.arange(count) + step) % period for period in series.periods]
        features, changes = np.column_stack(columns), np.full(count, np.nan)
        changes[: count - step] = values[step:] - values[: count - step]
        model = None
        for t in range(10, count):
            if t in REFITTED or t % REFIT_EVERY == 0:
                learned = slice(0, t + 1 - step)
                if learned.stop >= 15:
                    options = {"n_estimators": 200, "learning_rate": 0.05, "num_leaves": 31, "n_jobs": 1, "verbose": -1}
                    model = lightgbm.LGBMRegressor(**options).fit(features[learned], changes[learned])
                end = next((row for row in REFITTED if row > t), (t // REFIT_EVERY + 1) * REFIT_EVERY)
                rows = slice(t, min(end, count))
                if model is not None:
                    made[rows, place] = values[rows] + model.predict(features[rows])
    return made


def rivals_of(series: NumberSeries) -> dict[str, Callable[[Sequence[int]], np.ndarray]]:
    """Return the methods to compare with on a series, by name.

    Args:
        series: the series.
    """
    found = {"last value": lambda steps: last_value(series, steps)}
    for period in series.periods:
        found[f"{period} rows ago"] = lambda steps, period=period: seasonal_naive(series, steps, period)
    lags = {24, *(min(MOST_LAGS, 2 * period) for period in series.periods[:1])}
    for count in sorted(lags):
        for strength, ridge in RIDGES.items():
            name = f"{strength} ridge on {count} lags"
            found[name] = lambda steps, count=count, ridge=ridge: ridge_of_lags(series, steps, count, ridge)
    name = "weak ridge on 24 lags and calendar"
    found[name] = lambda steps: ridge_of_lags(series, steps, 24, RIDGES["weak"], calendar=True)
    for name in LONGEST_SEASON:
        found[name] = lambda steps, name=name: fitted(series, steps, name)
    if series.periods:
        found["MSTL"] = lambda steps: decomposed(series, steps)
    found["LightGBM"] = lambda steps: boosted_trees(series, steps)
    return found
