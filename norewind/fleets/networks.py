"""Networks for keys: rows sorted by key go through compiled programs, and wait for their targets before."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from norewind import checks
from norewind.fleets.private import Private
from norewind.fleets.shared import Shared
from norewind.kernels import kernel
from norewind.learners.steps import ring_to_come, row_offsets
from norewind.run import Run
from norewind.trees import Tree

# Losses are computed for a power of two of rows, and at least this many, so that few sizes are compiled.
SMALLEST = 4096


class Waiting(NamedTuple):
    """What waits for targets to come, of one key, as in an `AheadRun`: rows, their targets and their forecasts.

    `losses` are those of many rows, from forecasts and targets. `parts` is how often the outputs have the numbers of
    all steps.
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
        run: where a key starts from.
        window: for one network for all keys, the rows that are looked at together.
        waiting: to forecast rows ahead, what waits for targets to come.
    """

    chunk = 1 << 17

    def __init__(self, learner: Any, run: Run, window: int | None, waiting: Waiting | None = None):
        self.program = Private(learner, run) if window is None else Shared(learner, run, window)
        self.own, self.shared, self.waiting = dict(self.program.own), self.program.shared, waiting
        if waiting is not None:
            xs, targets, outputs, steps, parts, _ = waiting
            self.own |= {"rows": np.zeros((), np.int64), "xs": xs, "targets": targets, "outputs": outputs}
            self._far = np.full(xs[0].size, steps[-1])
            self._known = steps[-1] - row_offsets(steps, targets.shape[1] // len(steps))
            self._due = row_offsets(steps, outputs.shape[1] // len(steps) // parts, parts=parts)

    def learn(self, shared: Tree, arrays: dict[str, np.ndarray], places: np.ndarray, xs: Tree, targets: Tree):
        seen, rows = np.zeros(len(places), np.int64), (xs, targets, None)
        if self.waiting is not None:
            # The row to learn from came before: with the last of its targets, all are known.
            count_rows(arrays["rows"], places, seen)
            rows = (
                before(arrays["xs"], self._far, places, seen, xs),
                before(arrays["targets"], self._known, places, seen, targets),
                xs,
            )
        horizon = 0 if self.waiting is None else self.waiting.steps[-1]
        shared, made, losses = self.program.learn(shared, arrays, places, rows, seen >= horizon)
        if self.waiting is None:
            return shared, losses, made, made
        due = before(arrays["outputs"], self._due, places, seen, made)
        return shared, self._losses(due, targets, seen), made, due

    def answer(self, arrays: dict[str, np.ndarray], xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(self.program, Private):
            raise checks.ModelError("answer: the keys share one model, which learns many rows at a time.")
        made = self.program.answer(arrays, xs)
        if self.waiting is None:
            return made, made
        return made, before(arrays["outputs"], self._due, np.arange(len(xs)), arrays["rows"], made)

    def pending(self, record: np.ndarray) -> np.ndarray:
        assert self.waiting is not None
        ring = record["outputs"].reshape(len(record["outputs"]), self.waiting.parts, -1)
        return ring_to_come(ring, self.waiting.steps, int(record["rows"]))

    def _losses(self, due: np.ndarray, targets: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """The losses of forecasts, of which the first rows of a key have none."""
        assert self.waiting is not None
        if self.waiting.losses is None:
            return np.zeros(len(due))
        known = np.where(seen[:, None] < self.waiting.steps[-1] - self._known, np.nan, targets).astype(targets.dtype)
        room = max(SMALLEST, 1 << (len(due) - 1).bit_length()) - len(due)
        padded = (np.pad(part, ((0, room), (0, 0))) for part in (due, known))
        losses = np.asarray(self.waiting.losses(*padded))[: len(due)]
        return np.where(seen < self.waiting.steps[0], 0, losses)


def before(rings: np.ndarray, offsets: np.ndarray, places: np.ndarray, seen: np.ndarray, new: Any) -> np.ndarray:
    """What each key had some rows before, column by column; zeros, or what the rings began with, before its first row.

    Args:
        rings: the newest rows of every slot, which are brought up to date: row t is at t modulo their number.
        offsets: how many rows before, for each column.
        places: the slots of the rows.
        seen: the number of rows that the key of each row has had before.
        new: the rows.
    """
    new = np.ascontiguousarray(new, rings.dtype)
    old = np.empty_like(new)
    flat = rings.reshape(*rings.shape[:2], -1)
    exchange_rows(flat, offsets, places, seen, new.reshape(len(new), -1), old.reshape(len(new), -1))
    return old


@kernel
def exchange_rows(rings, offsets, places, seen, new, old):
    """Put away each row in its key's ring, and take out of it what the key had `offsets` rows before."""
    depth = rings.shape[1]
    for t in range(len(places)):
        ring, row = rings[places[t]], seen[t]
        for column in range(new.shape[1]):
            there = (row - offsets[column]) % depth
            old[t, column] = new[t, column] if offsets[column] == 0 else ring[there, column]
        ring[row % depth] = new[t]


@kernel
def count_rows(rows, places, seen):
    """Count the rows of every key; `seen` is how many it had before each."""
    for t in range(len(places)):
        seen[t] = rows[places[t]]
        rows[places[t]] += 1
