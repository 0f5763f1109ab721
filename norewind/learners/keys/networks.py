"""Networks for keys: rows wait for their targets, are sorted by key, and go through compiled programs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from norewind.core import checks
from norewind.core.run import Run
from norewind.core.trees import Tree
from norewind.engines.kernels import kernel
from norewind.learners.keys.private import Private
from norewind.learners.keys.shared import Shared
from norewind.learners.steps import exchange_columns, row_offsets, upcoming_forecasts

# The number of rows is padded to a power of two, and at least to this, so that few sizes are compiled.
LEAST_ROWS = 4096


class Waiting(NamedTuple):
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


class Networks:
    """Learns every key's rows with the key's own network, or one for all; see `norewind.fleets.fleet.Engine`.

    Args:
        learner: the network, from `online`.
        run: the run that every key starts from.
        share: whether all keys share one network.
        waiting: the initial waiting rows of a key, to forecast rows ahead; None to predict the row itself.
    """

    chunk_size, any_order = 1 << 17, False  # see `sorted_by_key`

    def __init__(self, learner: Any, run: Run, share: bool, waiting: Waiting | None = None):
        self.program = Shared(learner, run) if share else Private(learner, run)
        self.own, self.shared, self.waiting = dict(self.program.own), self.program.shared, waiting
        if waiting is not None:
            xs, targets, outputs, steps, parts, _ = waiting
            self.own |= {"rows": np.zeros((), np.int64), "xs": xs, "targets": targets, "outputs": outputs}
            self._far = np.full(xs[0].size, steps[-1])
            self._known = steps[-1] - row_offsets(steps, targets.shape[1] // len(steps))
            self._due = row_offsets(steps, outputs.shape[1] // len(steps) // parts, parts=parts)

    def learn(self, shared: Tree, arrays: dict[str, np.ndarray], slots: np.ndarray, xs: Tree, targets: Tree):
        """Learn from rows, in order; see `norewind.fleets.fleet.Engine.learn`.

        Args:
            shared: the part that all keys share; it must not be used afterwards.
            arrays: the arrays of all slots, changed in place.
            slots: the slot of each row.
            xs: the inputs of the rows.
            targets: their targets.

        Returns:
            The new shared part, the losses, the outputs made at the rows, and the earlier outputs for these rows.
        """
        rows_before, rows = np.zeros(len(slots), np.int64), (xs, targets, None)
        if self.waiting is not None:
            # The row to learn from is an earlier one, whose last target has just arrived.
            count_rows(arrays["rows"], slots, rows_before)
            rows = (
                earlier_values(arrays["xs"], self._far, slots, rows_before, xs),
                earlier_values(arrays["targets"], self._known, slots, rows_before, targets),
                xs,
            )
        horizon = 0 if self.waiting is None else self.waiting.steps[-1]
        shared, made, losses = self.program.learn(shared, arrays, slots, rows, rows_before >= horizon)
        if self.waiting is None:
            return shared, losses, made, made
        due = earlier_values(arrays["outputs"], self._due, slots, rows_before, made)
        return shared, self._losses(due, targets, rows_before), made, due

    def answer(self, arrays: dict[str, np.ndarray], xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the outputs for one more row of each key, without learning; see `norewind.fleets.fleet.Engine.answer`.

        Args:
            arrays: the arrays of the keys, with one entry per row; they must not be used afterwards.
            xs: the inputs of the rows.

        Returns:
            The outputs made at the rows, and the earlier outputs for these rows.

        Raises:
            ModelError: the keys share one model.
        """
        if not isinstance(self.program, Private):
            raise checks.ModelError("answer: not for keys that share one model, which predicts only while it learns.")
        made = self.program.answer(arrays, xs)
        if self.waiting is None:
            return made, made
        return made, earlier_values(arrays["outputs"], self._due, np.arange(len(xs)), arrays["rows"], made)

    def upcoming(self, record: np.ndarray) -> np.ndarray:
        """Return the forecasts of the next rows of a key.

        Args:
            record: the record of the key.
        """
        assert self.waiting is not None
        ring = record["outputs"].reshape(len(record["outputs"]), self.waiting.parts, -1)
        return upcoming_forecasts(ring, self.waiting.steps, int(record["rows"]))

    def _losses(self, due: np.ndarray, targets: np.ndarray, rows_before: np.ndarray) -> np.ndarray:
        """Return the losses of forecasts; the first rows of a key have no forecast, and a loss of zero."""
        assert self.waiting is not None
        if self.waiting.losses is None:
            return np.zeros(len(due))
        known = np.where(rows_before[:, None] < self.waiting.steps[-1] - self._known, np.nan, targets).astype(
            targets.dtype
        )
        room = max(LEAST_ROWS, 1 << (len(due) - 1).bit_length()) - len(due)
        padded = (np.pad(part, ((0, room), (0, 0))) for part in (due, known))
        losses = np.asarray(self.waiting.losses(*padded))[: len(due)]
        return np.where(rows_before < self.waiting.steps[0], 0, losses)


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
