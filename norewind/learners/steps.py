"""The steps of a horizon: which rows ahead are forecast, and where forecasts are stored until their targets arrive.

Targets and outputs of S steps are stored side by side, the nearest step first. Block s of a row's
targets repeats the row's own value: it is the target of the forecast made `steps[s]` rows before.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from norewind.core import checks
from norewind.engines.kernels import kernel

# Common periods of series, in rows. Every additional one costs a little on all other series.
PERIODS = (7, 12, 24, 168)


def checked_steps(what: str, steps: Sequence[int]) -> tuple[int, ...]:
    """Check steps, and return them as a tuple.

    Args:
        what: the start of error messages.
        steps: the steps.

    Raises:
        ModelError: they are neither whole numbers of at least 1 in increasing order, nor 0 alone.
    """
    found = tuple(int(step) for step in steps)
    if found != (0,) and (not found or found[0] < 1 or any(later <= step for step, later in pairwise(found))):
        raise checks.ModelError(
            f"{what}: steps must be whole numbers from 1 in increasing order, or 0 alone, not {tuple(steps)}."
        )
    return found


def same_length(xs: Any, targets: Any) -> None:
    """Check that there are as many targets as inputs.

    Args:
        xs: the inputs.
        targets: the targets.

    Raises:
        ModelError: the lengths differ.
    """
    if len(xs) != len(targets):
        checks.common_length("scan", xs=xs, targets=targets)


@lru_cache(maxsize=64)
def row_offsets(steps: tuple[int, ...], width: int, *, parts: int = 1) -> np.ndarray:
    """Return the step of each column, if the columns of all steps are stored side by side.

    Args:
        steps: the steps.
        width: the number of columns of each step.
        parts: how often all of them are repeated.
    """
    return np.tile(np.repeat(np.array(steps, np.int64), width), parts)


@kernel
def shift_columns(rows, offsets, out):
    """Fill `out` with columns of later rows: column j of row i is that of row i + offsets[j].

    With the steps as offsets, these are the targets that follow each row. With the
    differences from the last step, applied to rows of forecasts, they are the earlier forecasts of each row.

    Args:
        rows: the rows.
        offsets: how many rows later, for each column.
        out: where to write the result.
    """
    for row in range(out.shape[0]):
        for column in range(out.shape[1]):
            out[row, column] = rows[row + offsets[column], column]


@kernel
def exchange_columns(ring, offsets, row, new, old):
    """Store a row in a ring, and write each column's value of `offsets` rows earlier.

    Args:
        ring: the newest rows, changed in place: row t is at t modulo their number.
        offsets: how many rows earlier, for each column; at most the number of rows in the ring.
        row: the number of the row in its sequence.
        new: the row.
        old: where to write the earlier values.
    """
    depth = len(ring)
    for column in range(len(new)):
        earlier = (row - offsets[column]) % depth
        old[column] = new[column] if offsets[column] == 0 else ring[earlier, column]
    for column in range(len(new)):
        ring[row % depth, column] = new[column]


@kernel
def delay_rows(ring, offsets, row, new, old):
    """Do `exchange_columns` for consecutive rows.

    Args:
        ring: the newest rows, changed in place.
        offsets: how many rows earlier, for each column.
        row: the number of the first row in its sequence.
        new: the rows.
        old: where to write the earlier values.
    """
    for t in range(len(new)):
        exchange_columns(ring, offsets, row + t, new[t], old[t])


@kernel
def exchange(ring, steps, row, made, due):
    """Take the earlier forecasts of a row from a ring, and store the forecasts made at the row.

    Args:
        ring: the forecasts made at the newest `steps[-1]` rows (rows, parts, outputs), changed in place.
        steps: the steps, in rows ahead.
        row: the number of the row in its sequence.
        made: the forecasts made at the row (parts, outputs).
        due: where to write the earlier forecasts of the row; zeros where there is none yet. May be the same array as
            `made`.
    """
    parts, outputs = made.shape
    per_step, rows = outputs // len(steps), len(ring)
    for part in range(parts):
        for s in range(len(steps)):
            place = (row - steps[s]) % rows
            for i in range(s * per_step, (s + 1) * per_step):
                # The newest forecasts take the place of the oldest, which are read first.
                before = ring[place, part, i]
                ring[row % rows, part, i] = made[part, i]
                due[part, i] = before


def upcoming_forecasts(ring: np.ndarray, steps: tuple[int, ...], rows: int) -> np.ndarray:
    """Return the forecasts of the next rows, each by the nearest step that reaches it.

    Args:
        ring: the forecasts made at the newest `steps[-1]` rows, as `exchange` keeps them.
        steps: the steps.
        rows: the number of rows so far.

    Returns:
        An array with one row for each of the next `steps[-1]` rows.
    """
    late, place = nearest_steps(steps)
    _, parts, outputs = ring.shape
    blocks = ring.reshape(len(ring), parts, len(steps), outputs // len(steps))
    return blocks[(rows - 1 - late) % len(ring), :, place].reshape(len(late), parts * outputs // len(steps))


@lru_cache(maxsize=64)
def nearest_steps(steps: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each of the next rows, how many rows ago its forecast was made, and the index of its step."""
    ahead = np.arange(1, steps[-1] + 1)
    place = np.searchsorted(steps, ahead)
    return np.array(steps)[place] - ahead, place
