"""The keys of a fleet in memory: one record per key in one array, as many as may be resident; the others on disk."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import jax
import numpy as np

from norewind.checkpoint import DamagedError
from norewind.fleets.store import KEYS, Entry, Store
from norewind.trees import Tree, is_key

EVICTED = 16
"""When room is needed, at least one in this many resident keys goes to disk, so that there is room for a while."""


class Slots:
    """Records of keys. A key that comes gets a slot; if there is none, the keys that are silent longest go to disk.

    `rows` is a structured array with one record per slot: the leaves of a key's run under
    "0", "1" and so on, and what the fleet keeps beside them. A record is a key's bytes on disk.

    Another thread may look at keys meanwhile, once `watched` is set: `seen` returns a key as it was
    when `show` was called last.
    """

    def __init__(self, run: Tree, beside: dict[str, np.ndarray], resident: int):
        self._made_of = run, beside
        self._structure = jax.tree.structure(run)
        self._like = jax.tree.leaves(run)
        values = {str(place): _as_numbers(leaf) for place, leaf in enumerate(self._like)} | beside
        self.dtype = np.dtype([(name, part.dtype, part.shape) for name, part in values.items()], align=True)
        self.fresh = np.zeros((), self.dtype)
        for name, part in values.items():
            self.fresh[name] = part
        self.resident = resident
        # Pages that are not used yet take no memory.
        self.rows = np.zeros(resident, self.dtype)
        self.names: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._used = np.zeros(resident, np.int64)
        self._changed = np.zeros(resident, bool)
        self._free: list[int] = []
        self._oldest = 0
        self._folder: Path | None = None
        self._store: Store | None = None
        self._temporary: tempfile.TemporaryDirectory | None = None
        self.watched = False
        self._shown: dict[bytes, np.ndarray] = {}
        self._lock = Lock()

    def another(self, resident: int) -> "Slots":
        """Slots of the same kind, without keys."""
        return Slots(*self._made_of, resident)

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
        known = self._places
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        if missing:
            here = [known[key] for key in set(keys) if key in known]
            free = self.resident - len(self)
            if len(missing) > free:
                self._evict(len(missing) - free, here, samples)
            for key in missing:
                self._bring(key)
        found = np.fromiter(map(known.__getitem__, keys), np.int64, len(keys))
        self._used[found] = samples
        self._changed[found] = True
        if self.watched:
            with self._lock:
                for key, place in zip(keys, found.tolist(), strict=True):
                    if key not in self._shown:
                        self._shown[key] = self.rows[place : place + 1].copy()
        return found

    def seen(self, key: bytes) -> np.ndarray | None:
        """The record of a resident key as it was at the last `show`, in another thread than the one that learns."""
        with self._lock:
            record, place = self._shown.get(key), self._places.get(key)
            if record is not None or place is None:
                return record
            return self.rows[place : place + 1].copy()

    def show(self) -> None:
        """Let others see the keys as they are now."""
        with self._lock:
            self._shown.clear()

    def _bring(self, key: bytes) -> None:
        content = None if self._store is None else self._store.read(key)
        record = self.fresh if content is None else self.record(self.store, key, content)
        with self._lock:
            self._put_in(key, record)

    def _put_in(self, key: bytes, record: np.ndarray) -> None:
        if self._free:
            place = self._free.pop()
            self.names[place] = key
        else:
            place = len(self.names)
            self.names.append(key)
        self._places[key] = place
        self.rows[place] = record

    def record(self, store: Store, key: bytes, content: bytes) -> np.ndarray:
        """The record in a key's bytes on disk."""
        if len(content) != self.dtype.itemsize:
            raise DamagedError(f"{store.path}: damaged: the run of key {key!r} has another size.")
        return np.frombuffer(content, self.dtype)[0]

    def _evict(self, count: int, needed: list[int], samples: int) -> None:
        """Write the keys that are silent longest to disk, where they have changed, and free their slots."""
        age = self._used[: len(self.names)].copy()
        age[needed] = np.iinfo(np.int64).max
        age[self._free] = np.iinfo(np.int64).max
        wanted = max(count, min(self.resident // EVICTED, len(self) - len(needed)))
        oldest = np.argpartition(age, wanted - 1)[:wanted].tolist() if wanted < len(age) else range(len(age))
        changed = [place for place in oldest if self._changed[place]]
        if changed:
            self.store.write(self._entries(changed), samples, self._oldest)
        with self._lock:  # not before they are on disk
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
        has_errors = "errors" in (self.dtype.names or ())
        for place in places:
            row = self.rows[place]
            errors = row["errors"].tolist() if has_errors else [0, 0.0, 0.0, 0.0]
            yield Entry(self.names[place], row.tobytes(), int(errors[0]), *errors[1:])

    def runs(self, places: np.ndarray) -> Tree:
        """The runs of some keys as one tree, stacked."""
        return self.as_tree([leaf[places] for leaf in self.leaves(self.rows)])

    def leaves(self, records: np.ndarray) -> list[np.ndarray]:
        """The leaves of the runs in some records, stacked."""
        return [records[str(leaf)] for leaf in range(len(self._like))]

    def as_tree(self, leaves: list[Any]) -> Tree:
        return jax.tree.unflatten(self._structure, leaves)

    def put(self, places: np.ndarray, leaves: list[Any]) -> None:
        """Put runs back: leaves as numbers, of which the first belong to these keys."""
        for name, leaf in enumerate(leaves):
            self.rows[str(name)][places] = np.asarray(leaf)[: len(places)]

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def _as_numbers(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def with_keys(run: Tree, like: Tree) -> Tree:
    """A run whose random keys are numbers, as they stand in a record, with keys again; inside a compiled function."""
    return jax.tree.map(
        lambda leaf, key: jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(key)) if is_key(key) else leaf,
        run,
        like,
    )


def without_keys(run: Tree) -> list[Any]:
    """The leaves of a run, random keys as numbers."""
    return [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(run)]
