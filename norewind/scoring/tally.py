"""Mean losses that do not depend on the chunk size."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from norewind.streams.position import Count

Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
# The number of values, and their sum.
Sums = tuple[Count, Number]


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


def running_sum(start: float, values: np.ndarray) -> float:
    """Add values to a sum, in order. (np.sum adds pairwise, so its rounding depends on how values are cut into chunks.)

    Args:
        start: the sum so far.
        values: the values to add.
    """
    return float(np.cumsum(np.concatenate([[start], np.ravel(values).astype(np.float64)]))[-1])


def mean(sums: Sequence[float]) -> float | None:
    """Return the mean from a count and a sum; None if the count is 0."""
    count, total = sums
    return total / count if count else None
