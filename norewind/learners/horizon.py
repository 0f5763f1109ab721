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


def check_steps(caller: str, steps: Sequence[int]) -> tuple[int, ...]:
    """Check the steps that a learner forecasts, and return them as a tuple.

    Args:
        caller: the name of the learner, for the message.
        steps: how many rows ahead each of them is.

    Raises:
        ModelError: they are neither whole numbers of at least 1 in increasing order, nor 0 alone.
    """
    found = tuple(steps)
    whole = bool(found) and all(hasattr(step, "__index__") for step in found)
    if not whole or (found != (0,) and not all(step < later for step, later in pairwise((0, *found)))):
        raise checks.ModelError(
            f"{caller}: steps must be whole numbers from 1 in increasing order, or 0 alone, not {found}."
        )
    return tuple(map(int, found))


def check_same_length(xs: Any, targets: Any) -> None:
    """Check that there are as many targets as inputs.

    Args:
        xs: inputs, one entry per row.
        targets: targets, likewise.

    Raises:
        ModelError: the lengths differ.
    """
    if len(xs) != len(targets):
        checks.common_length("scan", xs=xs, targets=targets)


@kernel
def exchange(ring, steps, row, new, old):
    """Store a row in a ring, and take values of earlier rows from it, such as the earlier forecasts of a row.

    Columns are in one block per step, and the block of a step takes the values of that many rows earlier.

    Args:
        ring: the latest rows (rows, parts, columns), changed in place: row t is at t modulo their number, which is at
            least the largest step.
        steps: for each block of columns, how many rows earlier; 0 for the row itself.
        row: the number of the row in its sequence.
        new: the row (parts, columns).
        old: where to write the earlier values; the initial ones of the ring where there is no such row. May be the same
            array as `new`.
    """
    parts, columns = new.shape
    per_step, rows = columns // len(steps), len(ring)
    for part in range(parts):
        for s in range(len(steps)):
            place = (row - steps[s]) % rows
            for i in range(s * per_step, (s + 1) * per_step):
                # The latest values take the place of the oldest, which are read first.
                before = new[part, i] if steps[s] == 0 else ring[place, part, i]
                ring[row % rows, part, i] = new[part, i]
                old[part, i] = before


@kernel
def exchange_rows(rings, steps, parts, slots, row_numbers, new, old):
    """Apply `exchange` to rows of several series, each with its own ring.

    Args:
        rings: the rings of all slots (slots, rows, parts × columns), changed in place.
        steps: for each block of columns, how many rows earlier.
        parts: how often the blocks of all steps are repeated.
        slots: the slot of each row.
        row_numbers: the number of each row in its series.
        new: the rows (rows, parts × columns).
        old: where to write the earlier values.
    """
    columns = new.shape[1] // parts
    for t in range(len(slots)):
        ring = rings[slots[t]].reshape((rings.shape[1], parts, columns))
        exchange(ring, steps, row_numbers[t], new[t].reshape((parts, columns)), old[t].reshape((parts, columns)))


def is_not_forecast(row_numbers: np.ndarray, steps: Sequence[int], columns: int) -> np.ndarray:
    """Return which targets no earlier row has forecast (rows, columns).

    Args:
        row_numbers: the number of each row in its series.
        steps: how many rows ahead each step is.
        columns: the number of targets of all steps.
    """
    return row_numbers[:, None] < np.repeat(steps, columns // len(steps))


def upcoming_forecasts(ring: np.ndarray, steps: tuple[int, ...], rows: int) -> np.ndarray:
    """Return the forecasts of the next rows, each by the nearest step that reaches it.

    Args:
        ring: the forecasts made at the latest `steps[-1]` rows, as `exchange` keeps them.
        steps: how many rows ahead each step is.
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
