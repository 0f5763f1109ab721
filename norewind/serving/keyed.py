"""A fleet, as the service uses it: a row is answered from the run of its key."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from norewind.fleets.fleet import Fleet
from norewind.fleets.store import LAST, Store
from norewind.serving.rows import RowModel, rows_so_far
from norewind.streams.columns import BadRow
from norewind.streams.rows import KeyedStream
from norewind.streams.stream import Samples


def model_of(training: Any) -> RowModel:
    """What answers for a training."""
    return (FleetModel if isinstance(training.steps.stream, KeyedStream) else RowModel)(training)


class FleetModel(RowModel):
    """A run with a model for every key.

    The keys' records change in place while the fleet learns. Those that change are copied before
    (`Slots.seen`), so that a row is always answered from what was published last. Keys that are not resident
    are read from disk, and a key that is not there either is answered as a new one.
    """

    def __init__(self, training: Any):
        self.training, self.stream, self.score = training, training.steps.stream, training.score
        self.reader = self.stream._reader
        self.fleet: Fleet = training.learner
        self.store = Store(training.folder.path, self.fleet.slots.layout, write=False)
        self.rows = self.kept = rows_so_far(training)
        self.until = LAST
        self.fleet.slots.watched = True
        self.fleet.rehearse(training.run)

    def warm_up(self, rows: int) -> None:
        self.fleet.answer(np.repeat(self.fleet.slots.fresh, rows), np.zeros((rows, self.stream.layout.columns)))

    def publish(self) -> None:
        self.fleet.slots.show()
        self.rows = rows_so_far(self.training)

    def keep(self, samples: int) -> None:
        self.kept = samples

    def go_back(self) -> None:
        """Answer from the checkpoint: the keys as they were then are on disk."""
        self.rows = self.until = self.kept

    def close(self) -> None:
        self.store.close()

    def answers(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        keys = [self._key(row) for row in rows]
        number, records = self.rows, np.concatenate([self._record(key) for key in keys])
        values = np.array([self.reader.conversion.values(row, new=False) for row in rows], np.float64)
        samples = Samples(values, values[:, self.stream.layout.targets], keys=np.array(keys, object))
        entries = list(self.score.predictions(number + 1, samples, self.fleet.answer(records, values)))
        for place, entry in enumerate(entries):
            entry["sample"] -= place  # every one of them would be the next row
        return entries

    def _record(self, key: bytes) -> np.ndarray:
        slots = self.fleet.slots
        record = slots.seen(key) if self.until == LAST else None
        if record is not None:
            return record
        content = self.store.read(key, self.until)
        return slots.fresh if content is None else slots.record(key, content)

    def _key(self, row: dict[str, Any]) -> bytes:
        key = self.stream.key_of(row)
        if key is None:
            raise BadRow(f"its key belongs to another shard than {self.stream.shard[0]}")
        return key

    def _check(self, row: dict[str, Any]) -> None:
        super()._check(row)
        self._key(row)
