"""Forecasts that wait for the rows they are of: a ring for every step of a horizon, one after the other."""

from collections.abc import Sequence

import numpy as np

from norewind.kernels import kernel


def empty(steps: Sequence[int], *shape: int) -> np.ndarray:
    """Rings for forecasts: `step` of them for every step, each with this shape."""
    return np.zeros((sum(steps), *shape), np.float32)


@kernel
def exchange(rings, steps, row, made, due):
    """Put away the forecasts made at a row, and take out those that had been made of it.

    `made` and `due` have shape (parts, steps x targets), `rings` (places, parts, targets). Zeros come out where
    nothing was forecast yet.
    """
    parts, targets = rings.shape[1:]
    start = 0
    for s in range(len(steps)):
        place = start + row % steps[s]
        for part in range(parts):
            for i in range(targets):
                before = rings[place, part, i]
                rings[place, part, i] = made[part, s * targets + i]
                due[part, s * targets + i] = before
        start += steps[s]


def pending(rings: np.ndarray, steps: Sequence[int], rows: int) -> np.ndarray:
    """After `rows` rows, what is forecast of each of the next ones, by the nearest step that reaches it."""
    ahead = np.arange(1, steps[-1] + 1)
    nearest = np.searchsorted(steps, ahead)
    own = np.asarray(steps)[nearest]
    starts = np.cumsum(steps)[nearest] - own
    # Row t + r is the forecast made at row t + r − step; t is `rows` − 1.
    return rings[starts + (rows - 1 + ahead - own) % own].reshape(len(ahead), -1)
