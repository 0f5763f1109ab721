"""Rows with their statistics as arrays of standardised samples.

All of it is done number by number, so that it does not depend on chunks.
"""

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from norewind.streams.running import Statistics
from norewind.streams.stream import Samples

# A standard deviation of fewer values than this says too little to judge a forecast by.
ENOUGH = 10
CLIP = 100.0


class Taken(NamedTuple):
    """A sample before it is standardised.

    These are a row, the statistics up to it, those that were known when predicting, and
    the row of the target; all for the same columns.
    """

    values: list[float]
    statistics: Statistics
    known: Statistics
    target: list[float]


class Layout(NamedTuple):
    """How many columns there are, which of them are inputs and which targets, and what becomes of them."""

    columns: int
    inputs: list[int]
    targets: list[int]
    fill_with_newest: bool
    standardise: bool


def samples_of(taken: list[Taken], layout: Layout) -> Samples:
    """The samples, standardised if the layout says so."""
    statistics = _tables([sample.statistics for sample in taken], layout.columns)
    # With a horizon, what is known when predicting is all up to the row itself: most often there is nothing to convert.
    same = all(sample.known is sample.statistics for sample in taken)
    known = statistics if same else _tables([sample.known for sample in taken], layout.columns)
    xs = _xs(_table([sample.values for sample in taken], layout.columns), statistics, layout)
    counts, means, squares, newest = (table[:, layout.targets] for table in known)
    targets = _table([sample.target for sample in taken], layout.columns)[:, layout.targets]
    if layout.standardise:
        deviations = _deviations(counts, squares)
        unknown = (counts < ENOUGH) | (deviations == 0)
        means, deviations = np.where(unknown, np.nan, means), np.where(unknown, np.nan, deviations)
        targets, newest = _standardised(targets, means, deviations), _standardised(newest, means, deviations)
    else:
        means, deviations = np.zeros_like(means), np.ones_like(means)
    scales = np.stack([means, deviations], axis=-1)
    return Samples(xs, targets.astype(np.float32), scales, newest.astype(np.float32))


def _xs(values: np.ndarray, statistics: list[np.ndarray], layout: Layout) -> np.ndarray:
    values = values[:, layout.inputs]
    counts, means, squares, newest = (table[:, layout.inputs] for table in statistics)
    filling = np.where(counts > 0, newest, means) if layout.fill_with_newest else means
    values = np.where(np.isnan(values), filling, values)
    if layout.standardise:
        deviations = _deviations(counts, squares)
        values = np.where(deviations > 0, _standardised(values, means, deviations), 0.0)
    return values.astype(np.float32)


def _deviations(counts: np.ndarray, squares: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(squares, 0) / np.maximum(counts, 1))


def _standardised(values: np.ndarray, means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.clip((values - means) / deviations, -CLIP, CLIP)


def _tables(statistics: list[Statistics], columns: int) -> list[np.ndarray]:
    return [_table([entry[part] for entry in statistics], columns) for part in range(4)]


def _table(rows: list[Any], columns: int) -> np.ndarray:
    """Rows of numbers as an array; several times faster than np.array of lists of lists."""
    return np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * columns).reshape(len(rows), columns)
