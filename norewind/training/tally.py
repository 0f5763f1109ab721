"""What happened since the last line of metrics, kept so that it does not depend on how the stream was cut."""

from typing import Any

import numpy as np


def running_sum(start: float, values: np.ndarray) -> float:
    """The sum of a start and of values in their order. (np.sum adds in pairs: its rounding depends on the cut.)"""
    return float(np.cumsum(np.concatenate([[start], np.ravel(values).astype(np.float64)]))[-1])


class Tally:
    """Losses since the last line of metrics and from the start. A sample without a known target has none."""

    def __init__(self, entries: dict[str, Any] | None = None):
        """Empty, or as it was when `entries` were saved."""
        entries = entries or {}
        self.samples: int = entries.get("samples", 0)
        self.interval: list = entries.get("interval", [0, 0.0])
        self.all: list = entries.get("all", [0, 0.0])

    def add(self, losses: np.ndarray, samples: int, scored: int) -> None:
        """Count so many samples, of which `scored` have a loss (one sum per window where there are windows)."""
        self.samples += samples
        for sums in (self.interval, self.all):
            sums[0] += scored
            sums[1] = running_sum(sums[1], losses)

    def take(self) -> dict[str, Any]:
        """The mean loss since the last call and from the start; begin a new interval."""
        line = {"samples": self.samples, "loss": _mean(self.interval), "mean": _mean(self.all)}
        self.interval = [0, 0.0]
        return line

    def entries(self) -> dict[str, Any]:
        """What to save."""
        return {"samples": self.samples, "interval": list(self.interval), "all": list(self.all)}


def _mean(sums: list) -> float | None:
    count, total = sums
    return total / count if count else None
