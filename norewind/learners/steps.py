"""The steps of a horizon: which rows ahead are forecast, and where their forecasts wait.

Targets and outputs of S steps stand side by side, the nearest step first. Block s of a
row's targets is the row's value, which was to be forecast `steps[s]` rows before.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from norewind import checks
from norewind.kernels import kernel


def checked_steps(what: str, steps: Sequence[int]) -> tuple[int, ...]:
    """Steps as a tuple.

    Raises:
        ModelError: if they are not whole numbers of at least 1 in increasing order.
    """
    found = tuple(int(step) for step in steps)
    if not found or found[0] < 1 or any(later <= step for step, later in pairwise(found)):
        raise checks.ModelError(f"{what}: steps must be whole numbers from 1 in increasing order, not {tuple(steps)}.")
    return found


def same_length(xs: Any, targets: Any) -> None:
    """Check that there are as many targets as inputs."""
    if len(xs) != len(targets):
        checks.common_length("scan", xs=xs, targets=targets)


@lru_cache(maxsize=64)
def row_offsets(steps: tuple[int, ...], width: int, *, parts: int = 1) -> np.ndarray:
    """The step of each column, where `width` columns of every step stand side by side, `parts` times."""
    return np.tile(np.repeat(np.array(steps, np.int64), width), parts)


@kernel
def shift_columns(rows, offsets, out):
    """Fill `out` with columns of later rows: column j of row i is that of row i + offsets[j].

    With the steps as offsets, these are the targets that come after each row. With the
    differences to the last step, and rows of forecasts, they are those made of each row.
    """
    for row in range(out.shape[0]):
        for column in range(out.shape[1]):
            out[row, column] = rows[row + offsets[column], column]


@kernel
def exchange(ring, steps, row, made, due):
    """Take out what had been forecast of a row, and put away the forecasts made at it, (parts, outputs).

    `ring` has those of the newest `steps[-1]` rows. Zeros come out where nothing was
    forecast yet. `made` and `due` may be the same array.
    """
    parts, outputs = made.shape
    per_step, rows = outputs // len(steps), len(ring)
    for part in range(parts):
        for s in range(len(steps)):
            place = (row - steps[s]) % rows
            for i in range(s * per_step, (s + 1) * per_step):
                # The oldest place is that of the newest forecasts.
                before = ring[place, part, i]
                ring[row % rows, part, i] = made[part, i]
                due[part, i] = before


def forecasts_to_come(made: np.ndarray, steps: Sequence[int], *, parts: int = 1) -> np.ndarray:
    """The forecasts of the next rows, each by the nearest step that reaches it.

    Args:
        made: the forecasts made at the newest `steps[-1]` rows, oldest first.
        steps: the steps.
        parts: how often the blocks of all steps are repeated: 2 for means followed by variances.

    Returns:
        An array with one row for each of the next `steps[-1]` rows.
    """
    return ring_to_come(made.reshape(len(made), parts, -1), tuple(steps), 0)


def ring_to_come(ring: np.ndarray, steps: tuple[int, ...], rows: int) -> np.ndarray:
    """As `forecasts_to_come`, from the ring of `exchange` after `rows` rows."""
    late, place = nearest_steps(steps)
    blocks = ring.reshape(*ring.shape[:2], len(steps), -1)
    return blocks[(rows - 1 - late) % len(ring), :, place].reshape(len(late), -1)


@lru_cache(maxsize=64)
def nearest_steps(steps: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """For each of the next rows, how many rows ago its forecast was made, and the number of its step."""
    ahead = np.arange(1, steps[-1] + 1)
    place = np.searchsorted(steps, ahead)
    return np.array(steps)[place] - ahead, place
