"""The records of keys, in memory or on disk, for another thread or another process than the one that learns."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from norewind.fleets.slots import Slots
from norewind.fleets.store import MAX_SAMPLES, Store


class KeyRecords:
    """The records of all keys of a fleet, to be read only.

    Records change in place while the fleet learns. Those about to change are copied first, so that a record is read as
    it was when `publish` was called last. Keys that are not in memory are read from disk.

    Args:
        slots: the keys in memory.
        folder: the run folder, with the keys on disk.

    Attributes:
        fresh: the record of a new key, as an array of one.

    Raises:
        CheckpointError: the keys on disk are missing, or were written for a different model.
    """

    def __init__(self, slots: Slots, folder: Path):
        self._slots, self._store, self.fresh = slots, Store(folder, slots.layout, write=False), slots.fresh
        slots.watched = True

    def publish(self) -> None:
        """Make the current records visible to `read`. Called by the thread that learns."""
        self._slots.publish()

    def read(self, keys: Iterable[bytes], until: int = MAX_SAMPLES) -> np.ndarray:
        """Return the record of each key; that of a new key if there is none.

        Args:
            keys: the keys, as bytes.
            until: the number of samples at the checkpoint to read from; by default the newest records.
        """
        return np.concatenate([self._read(key, until) for key in keys])

    def _read(self, key: bytes, until: int) -> np.ndarray:
        record = self._slots.published(key) if until == MAX_SAMPLES else None
        return self._slots.record(key, self._store.read(key, until)) if record is None else record

    def on_disk(self) -> Iterator[tuple[bytes, np.ndarray]]:
        """Iterate over all keys on disk in order, with their newest records."""
        for key, content in self._store.all():
            yield key, self._slots.record(key, content)[0]

    def close(self) -> None:
        """Close the file on disk."""
        self._store.close()
