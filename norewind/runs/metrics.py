"""Metrics of a run: mean losses that do not depend on how the stream was cut, and a watch for divergence."""

from typing import Any

import numpy as np

PATIENCE = 5
"""The number of bad lines in a row that count as divergence. A single one may be an odd stretch of the stream."""
LEARNED = 0.9
"""Below this fraction of the baseline, a run has learned something that it can lose."""
CARRY_LIMIT = 1e6
"""Healthy runs stay below a thousandth of this (an influence of 10⁶, which is about the square of the norm)."""


class Diverged(ArithmeticError):
    """A run diverged at sample `samples`. The last good checkpoint is kept."""

    def __init__(self, message: str, samples: int):
        super().__init__(message)
        self.samples = samples


def running_sum(start: float, values: np.ndarray) -> float:
    """The sum of a start and of values in order. (np.sum adds pairwise: its rounding depends on the cut.)"""
    return float(np.cumsum(np.concatenate([[start], np.ravel(values).astype(np.float64)]))[-1])


class Tally:
    """Losses since the last line of metrics and from the start. A sample without a known target has no loss."""

    def __init__(self, entries: dict[str, Any] | None = None):
        entries = entries or {}
        self.samples: int = entries.get("samples", 0)
        self.interval: list = entries.get("interval", [0, 0.0])
        self.all: list = entries.get("all", [0, 0.0])

    def add(self, losses: np.ndarray, samples: int, scored: int) -> None:
        """Add samples, of which `scored` have a loss (summed over each window)."""
        self.samples += samples
        for sums in (self.interval, self.all):
            sums[0] += scored
            sums[1] = running_sum(sums[1], losses)

    def take(self) -> dict[str, Any]:
        """The mean loss since the last call and from the start. Starts a new interval."""
        line = {"samples": self.samples, "loss": mean(self.interval), "mean": mean(self.all)}
        self.interval = [0, 0.0]
        return line

    def entries(self) -> dict[str, Any]:
        """What to save."""
        return {"samples": self.samples, "interval": list(self.interval), "all": list(self.all)}


def mean(sums: list) -> float | None:
    """The mean from a count and a total; None without any."""
    count, total = sums
    return total / count if count else None


class Watch:
    """Looks at every line of metrics, and raises `Diverged`.

    A run has diverged when the norm of its carry exceeds `CARRY_LIMIT`, or when its
    loss has been above the baseline for `PATIENCE` lines in a row after it had been well
    below.
    """

    def __init__(self, entries: dict[str, Any] | None = None):
        entries = entries or {}
        self.good: int = entries.get("good", 0)
        self.bad: int = entries.get("bad", 0)

    @property
    def healthy(self) -> bool:
        """Whether the newest line was fine. Only then is a checkpoint worth keeping."""
        return self.bad == 0

    def see(self, line: dict[str, Any]) -> None:
        """Look at one line of metrics."""
        samples = line["samples"]
        if line["carry"] is None or line["carry"] > CARRY_LIMIT:
            size = "not finite" if line["carry"] is None else f"{line['carry']:g}"
            raise Diverged(f"at sample {samples} the norm of the carry is {size}, above {CARRY_LIMIT:g}.", samples)
        loss, baseline = line["loss"], line.get("baseline")
        if loss is None or baseline is None:
            return
        if self.good < PATIENCE:
            self.good = self.good + 1 if loss < baseline - (1 - LEARNED) * abs(baseline) else 0
            return
        self.bad = self.bad + 1 if loss > baseline else 0
        if self.bad >= PATIENCE:
            raise Diverged(
                f"at sample {samples} the loss ({loss:.4g}) has been above the baseline ({baseline:.4g}) for "
                f"{self.bad} lines of metrics in a row, after it had been well below.",
                samples,
            )

    def entries(self) -> dict[str, Any]:
        """What to save."""
        return {"good": self.good, "bad": self.bad}
