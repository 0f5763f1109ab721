"""Series as `norewind train` reads and scores them, and simple forecasts."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from examples.real_data.disturb import read_columns
from norewind.sweeps.record import Record
from norewind.training.open_stream import open_stream
from norewind.training.settings import Settings
from norewind.wording import digits


class Series(NamedTuple):
    """A series, both raw and as `norewind train` reads it.

    Attributes:
        values: the values in the file, with missing ones replaced by the previous ones.
        xs: the inputs.
        targets: the targets.
        scales: mean and deviation of every target, by which this row is scored.
        scales_after: mean and deviation by which the forecast made at this row will be scored.
        horizon: how many rows ahead to forecast.
    """

    values: np.ndarray
    xs: np.ndarray
    targets: np.ndarray
    scales: np.ndarray
    scales_after: np.ndarray
    horizon: int


def read_series(settings: Settings) -> Series:
    with open_stream(settings).stream as stream:
        taken = stream.take(int(settings.samples or 0))
    assert taken is not None
    values = read_columns(Path(settings.source), tuple(settings.inputs), len(taken.xs))
    for before, row in pairwise(values):
        row[:] = np.where(np.isnan(row), before, row)
    # The columns after the inputs say by what they are standardised.
    xs, targets = taken.xs[:, : len(settings.inputs)].astype(float), taken.targets.astype(float)
    return Series(values, xs, targets, taken.scales, taken.scales_after, settings.horizon)


def squared_errors(series: Series, forecasts: np.ndarray) -> np.ndarray:
    """The squared error of every row, standardised by the statistics at the time of its forecast.

    Args:
        series: the series.
        forecasts: the forecasts made at each row, of the row `horizon` rows later.

    Returns:
        Means over columns; NaN for rows that are not scored.
    """
    h = series.horizon
    due = np.concatenate([np.full_like(forecasts[:h], np.nan), forecasts[:-h]])
    means, deviations = np.moveaxis(series.scales, -1, 0)
    errors = (due - means) / deviations - series.targets
    known = ~np.isnan(series.targets)
    total = np.where(known, errors**2, 0).sum(axis=1) / known.shape[1]
    return np.where(known.any(axis=1), total, np.nan)


def scored(errors: np.ndarray, every: int) -> Record:
    """Summarise errors as a record with their mean and the learning curve.

    Args:
        errors: the error of every row; NaN if it is not scored.
        every: the number of rows per point of the curve.
    """

    def mean(part: np.ndarray) -> float | None:
        known = part[~np.isnan(part)]
        return digits(float(known.mean())) if len(known) else None

    parts = np.split(errors, range(every, len(errors), every))
    return {"mean": mean(errors), "samples": len(errors), "every": every, "curve": [mean(part) for part in parts]}


def simple_forecasts(series: Series, name: str) -> np.ndarray:
    """Forecast with a simple rule.

    Args:
        series: the series.
        name: `"running mean"`, `"newest value"`, or `"24 rows before"`: the value that many rows before the target.
    """
    values = series.values
    if name == "running mean":
        return np.cumsum(values, axis=0) / np.arange(1, len(values) + 1)[:, None]
    if name == "newest value":
        return values
    back = int(name.removesuffix(" rows before")) - series.horizon
    # In the first season, use the newest value.
    return np.concatenate([values[:back], values[: max(0, len(values) - back)]])


def least_squares(series: Series, lags: int, ridge: float) -> np.ndarray:
    """Forecast by ridge regression on the newest values of all columns, exact in float64.

    A row is learned from when its target has arrived. Values are standardised as for norewind's learners.

    Args:
        series: the series.
        lags: the number of newest rows.
        ridge: the strength of the regularisation.
    """
    rows, columns = series.xs.shape
    padded = np.concatenate([np.zeros((lags - 1, columns)), series.xs])
    windows = np.lib.stride_tricks.sliding_window_view(padded, lags, axis=0).reshape(rows, -1)
    features = np.concatenate([windows, np.ones((rows, 1))], axis=1)
    inverse, weights = np.eye(features.shape[1]) / ridge, np.zeros((features.shape[1], columns))
    forecasts = series.values.copy()
    for i, row in enumerate(features):
        come = i - series.horizon
        target = series.targets[i]
        if come >= 0 and not np.isnan(target).any():
            x = features[come]
            gain = inverse @ x
            gain /= 1 + x @ gain
            weights += np.outer(gain, target - x @ weights)
            inverse -= np.outer(gain, x @ inverse)
        mean, deviation = series.scales_after[i].T
        made = mean + deviation * (row @ weights)
        forecasts[i] = np.where(np.isnan(made), forecasts[i], made)
    return forecasts
