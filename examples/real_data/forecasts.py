"""Series as `norewind train` sees and scores them, and simple forecasts of them."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from disturb import read_columns

from norewind.runs.build import open_stream
from norewind.runs.metrics import digits
from norewind.runs.record import Record
from norewind.runs.settings import Settings


class Series(NamedTuple):
    """A series as its file has it, with missing values replaced by the newest ones, and as `norewind train` sees it."""

    values: np.ndarray
    xs: np.ndarray
    targets: np.ndarray
    scales: np.ndarray  # mean and deviation of every target, by which this row is scored
    ahead: np.ndarray  # and those by which the forecast made at this row will be scored
    horizon: int


def read_series(settings: Settings) -> Series:
    with open_stream(settings).stream as stream:
        taken = stream.take(int(settings.samples or 0))
    values = read_columns(Path(settings.source), tuple(settings.inputs), len(taken.xs))
    for before, row in pairwise(values):
        row[:] = np.where(np.isnan(row), before, row)
    xs, targets = taken.xs.astype(float), taken.targets.astype(float)
    return Series(values, xs, targets, taken.scales, taken.ahead, settings.horizon)


def squared_errors(series: Series, forecasts: np.ndarray) -> np.ndarray:
    """Row by row, of forecasts made `horizon` rows before; standardised by what was known then. NaN: not scored."""
    h = series.horizon
    due = np.concatenate([np.full_like(forecasts[:h], np.nan), forecasts[:-h]])
    means, deviations = np.moveaxis(series.scales, -1, 0)
    errors = (due - means) / deviations - series.targets
    known = ~np.isnan(series.targets)
    total = np.where(known, errors**2, 0).sum(axis=1) / known.shape[1]
    return np.where(known.any(axis=1), total, np.nan)


def scored(errors: np.ndarray, every: int) -> Record:
    """The mean and the learning curve; no mean if a forecast was not finite."""

    def mean(part: np.ndarray) -> float | None:
        known = part[~np.isnan(part)]
        return digits(float(known.mean())) if len(known) else None

    parts = np.split(errors, range(every, len(errors), every))
    return {"mean": mean(errors), "samples": len(errors), "every": every, "curve": [mean(part) for part in parts]}


def simple_forecasts(series: Series, name: str) -> np.ndarray:
    """The mean of all rows so far, the newest row, or the one that came a season before the one to forecast."""
    values = series.values
    if name == "running mean":
        return np.cumsum(values, axis=0) / np.arange(1, len(values) + 1)[:, None]
    if name == "newest value":
        return values
    back = int(name.removesuffix(" rows before")) - series.horizon
    # In the first season nothing better is known than the newest value.
    return np.concatenate([values[:back], values[: max(0, len(values) - back)]])


def least_squares(series: Series, lags: int, ridge: float) -> np.ndarray:
    """Ridge regression on the newest values of all columns, exact in float64: a row is learned from when its target
    has come. Standardised as norewind's learners see it."""
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
        mean, deviation = series.ahead[i].T
        made = mean + deviation * (row @ weights)
        forecasts[i] = np.where(np.isnan(made), forecasts[i], made)
    return forecasts
