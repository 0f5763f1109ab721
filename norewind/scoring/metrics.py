"""The lines of metrics: their entries, how far apart they are, and means over several of them."""

import re
from collections.abc import Sequence
from functools import lru_cache
from math import isqrt
from typing import Any, NamedTuple

import numpy as np


class MetricsEntry(NamedTuple):
    """A number in the lines of metrics. Figures, Prometheus and the live page take their descriptions from here.

    Attributes:
        meaning: the meaning of the number, as a sentence.
        simple_forecast: for the loss of a simple forecast, a short description of that forecast.
        line_style: how its curve is drawn in figures.
        tile: for a number reported by some methods, its label on the live page. Records of sweeps then hold its curve.
    """

    meaning: str
    simple_forecast: str = ""
    line_style: str = "-"
    tile: str = ""


METRICS_ENTRIES = {
    "samples": MetricsEntry("Samples learned from."),
    "seconds": MetricsEntry("Seconds of training."),
    "loss": MetricsEntry("Mean loss between the two latest lines of metrics."),
    "mean": MetricsEntry("Mean loss since the start."),
    "persistence": MetricsEntry("Loss of forecasting the last value over the same samples.", "the last value", ":"),
    "seasonal": MetricsEntry("Loss of forecasting the value one period ago.", "one period ago", "-."),
    "baseline": MetricsEntry("Loss of a trivial forecast over the same samples.", "the mean so far", "--"),
    "alarms": MetricsEntry("Alarms of drift since the start."),
    "carry": MetricsEntry("Norm of the method's carry."),
    "error_bound": MetricsEntry(
        "Bound on the error of the carried influence (of sketched).", tile="bound on the influence's error"
    ),
    "shrinkage": MetricsEntry(
        "Fraction of the estimated rest of the influence that is used (of shrunk).", tile="of the estimated rest used"
    ),
}
# Labels on the live page of what only some methods report, by their entries in a line of metrics.
TILES = {name: entry.tile for name, entry in METRICS_ENTRIES.items() if entry.tile}
# Descriptions of the simple forecasts of numbers, by their entries in a line of metrics.
SIMPLE_FORECASTS = {name: entry.simple_forecast for name, entry in METRICS_ENTRIES.items() if entry.simple_forecast}
# Descriptions for runs on numbers, classes or symbols.
ANY_FORECASTS = SIMPLE_FORECASTS | {"baseline": "baseline"}


class LossDescription(NamedTuple):
    """What a loss is measured in, and compared with.

    Attributes:
        unit: the unit of the loss in the lines of metrics.
        simple_forecasts: descriptions of the simple forecasts, by their entries in a line of metrics.
    """

    unit: str
    simple_forecasts: dict[str, str]


SYMBOL_LOSS = LossDescription("bits", {"baseline": "order-0 entropy"})
# By the names of the losses of rows. The loss of a quantile is named `absolute`, or `quantile:0.9`.
ROW_LOSSES = {
    "squared": LossDescription("squared error", SIMPLE_FORECASTS),
    "gaussian": LossDescription("nats per value", SIMPLE_FORECASTS),
    "classes": LossDescription("bits", {"baseline": "class frequencies so far"}),
}
QUANTILE = re.compile(r"quantile:(0?\.[0-9]{1,6})")


def quantile_of(loss: str) -> float | None:
    """Return the quantile of a loss of rows; None if it is not a quantile loss.

    Args:
        loss: the name of the loss.

    >>> quantile_of("absolute"), quantile_of("quantile:0.9"), quantile_of("squared"), quantile_of("quantile:1.5")
    (0.5, 0.9, None, None)
    """
    found = QUANTILE.fullmatch(loss)
    quantile = 0.5 if loss == "absolute" else float(found[1]) if found else 0.0
    return quantile or None


def row_loss(loss: str) -> LossDescription:
    """Return what a loss of rows is measured in, and compared with.

    Args:
        loss: the name of the loss.
    """
    if (quantile := quantile_of(loss)) is None:
        return ROW_LOSSES[loss]
    unit = "absolute error" if quantile == 0.5 else "twice the pinball loss"
    simple = {"persistence": SIMPLE_FORECASTS["persistence"], "baseline": f"the {quantile:g}-quantile so far"}
    return LossDescription(unit, simple | ({"baseline": "the median so far"} if quantile == 0.5 else {}))


# Lines of metrics are n / LATE_SPACING steps apart at step n, and closer at the beginning, n √n / EARLY_SPACING: about
# 200 lines, whether a stream has 400 steps or a million.
LATE_SPACING, EARLY_SPACING = 12, 450


@lru_cache(maxsize=64)
def next_line(samples: int, every: int | None = None, window: int = 1) -> int:
    """Return the number of samples at the next line of metrics.

    Args:
        samples: the number of samples so far.
        every: the distance between lines; by default it grows with the number of samples.
        window: the number of samples in one step; without `every`, lines are written after whole steps.

    >>> next_line(150), next_line(10_000), next_line(10_000, window=16), next_line(150, every=100)
    (151, 10766, 10208, 200)
    """
    if every is not None:
        return (samples // every + 1) * every
    line, steps = 0, samples // window
    while line <= steps:
        line += max(1, min(line // LATE_SPACING, line * isqrt(line) // EARLY_SPACING))
    return line * window


def mean_of_last_part(ends: np.ndarray, values: np.ndarray, share: float) -> tuple[int, float]:
    """Compute the mean over the last part of a run.

    Args:
        ends: the number of samples at the end of each interval.
        values: the mean of each interval; NaN where it is not known.
        share: the fraction of the run.

    Returns:
        The number of samples in that part, and the mean; NaN if it is not known.

    >>> mean_of_last_part(np.array([80, 95, 100]), np.array([4.0, 2.0, 1.0]), 0.1)
    (20, 1.75)
    """
    late = ends > (1 - share) * ends[-1]
    chosen, lengths = late & ~np.isnan(values), np.diff(ends, prepend=0)
    weights = lengths[chosen]
    mean = float(np.sum(weights * values[chosen]) / np.sum(weights)) if chosen.any() else float("nan")
    return int(lengths[late].sum()), mean


def last_half(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select the lines of metrics of the last half of the samples."""
    return [line for line in lines if 2 * line["samples"] > lines[-1]["samples"]]
