"""The keys of a fleet: resident keys have a slot in every array, all others are on disk. Any of them can be read."""

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import repeat
from pathlib import Path
from threading import Lock

import numpy as np

from norewind.fleets.store import KEYS, MAX_SAMPLES, KeyStore
from norewind.storage.checkpoint import DamagedError

# When slots run out, at least one in this many resident keys is moved to disk, so that this happens rarely.
EVICTED_SHARE = 16
# The number of keys converted to or from records at a time.
KEYS_AT_ONCE = 256


class Slots:
    """Arrays with one slot per resident key.

    When a new key needs a slot and none is free, the keys that have been silent longest are moved
    to disk. There, a key is stored as the bytes of its record: its entries of all arrays, one after another.

    Once `has_readers` is set, another thread may read keys: `published` returns a key as it was
    at the last call of `publish`.

    Args:
        fresh: the initial value of a key in each array.
        resident: the number of slots.

    Attributes:
        arrays: the arrays by name, with one entry per slot along their leading axis.
        fresh: the record of a new key, as an array of one.
    """

    def __init__(self, fresh: dict[str, np.ndarray], resident: int):
        self.dtype = np.dtype([(name, part.dtype, part.shape) for name, part in fresh.items()], align=True)
        self.fresh = np.zeros(1, self.dtype)
        for name, part in fresh.items():
            self.fresh[name] = part
        self.resident = resident
        self.arrays = {name: allocate_slots(resident, part) for name, part in fresh.items()}
        self.names: list[bytes] = []
        self._slot_of: dict[bytes, int] = {}
        # The number of calls of `load`, and for each slot, its last one.
        self._loads, self._used = 0, np.zeros(resident, np.int64)
        self._changed = np.zeros(resident, bool)
        self._free: list[int] = []
        self._oldest = self._written = 0
        self._folder: Path | None = None
        self._store: KeyStore | None = None
        self._files = ExitStack()
        self.has_readers = False
        self._published: dict[bytes, np.ndarray] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        """The number of resident keys."""
        return len(self._slot_of)

    @property
    def store(self) -> KeyStore:
        """The store of keys on disk; by default, a temporary folder that is removed at the end."""
        if self._store is None:
            if self._folder is None:
                temporary = tempfile.TemporaryDirectory(prefix="norewind-fleet-")
                self._folder = Path(self._files.enter_context(temporary))
            self._store = KeyStore(self._folder, self.layout)
            self._files.callback(self._store.close)
        return self._store

    @property
    def layout(self) -> str:
        """A description of the bytes of a record."""
        assert self.dtype.fields is not None
        return ", ".join(f"{name} {kind.subdtype or kind}" for name, (kind, *_) in self.dtype.fields.items())

    def keep_in(self, folder: Path, samples: int) -> None:
        """Keep keys in a folder, starting from one of its checkpoints.

        Args:
            folder: the run folder; the keys are in a file there.
            samples: the number of samples at that checkpoint; 0 for a new run.

        Raises:
            ValueError: there are keys already.
            CheckpointError: the folder has no keys that belong to this checkpoint.
        """
        if self.names:
            raise ValueError("this fleet already has keys. Create a new fleet for another folder.")
        self._folder = folder
        self._oldest = self._written = samples
        if samples:
            KeyStore(folder, self.layout, write=False).close()  # raises an error if the keys are missing
        if samples or (folder / KEYS).exists():
            self.store.forget_after(samples)

    def load(self, keys: Sequence[bytes]) -> np.ndarray:
        """Return the slots of keys, and load those that are not resident.

        The arrays at these slots may be changed until the next call.

        Args:
            keys: the key of each row; at most `resident` different ones.

        Returns:
            The slot of each row's key.
        """
        slots = self._known(keys)
        if len(without_slot := np.flatnonzero(slots < 0)):
            unknown_keys = [keys[row] for row in without_slot.tolist()]
            missing = list(dict.fromkeys(unknown_keys))
            free = self.resident - len(self)
            if len(missing) > free:
                self._evict(len(missing) - free, np.unique(slots[slots >= 0]))
            self._load_missing(missing)
            slots[without_slot] = self._known(unknown_keys)
        self._loads += 1
        self._used[slots] = self._loads
        self._changed[slots] = True
        if self.has_readers:
            self._keep_published(keys, slots)
        return slots

    def _keep_published(self, keys: Sequence[bytes], slots: np.ndarray) -> None:
        """Copy the records of keys that are about to change, unless they have changed since the last `publish`."""
        with self._lock:
            pairs = zip(keys, slots.tolist(), strict=True)
            new = {key: slot for key, slot in pairs if key not in self._published}
            if new:
                records = self._records([*new.values()])
                self._published.update((key, records[i : i + 1]) for i, key in enumerate(new))

    def published(self, key: bytes) -> np.ndarray | None:
        """Return the record of a resident key as it was at the last `publish`. Safe to call from another thread.

        Args:
            key: the key, as bytes.

        Returns:
            Its record, as an array of one; None if the key is not resident.
        """
        with self._lock:
            record, slot = self._published.get(key), self._slot_of.get(key)
            return record if record is not None or slot is None else self._records([slot])

    def publish(self) -> None:
        """Make the current values of all keys visible to `published`."""
        with self._lock:
            self._published.clear()

    def _known(self, keys: Sequence[bytes]) -> np.ndarray:
        """Return the slots of keys, −1 for keys without one."""
        return np.fromiter(map(self._slot_of.get, keys, repeat(-1)), np.int64, len(keys))

    def _load_missing(self, keys: list[bytes]) -> None:
        """Assign slots to keys, and fill them from disk where the key is stored there."""
        for start in range(0, len(keys), KEYS_AT_ONCE):
            part, stored = keys[start : start + KEYS_AT_ONCE], self.fresh
            if self._store is not None:
                records = (self.record(key, self._store.read(key)) for key in part)
                stored = np.frombuffer(b"".join(map(np.ndarray.tobytes, records)), self.dtype)
            with self._lock:
                slots = []
                for key in part:
                    slot = self._free.pop() if self._free else len(self.names)
                    self.names[slot : slot + 1] = [key]  # a new slot is at the end
                    self._slot_of[key] = slot
                    slots.append(slot)
                for name, array in self.arrays.items():
                    array[slots] = stored[name]

    def record(self, key: bytes, content: bytes | None) -> np.ndarray:
        """Decode the bytes of a key on disk.

        Args:
            key: the key, for error messages.
            content: its bytes; None for a new key.

        Returns:
            Its record, as an array of one.

        Raises:
            DamagedError: the bytes have the wrong size.
        """
        if content is None:
            return self.fresh
        if len(content) != self.dtype.itemsize:
            raise DamagedError(f"{KEYS}: damaged: the run of key {key!r} has the wrong size.")
        return np.frombuffer(content, self.dtype)

    def _evict(self, count: int, needed: np.ndarray) -> None:
        """Write the keys that have been silent longest to disk if they have changed, and free their slots.

        Their rows are numbered as if written after the first sample that followed the last checkpoint.
        So a key that is evicted again before the next checkpoint replaces its row.
        """
        age = self._used[: len(self.names)].copy()
        age[needed] = np.iinfo(np.int64).max
        age[self._free] = np.iinfo(np.int64).max
        wanted = max(count, min(self.resident // EVICTED_SHARE, len(self) - len(needed)))
        oldest = np.argpartition(age, wanted - 1)[:wanted].tolist() if wanted < len(age) else range(len(age))
        changed = [slot for slot in oldest if self._changed[slot]]
        if changed:
            self._write(changed, self._written + 1)
        with self._lock:  # only after they are on disk
            for slot in oldest:
                del self._slot_of[self.names[slot]]
                self._changed[slot] = False
            self._free += oldest

    def write_keys(self, samples: int, oldest: int) -> None:
        """Write all keys that have changed, for a checkpoint.

        Args:
            samples: the number of samples at the checkpoint.
            oldest: the number of samples at the oldest checkpoint to keep.
        """
        # In the order of the index, so that each of its pages is written once.
        changed = sorted(np.flatnonzero(self._changed).tolist(), key=self.names.__getitem__)
        self._oldest, self._written = oldest, samples
        self._write(changed, samples, durable=True)
        self._changed[changed] = False

    def _write(self, slots: list[int], at: int, *, durable: bool = False) -> None:
        self.store.write([self.names[slot] for slot in slots], self._runs(slots), at, self._oldest, durable=durable)

    def _runs(self, slots: list[int]) -> Iterator[tuple[Sequence[float], bytes]]:
        """Yield the errors of keys, and their records as bytes."""
        for start in range(0, len(slots), KEYS_AT_ONCE):
            records = self._records(slots[start : start + KEYS_AT_ONCE])
            errors = records["errors"].tolist() if "errors" in self.arrays else repeat([0.0] * 4)
            yield from zip(errors, records.view(f"V{self.dtype.itemsize}").tolist(), strict=False)

    def _records(self, slots: list[int]) -> np.ndarray:
        """Copy the records of keys."""
        records = np.zeros(len(slots), self.dtype)
        for name, array in self.arrays.items():
            records[name] = array[slots]
        return records

    def close(self) -> None:
        """Close the store, and remove it if it is temporary."""
        self._files.close()


class FleetRecords:
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
        self._slots = slots
        self._store = KeyStore(folder, slots.layout, write=False)
        self.fresh = slots.fresh
        slots.has_readers = True

    def publish(self) -> None:
        """Make the current records visible to `read`. Called by the thread that learns."""
        self._slots.publish()

    def read(self, keys: Iterable[bytes], until: int = MAX_SAMPLES) -> np.ndarray:
        """Return the record of each key; that of a new key if there is none.

        Args:
            keys: the keys, as bytes.
            until: the number of samples at the checkpoint to read from; by default the latest records.
        """
        return np.concatenate([self._read(key, until) for key in keys])

    def _read(self, key: bytes, until: int) -> np.ndarray:
        record = self._slots.published(key) if until == MAX_SAMPLES else None
        return self._slots.record(key, self._store.read(key, until)) if record is None else record

    def on_disk(self, until: int) -> Iterator[tuple[bytes, np.ndarray]]:
        """Iterate over the keys of a checkpoint in order, with their records.

        Args:
            until: the number of samples at the checkpoint.
        """
        for key, content in self._store.all(until):
            yield key, self._slots.record(key, content)[0]

    def close(self) -> None:
        """Close the file on disk."""
        self._store.close()


def allocate_slots(slots: int, like: np.ndarray) -> np.ndarray:
    """Allocate zeros for all slots, in separate pages that JAX can use without a copy.

    Pages that have not been used take no memory.

    Args:
        slots: the number of slots.
        like: an array of the shape and dtype of one slot.
    """
    pages = mmap.mmap(-1, max(1, slots * like.nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not supported everywhere
        pages.madvise(mmap.MADV_HUGEPAGE)  # keys are scattered: small pages would be slower
    return np.frombuffer(pages, like.dtype, slots * like.size).reshape(slots, *like.shape)
