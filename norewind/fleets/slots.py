"""The keys of a fleet in memory: one record per key in one array, as many as may be resident; the others on disk."""

import tempfile
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from norewind.checkpoint import DamagedError
from norewind.fleets.records import Records
from norewind.fleets.store import KEYS, Entry, Store
from norewind.trees import Tree

EVICTED = 16
"""When room is needed, at least one in this many resident keys goes to disk, so that there is room for a while."""
AT_ONCE = 256
"""Keys that are turned into records, or back, at a time."""


class Slots:
    """Records of keys. A key that comes gets a slot; if there is none, the keys that are silent longest go to disk.

    A record is a key's bytes on disk: the leaves of its run under "0", "1" and so on, and what
    the fleet keeps beside them. In memory, runs are arrays of blocks (see `Records`), and
    `rows` is a structured array of what is beside.
    """

    def __init__(self, run: Tree, beside: dict[str, np.ndarray], resident: int):
        self._records = Records(run)
        values = {str(place): leaf for place, leaf in enumerate(self._records.numbers)} | beside
        self.dtype = np.dtype([(name, part.dtype, part.shape) for name, part in values.items()], align=True)
        self._fresh = np.zeros(1, self.dtype)
        for name, part in values.items():
            self._fresh[name] = part
        self.resident = resident
        self.rows = np.zeros(resident, np.dtype([(name, part.dtype, part.shape) for name, part in beside.items()]))
        self.blocks = self._records.arrays(resident)
        self.names: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._used = np.zeros(resident, np.int64)
        self._changed = np.zeros(resident, bool)
        self._free: list[int] = []
        self._oldest = 0
        self._folder: Path | None = None
        self._store: Store | None = None
        self._temporary: tempfile.TemporaryDirectory | None = None

    def __len__(self) -> int:
        """The number of resident keys."""
        return len(self._places)

    @property
    def store(self) -> Store:
        """Where keys go, by default a folder that is removed at the end."""
        if self._store is None:
            if self._folder is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="norewind-fleet-")
                self._folder = Path(self._temporary.name)
            self._store = self._opened(self._folder)
        return self._store

    @property
    def layout(self) -> str:
        """What the bytes of a record are."""
        assert self.dtype.fields is not None
        return ", ".join(f"{name} {kind.subdtype or kind}" for name, (kind, *_) in self.dtype.fields.items())

    def _opened(self, folder: Path) -> Store:
        return Store(folder, self.layout)

    def keep_in(self, folder: Path, samples: int) -> None:
        """Keep keys in a folder, as they were at its checkpoint after this many samples."""
        if self.names:
            raise ValueError("this fleet has keys already: make a new one for another folder.")
        self._folder, self._oldest = folder, samples
        if samples:
            Store(folder, self.layout, write=False).close()  # the keys must be there
        if samples or (folder / KEYS).exists():
            self.store.forget_after(samples)

    def places(self, keys: Sequence[bytes], samples: int) -> np.ndarray:
        """The slots of keys, which are resident from now on: at most `resident` different ones."""
        found = self._known(keys)
        if len(unknown := np.flatnonzero(found < 0)):
            missing = list(dict.fromkeys(keys[row] for row in unknown.tolist()))
            free = self.resident - len(self)
            if len(missing) > free:
                self._evict(len(missing) - free, np.unique(found[found >= 0]), samples)
            self._bring(missing)
            found = self._known(keys)
        self._used[found] = samples
        self._changed[found] = True
        return found

    def _known(self, keys: Sequence[bytes]) -> np.ndarray:
        """The slots of keys, −1 for those that have none."""
        return np.fromiter(map(self._places.get, keys, repeat(-1)), np.int64, len(keys))

    def _bring(self, keys: list[bytes]) -> None:
        """Give keys slots, which start from what is on disk, if anything is."""
        for start in range(0, len(keys), AT_ONCE):
            part = keys[start : start + AT_ONCE]
            records = np.frombuffer(b"".join(map(self._stored, part)), self.dtype)
            self._set([self._slot(key) for key in part], records)

    def _stored(self, key: bytes) -> bytes:
        content = None if self._store is None else self._store.read(key)
        if content is None:
            return self._fresh.tobytes()
        self.check_size(self.store, key, content)
        return content

    def _slot(self, key: bytes) -> int:
        if self._free:
            place = self._free.pop()
            self.names[place] = key
        else:
            place = len(self.names)
            self.names.append(key)
        self._places[key] = place
        return place

    def _set(self, places: list[int], records: np.ndarray) -> None:
        for into, block in zip(self.blocks, self._records.views(records), strict=True):
            into[places] = block
        for name in self.rows.dtype.names or ():
            self.rows[name][places] = records[name]

    def check_size(self, store: Store, key: bytes, content: bytes) -> None:
        if len(content) != self.dtype.itemsize:
            raise DamagedError(f"{store.path}: damaged: the run of key {key!r} has another size.")

    def _evict(self, count: int, needed: np.ndarray, samples: int) -> None:
        """Write the keys that are silent longest to disk, where they have changed, and free their slots."""
        age = self._used[: len(self.names)].copy()
        age[needed] = np.iinfo(np.int64).max
        age[self._free] = np.iinfo(np.int64).max
        wanted = max(count, min(self.resident // EVICTED, len(self) - len(needed)))
        oldest = np.argpartition(age, wanted - 1)[:wanted].tolist() if wanted < len(age) else range(len(age))
        changed = [place for place in oldest if self._changed[place]]
        if changed:
            self.store.write(self._entries(changed), samples, self._oldest)
        for place in oldest:
            del self._places[self.names[place]]
            self._changed[place] = False
        self._free += oldest

    def settle(self, samples: int, oldest: int) -> None:
        """Write all keys that have changed, for a checkpoint after this many samples; `oldest` is the first to keep."""
        changed = np.flatnonzero(self._changed).tolist()
        self._oldest = oldest
        self.store.write(self._entries(changed), samples, oldest, durable=True)
        self._changed[changed] = False

    def _entries(self, places: list[int]) -> Iterator[Entry]:
        for start in range(0, len(places), AT_ONCE):
            part = places[start : start + AT_ONCE]
            records = np.zeros(len(part), self.dtype)
            for block, into in zip(self.blocks, self._records.views(records), strict=True):
                into[:] = block[part]
            for name in self.rows.dtype.names or ():
                records[name] = self.rows[name][part]
            has_errors = "errors" in (self.dtype.names or ())
            errors = records["errors"].tolist() if has_errors else [[0, 0.0, 0.0, 0.0]] * len(part)
            for place, record, (count, *sums) in zip(part, records, errors, strict=True):
                yield Entry(self.names[place], record.tobytes(), int(count), *sums)

    def runs(self, places: np.ndarray) -> list[np.ndarray]:
        """The runs of some keys, as the blocks of `Records`."""
        into = self._records.arrays(len(places))
        for block, part in zip(self.blocks, into, strict=True):
            np.take(block, places, axis=0, out=part, mode="clip")  # "raise" would make another copy
        return into

    def put(self, places: np.ndarray, blocks: Sequence[Any]) -> None:
        """Put runs back, of which the first belong to these keys."""
        for into, block in zip(self.blocks, blocks, strict=True):
            into[places] = np.asarray(block)[: len(places)].reshape(len(places), -1)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        if self._temporary is not None:
            self._temporary.cleanup()
