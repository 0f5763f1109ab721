"""Several horizons at once: one learner for each, on the same rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from norewind.learners.members import carry_all, forward_all, reset_all, scan_all
from norewind.trees import Tree


class Several:
    """Learners such as `Ahead` side by side, each with its own horizon, as one learner.

    Targets come side by side in the order of the members, as `RowStream` hands them out for
    several horizons. Outputs are the forecasts of all members, followed by their variances if
    there are any. A run is the tuple of their runs.

    Args:
        members: the learners, all with the same window, from the nearest to the farthest horizon.
        targets: the number of targets of each.
    """

    def __init__(self, members: Sequence[Any], targets: int):
        self.members, self.targets = list(members), targets
        self.horizon, self.window = members[-1].horizon, getattr(members[-1], "window", 1)
        if hasattr(members[-1], "chunk"):
            self.chunk = members[-1].chunk

    def scan(self, run: tuple, xs: Any, targets: np.ndarray, *, count: int | None = None, outputs: bool = False):
        """Learn from a chunk of rows; see `Ahead.scan`. Losses are summed over the horizons."""
        parts = np.split(np.asarray(targets), len(self.members), axis=-1)
        new, losses, made = scan_all(self.members, run, xs, parts, count)
        total = np.sum([np.asarray(part) for part in losses], axis=0)
        return new, (total, self.joined(made)) if outputs else total

    def forward(self, run: tuple, xs: Any, *, count: int | None = None) -> tuple[tuple, Any]:
        """Forecast from a chunk of rows without learning; see `Ahead.forward`."""
        new, made = forward_all(self.members, run, xs, count)
        return new, self.joined(made)

    def pending(self, run: tuple) -> dict[int, np.ndarray]:
        """The forecasts of future rows, by horizon; see `Ahead.pending`."""
        found = (learner.pending(part) for learner, part in zip(self.members, run, strict=True))
        return {horizon: outputs for pending in found for horizon, outputs in pending.items()}

    def reset(self, run: tuple) -> tuple:
        return reset_all(self.members, run)

    def carry(self, run: tuple) -> Tree:
        return carry_all(self.members, run)

    def joined(self, made: list[tuple]) -> tuple[np.ndarray, ...]:
        """Forecasts made and due: all means, then all variances."""
        joined = []
        for parts in zip(*made, strict=True):
            arrays = [np.asarray(part) for part in parts]
            means = [part[..., : self.targets] for part in arrays]
            joined.append(np.concatenate([*means, *(part[..., self.targets :] for part in arrays)], axis=-1))
        return tuple(joined)
