"""Networks for keys: rows wait for their targets, are sorted by key, and go through compiled programs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from norewind.core.run import Run
from norewind.core.trees import Tree
from norewind.engines.kernels import kernel
from norewind.learners.keys.engine import Engine, NetworkProgram, SlotArrays
from norewind.learners.keys.private import PrivateNetworks
from norewind.learners.keys.shared import SharedNetwork
from norewind.learners.steps import exchange_columns, row_offsets, upcoming_forecasts

# The number of rows is padded to a power of two, and at least to this, so that few sizes are compiled.
LEAST_ROWS = 4096


class PendingRows(NamedTuple):
    """The rows of one key that are waiting for their targets, as in an `AheadRun`.

    Attributes:
        xs: the inputs of the newest rows.
        targets: their targets.
        outputs: their forecasts.
        steps: the steps, in rows ahead.
        parts: how often the blocks of all steps are repeated in the outputs.
        losses: computes the losses of many rows from forecasts and targets; None for losses of zero.
    """

    xs: np.ndarray
    targets: np.ndarray
    outputs: np.ndarray
    steps: tuple[int, ...]
    parts: int
    losses: Callable | None


class NetworkEngine(Engine):
    """Learns every key's rows with the key's own network, or one for all.

    Args:
        learner: the network, from `online`.
        run: the run that every key starts from.
        share: whether all keys share one network.
        pending: the initial pending rows of a key, to forecast rows ahead; None to predict the row itself.
    """

    any_order = False  # see `sorted_by_key`

    def __init__(self, learner: Any, run: Run, share: bool, pending: PendingRows | None = None):
        self.program: NetworkProgram = (SharedNetwork if share else PrivateNetworks)(learner, run)
        self.own, self.shared, self.pending = dict(self.program.own), self.program.shared, pending
        if pending is not None:
            xs, targets, outputs, steps, parts, _ = pending
            self.own |= {"rows": np.zeros((), np.int64), "xs": xs, "targets": targets, "outputs": outputs}
            self._far = np.full(xs[0].size, steps[-1])
            self._known = steps[-1] - row_offsets(steps, targets.shape[1] // len(steps))
            self._due = row_offsets(steps, outputs.shape[1] // len(steps) // parts, parts=parts)

    def learn(self, shared: Tree, arrays: SlotArrays, slots: np.ndarray, xs: Any, targets: Any):
        if self.pending is None:
            every_row = np.ones(len(slots), bool)
            shared, made, losses = self.program.learn(shared, arrays, slots, (xs, targets, None), every_row)
            return shared, losses, made, made
        # The row to learn from is an earlier one, whose last target has just arrived.
        rows_before = np.zeros(len(slots), np.int64)
        count_rows(arrays["rows"], slots, rows_before)
        rows = (
            earlier_values(arrays["xs"], self._far, slots, rows_before, xs),
            earlier_values(arrays["targets"], self._known, slots, rows_before, targets),
            xs,
        )
        shared, made, _ = self.program.learn(shared, arrays, slots, rows, rows_before >= self.pending.steps[-1])
        due = earlier_values(arrays["outputs"], self._due, slots, rows_before, made)
        return shared, self._losses(due, targets, rows_before), made, due

    def answer(self, arrays: SlotArrays, xs: Any) -> tuple[np.ndarray, np.ndarray]:
        made = self.program.answer(arrays, xs)
        if self.pending is None:
            return made, made
        return made, earlier_values(arrays["outputs"], self._due, np.arange(len(xs)), arrays["rows"], made)

    def upcoming(self, record: np.ndarray) -> np.ndarray:
        assert self.pending is not None
        ring = record["outputs"].reshape(len(record["outputs"]), self.pending.parts, -1)
        return upcoming_forecasts(ring, self.pending.steps, int(record["rows"]))

    def _losses(self, due: np.ndarray, targets: np.ndarray, rows_before: np.ndarray) -> np.ndarray:
        """Return the losses of forecasts; the first rows of a key have no forecast, and a loss of zero."""
        assert self.pending is not None
        if self.pending.losses is None:
            return np.zeros(len(due))
        known = np.where(rows_before[:, None] < self.pending.steps[-1] - self._known, np.nan, targets).astype(
            targets.dtype
        )
        room = max(LEAST_ROWS, 1 << (len(due) - 1).bit_length()) - len(due)
        padded = (np.pad(part, ((0, room), (0, 0))) for part in (due, known))
        losses = np.asarray(self.pending.losses(*padded))[: len(due)]
        return np.where(rows_before < self.pending.steps[0], 0, losses)


def earlier_values(
    rings: np.ndarray, offsets: np.ndarray, slots: np.ndarray, rows_before: np.ndarray, new: Any
) -> np.ndarray:
    """Return the values that each key had some rows earlier, column by column.

    Before a key's first row, these are the initial values of the rings.

    Args:
        rings: the newest rows of every slot, which are updated: row t is at t modulo their number.
        offsets: how many rows earlier, for each column.
        slots: the slots of the rows.
        rows_before: the number of earlier rows of the key of each row.
        new: the rows.
    """
    new = np.ascontiguousarray(new, rings.dtype)
    old = np.empty_like(new)
    flat = rings.reshape(*rings.shape[:2], -1)
    exchange_rows(flat, offsets, slots, rows_before, new.reshape(len(new), -1), old.reshape(len(new), -1))
    return old


@kernel
def exchange_rows(rings, offsets, slots, rows_before, new, old):
    """Store each row in its key's ring, and write the key's values of `offsets` rows earlier.

    Args:
        rings: the newest rows of every slot, changed in place.
        offsets: how many rows earlier, for each column.
        slots: the slots of the rows.
        rows_before: the number of earlier rows of the key of each row.
        new: the rows.
        old: where to write the earlier values.
    """
    for t in range(len(slots)):
        exchange_columns(rings[slots[t]], offsets, rows_before[t], new[t], old[t])


@kernel
def count_rows(rows, slots, rows_before):
    """Count the rows of every key.

    Args:
        rows: the number of rows of every slot, changed in place.
        slots: the slots of the rows.
        rows_before: where to write the number of earlier rows of the key of each row.
    """
    for t in range(len(slots)):
        rows_before[t] = rows[slots[t]]
        rows[slots[t]] += 1
