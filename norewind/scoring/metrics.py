"""Metrics of a run: mean losses that do not depend on the chunk size, and detection of divergence."""

import sys
from collections.abc import Sequence
from functools import lru_cache
from math import isfinite, isqrt
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from norewind.streams.position import Count

Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
# The number of values, and their sum.
Sums = tuple[Count, Number]


class MetricsEntry(NamedTuple):
    """A number in the lines of metrics. Reports of a run take what they say about it from here.

    Attributes:
        meaning: the meaning of the number, as a sentence.
        simple_forecast: for the loss of a simple forecast, a short description of that forecast.
        line_style: how its curve is drawn in figures.
    """

    meaning: str
    simple_forecast: str = ""
    line_style: str = "-"


METRICS_ENTRIES = {
    "samples": MetricsEntry("Samples learned from."),
    "seconds": MetricsEntry("Seconds of training."),
    "loss": MetricsEntry("Mean loss between the two newest lines of metrics."),
    "mean": MetricsEntry("Mean loss since the start."),
    "persistence": MetricsEntry("Loss of forecasting the last value over the same samples.", "the last value", ":"),
    "seasonal": MetricsEntry("Loss of forecasting the value one period ago.", "one period ago", "-."),
    "baseline": MetricsEntry("Loss of a trivial forecast over the same samples.", "the mean so far", "--"),
    "carry": MetricsEntry("Norm of the method's carry."),
}
# Descriptions of the simple forecasts of numbers, of classes and of symbols, by their entries in a line of metrics.
SIMPLE_FORECASTS = {name: entry.simple_forecast for name, entry in METRICS_ENTRIES.items() if entry.simple_forecast}
CLASS_FORECASTS = {"baseline": "class frequencies so far"}
SYMBOL_FORECASTS = {"baseline": "order-0 entropy"}
# For a run on any of them.
ANY_FORECASTS = SIMPLE_FORECASTS | {"baseline": "baseline"}
# The number of bad lines in a row that count as divergence. A single one may be an unusual part of the stream.
PATIENCE_LINES = 5
# Below this fraction of the baseline, a run has learned something that it can lose.
LEARNED_FRACTION = 0.9
# Healthy runs stay below a thousandth of this (an influence of 10⁶, which is about the square of the norm).
CARRY_LIMIT = 1e6
# The number of samples that the detector of divergence averages: the mean of fewer says little.
DETECTION_SAMPLES = 10_000
# Lines of metrics are n / LATE_SPACING steps apart at step n, and closer at the beginning, n √n / EARLY_SPACING: about
# 200 lines, whether a stream has 400 steps or a million.
LATE_SPACING, EARLY_SPACING = 12, 450


class Diverged(ArithmeticError):
    """Raised when a run has diverged. The last good checkpoint is kept.

    Args:
        message: why it counts as diverged.
        samples: the number of samples at which it was noticed.
    """

    def __init__(self, message: str, samples: int):
        super().__init__(message)
        self.samples = samples


def running_sum(start: float, values: np.ndarray) -> float:
    """Add values to a sum, in order. (np.sum adds pairwise, so its rounding depends on how values are cut into chunks.)

    Args:
        start: the sum so far.
        values: the values to add.
    """
    return float(np.cumsum(np.concatenate([[start], np.ravel(values).astype(np.float64)]))[-1])


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


class Tally(msgspec.Struct, forbid_unknown_fields=True):
    """Sums of losses since the last line of metrics and since the start. Unknown targets have no loss."""

    samples: Count = 0
    interval: Sums = (0, 0.0)
    all: Sums = (0, 0.0)

    def add(self, losses: np.ndarray, samples: int, scored: int) -> None:
        """Add the losses of samples.

        Args:
            losses: the losses, summed over each window.
            samples: the number of samples.
            scored: the number of samples that have a loss.
        """
        self.samples += samples
        self.interval = self.interval[0] + scored, running_sum(self.interval[1], losses)
        self.all = self.all[0] + scored, running_sum(self.all[1], losses)

    def end_interval(self) -> dict[str, Any]:
        """Return the mean loss since the last call and since the start. Starts a new interval."""
        line = {"samples": self.samples, "loss": mean(self.interval), "mean": mean(self.all)}
        self.interval = (0, 0.0)
        return line


def digits(value: float | None) -> float | None:
    """Round a number to six significant digits; None if it is not finite."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")


def seven_digits(value: float) -> float | None:
    """Round a number to seven significant digits, the precision of a forecast; None if it is not finite."""
    return float(f"{value:.7g}") if isfinite(value) else None


def counted(number: int, word: str) -> str:
    """Format a number with its noun, in the singular or plural.

    Args:
        number: how many there are.
        word: the noun in the singular.

    >>> counted(1, "sample"), counted(1_000, "sample")
    ('1 sample', '1,000 samples')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def listed(things: Sequence[Any]) -> str:
    """Join items to an English list.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *first, last = map(str, things)
    return f"{', '.join(first)} and {last}" if first else last


def mean(sums: Sequence[float]) -> float | None:
    """Return the mean from a count and a sum; None if the count is 0."""
    count, total = sums
    return total / count if count else None


class DivergenceDetector(msgspec.Struct, forbid_unknown_fields=True):
    """Checks every line of metrics, and raises `Diverged`.

    A run has diverged when the norm of its carry exceeds `CARRY_LIMIT`, or when its
    loss has been above the baseline for `PATIENCE_LINES` lines in a row after it had been well
    below.
    """

    good: Count = 0
    bad: Count = 0
    waiting: tuple[Count, Number, Number] = (0, 0.0, 0.0)
    seen: Count = 0

    @property
    def healthy(self) -> bool:
        """Whether the newest line was fine. Only then is a checkpoint worth keeping."""
        return self.bad == 0

    def check(self, line: dict[str, Any], averaged_over: int = 0) -> None:
        """Check a line of metrics.

        Args:
            line: its entries by name, as in metrics.jsonl.
            averaged_over: check the mean of the lines over at least this many samples instead.

        Raises:
            Diverged: the run has diverged.
        """
        samples = line["samples"]
        if line["carry"] is None or line["carry"] > CARRY_LIMIT:
            size = "not finite" if line["carry"] is None else f"{line['carry']:g}"
            raise Diverged(f"at sample {samples} the norm of the carry is {size}, above {CARRY_LIMIT:g}.", samples)
        loss, baseline = line["loss"], line.get("baseline")
        if loss is None or baseline is None:
            return
        count, self.seen = samples - self.seen, samples
        samples_waiting, losses, baselines = self.waiting
        self.waiting = samples_waiting + count, losses + count * loss, baselines + count * baseline
        if self.waiting[0] < averaged_over:
            return
        if averaged_over:
            loss, baseline = self.waiting[1] / self.waiting[0], self.waiting[2] / self.waiting[0]
        self.waiting = (0, 0.0, 0.0)
        if self.good < PATIENCE_LINES:
            self.good = self.good + 1 if loss < baseline - (1 - LEARNED_FRACTION) * abs(baseline) else 0
            return
        self.bad = self.bad + 1 if loss > baseline else 0
        if self.bad >= PATIENCE_LINES:
            reason = f"at sample {samples} the loss ({loss:.4g}) has been above the baseline ({baseline:.4g})"
            raise Diverged(f"{reason} for {self.bad} lines of metrics in a row, after it had been well below.", samples)
