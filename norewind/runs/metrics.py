"""Metrics of a run: mean losses that do not depend on the size of chunks, and a watch for divergence."""

import sys
from collections.abc import Sequence
from functools import lru_cache
from math import isfinite, isqrt
from typing import Annotated, Any

import msgspec
import numpy as np

from norewind.streams.position import Count

Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
# How many values, and their sum.
Sums = tuple[Count, Number]

# The number of bad lines in a row that count as divergence. A single one may be an unusual part of the stream.
PATIENCE = 5
# Below this fraction of the baseline, a run has learned something that it can lose.
LEARNED = 0.9
# Healthy runs stay below a thousandth of this (an influence of 10⁶, which is about the square of the norm).
CARRY_LIMIT = 1e6


# Samples that the watch looks at together: the mean of fewer says little.
SEEN_AT_ONCE = 10_000
# Lines of metrics are a twelfth of all steps apart, and closer at the beginning, n √n / EARLY at step n: about 200
# lines, whether a stream has 400 steps or a million.
SHARE, EARLY = 12, 450


class Diverged(ArithmeticError):
    """A run diverged at sample `samples`. The last good checkpoint is kept."""

    def __init__(self, message: str, samples: int):
        super().__init__(message)
        self.samples = samples


def running_sum(start: float, values: np.ndarray) -> float:
    """The sum of a start and of values in order. (np.sum adds pairwise: its rounding depends on the cut.)"""
    return float(np.cumsum(np.concatenate([[start], np.ravel(values).astype(np.float64)]))[-1])


@lru_cache(maxsize=64)
def next_line(samples: int, every: int | None = None, window: int = 1) -> int:
    """The number of samples at the next line of metrics, by default after a number of whole windows.

    >>> next_line(150), next_line(10_000), next_line(10_000, window=16), next_line(150, every=100)
    (151, 10766, 10208, 200)
    """
    if every is not None:
        return (samples // every + 1) * every
    line, steps = 0, samples // window
    while line <= steps:
        line += max(1, min(line // SHARE, line * isqrt(line) // EARLY))
    return line * window


def at_the_end(ends: np.ndarray, values: np.ndarray, share: float) -> tuple[int, float]:
    """The samples of the intervals in the last share of a run, and the mean of values there; NaN if it is not known.

    `ends` are the samples at which the intervals end.

    >>> at_the_end(np.array([80, 95, 100]), np.array([4.0, 2.0, 1.0]), 0.1)
    (20, 1.75)
    """
    late = ends > (1 - share) * ends[-1]
    chosen, lengths = late & ~np.isnan(values), np.diff(ends, prepend=0)
    weights = lengths[chosen]
    mean = float(np.sum(weights * values[chosen]) / np.sum(weights)) if chosen.any() else float("nan")
    return int(lengths[late].sum()), mean


class Tally(msgspec.Struct, forbid_unknown_fields=True):
    """Losses since the last line of metrics and from the start. A sample without a known target has no loss."""

    samples: Count = 0
    interval: Sums = (0, 0.0)
    all: Sums = (0, 0.0)

    def add(self, losses: np.ndarray, samples: int, scored: int) -> None:
        """Add samples, of which `scored` have a loss (summed over each window)."""
        self.samples += samples
        self.interval = self.interval[0] + scored, running_sum(self.interval[1], losses)
        self.all = self.all[0] + scored, running_sum(self.all[1], losses)

    def take(self) -> dict[str, Any]:
        """The mean loss since the last call and from the start. Starts a new interval."""
        line = {"samples": self.samples, "loss": mean(self.interval), "mean": mean(self.all)}
        self.interval = (0, 0.0)
        return line


def digits(value: float | None) -> float | None:
    """A number as it is written down, with six digits; None if it is not finite."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")


def seven_digits(value: float) -> float | None:
    """A forecast as it is written down: with the digits that it has. None if it is not finite."""
    return float(f"{value:.7g}") if isfinite(value) else None


def counted(number: int, word: str) -> str:
    """A number of things in words.

    >>> counted(1, "sample"), counted(1_000, "sample")
    ('1 sample', '1,000 samples')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def listed(things: Sequence[Any]) -> str:
    """Things in a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *first, last = map(str, things)
    return f"{', '.join(first)} and {last}" if first else last


def mean(sums: Sequence[float]) -> float | None:
    count, total = sums
    return total / count if count else None


class Watch(msgspec.Struct, forbid_unknown_fields=True):
    """Looks at every line of metrics, and raises `Diverged`.

    A run has diverged when the norm of its carry exceeds `CARRY_LIMIT`, or when its
    loss has been above the baseline for `PATIENCE` lines in a row after it had been well
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

    def see(self, line: dict[str, Any], together: int = 0) -> None:
        """Look at a line; with `together`, at the mean of the lines over that many samples."""
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
        if self.waiting[0] < together:
            return
        if together:
            loss, baseline = self.waiting[1] / self.waiting[0], self.waiting[2] / self.waiting[0]
        self.waiting = (0, 0.0, 0.0)
        if self.good < PATIENCE:
            self.good = self.good + 1 if loss < baseline - (1 - LEARNED) * abs(baseline) else 0
            return
        self.bad = self.bad + 1 if loss > baseline else 0
        if self.bad >= PATIENCE:
            above = (
                f"the loss ({loss:.4g}) has been above the baseline ({baseline:.4g}) for {self.bad} lines of metrics"
            )
            raise Diverged(f"at sample {samples} {above} in a row, after it had been well below.", samples)
