"""The steps of a horizon: which rows ahead are forecast, and where their forecasts wait.

Targets and outputs of S steps stand side by side, the nearest step first. Block s of a
row's targets is the row's value, which was to be forecast `steps[s]` rows before.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from norewind import checks


def checked_steps(what: str, steps: Sequence[int]) -> tuple[int, ...]:
    """Steps as a tuple.

    Raises:
        ModelError: if they are not whole numbers of at least 1 in increasing order.
    """
    found = tuple(int(step) for step in steps)
    if not found or found[0] < 1 or any(later <= step for step, later in pairwise(found)):
        raise checks.ModelError(f"{what}: steps must be whole numbers from 1 in increasing order, not {tuple(steps)}.")
    return found


def shifted_blocks(rows: np.ndarray, steps: Sequence[int], count: int, *, parts: int = 1, back: bool) -> np.ndarray:
    """`count` rows whose block s is taken `steps[s]` rows further on, or further back from the last step.

    Args:
        rows: blocks of all steps side by side, of shape (count + steps[-1], parts * steps * width).
        steps: the steps.
        count: the number of rows.
        parts: how often the blocks of all steps are repeated: 2 for means followed by variances.
        back: take row i + steps[-1] - steps[s] (what was forecast of a row) instead of row i + steps[s] (what came).
    """
    blocks = rows.reshape(len(rows), parts, len(steps), -1)
    found = np.empty((count, *blocks.shape[1:]), rows.dtype)
    for place, step in enumerate(steps):
        start = steps[-1] - step if back else step
        found[:, :, place] = blocks[start : start + count, :, place]
    return found.reshape(count, rows.shape[1])


def forecasts_to_come(made: np.ndarray, steps: Sequence[int], *, parts: int = 1) -> np.ndarray:
    """The forecasts of the next rows, each by the nearest step that reaches it.

    Args:
        made: the forecasts made at the newest `steps[-1]` rows, oldest first.
        steps: the steps.
        parts: see `shifted_blocks`.

    Returns:
        An array with one row for each of the next `steps[-1]` rows.
    """
    horizon, blocks = steps[-1], made.reshape(len(made), parts, len(steps), -1)
    found = []
    for row in range(1, horizon + 1):
        place = next(place for place, step in enumerate(steps) if step >= row)
        found.append(blocks[horizon - 1 - (steps[place] - row), :, place].reshape(-1))
    return np.array(found)
