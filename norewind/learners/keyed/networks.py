"""Networks for keys: rows wait for their targets, are sorted by key, and go through compiled programs."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from norewind.core.run import Run
from norewind.core.trees import Tree
from norewind.engines.kernels import kernel
from norewind.learners.horizon import exchange_rows, is_not_forecast, upcoming_forecasts
from norewind.learners.keyed.keyed_program import KeyedProgram, SlotArrays
from norewind.learners.keyed.separate_networks import SeparateNetworks
from norewind.learners.keyed.shared_network import SharedNetwork
from norewind.learners.online import OnlineLearner

# The number of rows is padded to a power of two, and at least to this, so that few sizes are compiled.
MIN_BATCH_ROWS = 4096


class PendingRows(NamedTuple):
    """The rows of one key that are waiting for their targets, as in an `AheadRun`.

    Attributes:
        xs: the inputs of the latest rows.
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


class KeyedNetworks(KeyedProgram):
    """Learns every key's rows with the key's own network, or one for all.

    Args:
        learner: the network, from `online`.
        run: the run that every key starts from.
        share: whether all keys share one network.
        pending: the initial pending rows of a key, to forecast rows ahead; None to predict the row itself.
    """

    any_order = False  # see `sorted_by_key`

    def __init__(self, learner: OnlineLearner, run: Run, share: bool, pending: PendingRows | None = None):
        self.networks = SharedNetwork(learner, run) if share else SeparateNetworks(learner, run)
        self.own = dict(self.networks.own)
        self.shared = self.networks.shared
        self.pending = pending
        if pending is not None:
            rings = {"xs": pending.xs, "targets": pending.targets, "outputs": pending.outputs}
            self.own |= {"rows": np.zeros((), np.int64), **rings}
            self._steps = np.array(pending.steps)

    def learn(
        self,
        shared: Tree,
        arrays: SlotArrays,
        slots: np.ndarray,
        xs: Tree,
        targets: Tree,
        scales: np.ndarray | None = None,
    ):
        if self.pending is None:
            every_row = np.ones(len(slots), bool)
            shared, made, losses = self.networks.learn(shared, arrays, slots, (xs, targets, None), every_row)
            return shared, losses, made, made
        # The row to learn from is an earlier one, whose last target has just arrived.
        rows_before = np.zeros(len(slots), np.int64)
        count_rows(arrays["rows"], slots, rows_before)
        rows = (
            earlier_values(arrays["xs"], self._steps[-1:], slots, rows_before, xs),
            earlier_values(arrays["targets"], self._steps[-1] - self._steps, slots, rows_before, targets),
            xs,
        )
        shared, made, _ = self.networks.learn(shared, arrays, slots, rows, rows_before >= self.pending.steps[-1])
        due = self._earlier_forecasts(arrays, slots, rows_before, made)
        return shared, self._losses(due, targets, rows_before), made, due

    def forward(self, arrays: SlotArrays, xs: Tree, scales: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        made = self.networks.forward(arrays, xs)
        if self.pending is None:
            return made, made
        return made, self._earlier_forecasts(arrays, np.arange(len(xs)), arrays["rows"], made)

    def _earlier_forecasts(
        self, arrays: SlotArrays, slots: np.ndarray, rows_before: np.ndarray, made: np.ndarray
    ) -> np.ndarray:
        assert self.pending is not None
        return earlier_values(arrays["outputs"], self._steps, slots, rows_before, made, self.pending.parts)

    def upcoming(self, record: np.ndarray) -> np.ndarray:
        assert self.pending is not None
        ring = record["outputs"].reshape(len(record["outputs"]), self.pending.parts, -1)
        return upcoming_forecasts(ring, self.pending.steps, int(record["rows"]))

    def _losses(self, due: np.ndarray, targets: np.ndarray, rows_before: np.ndarray) -> np.ndarray:
        """Return the losses of forecasts; the first rows of a key have no forecast, and a loss of zero."""
        assert self.pending is not None
        if self.pending.losses is None:
            return np.zeros(len(due))
        known = np.where(is_not_forecast(rows_before, self.pending.steps, targets.shape[1]), np.nan, targets)
        known = known.astype(targets.dtype)
        room = max(MIN_BATCH_ROWS, 1 << (len(due) - 1).bit_length()) - len(due)
        padded = (np.pad(part, ((0, room), (0, 0))) for part in (due, known))
        losses = np.asarray(self.pending.losses(*padded))[: len(due)]
        return np.where(rows_before < self.pending.steps[0], 0, losses)


def earlier_values(
    rings: np.ndarray, steps: np.ndarray, slots: np.ndarray, rows_before: np.ndarray, new: Tree, parts: int = 1
) -> np.ndarray:
    """Store rows in the rings of their keys, and return the values that each key had some rows earlier.

    Before a key's first row, these are the initial values of the rings.

    Args:
        rings: the latest rows of every slot, which are updated: row t is at t modulo their number.
        steps: for each block of columns, how many rows earlier.
        slots: the slots of the rows.
        rows_before: the number of earlier rows of the key of each row.
        new: the rows.
        parts: how often the blocks of all steps are repeated.
    """
    new = np.ascontiguousarray(new, rings.dtype)
    old = np.empty_like(new)
    flat = rings.reshape(*rings.shape[:2], -1)
    exchange_rows(flat, steps, parts, slots, rows_before, new.reshape(len(new), -1), old.reshape(len(new), -1))
    return old


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
