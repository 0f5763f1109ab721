"""The keys of a fleet on disk: one SQLite file, in which a key has a row for each checkpoint that needs one.

A row is written when its key has changed since the last checkpoint: at a checkpoint, under
the number of samples that the whole fleet had then learned from; between two, under a number
after the first and not after the second. A checkpoint file names its number too, so the keys
that belong to it are the newest rows up to it: rows after it are those that a crash left
behind, and are removed when the run goes on. Rows that no checkpoint needs any more are
removed when their key is written again.
"""

import errno
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from norewind.checkpoint import CheckpointError, DamagedError
from norewind.files import open_itself

KEYS = "keys.sqlite"
FORMAT = 1
# More samples than any run has.
LAST = 2**63 - 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    key BLOB NOT NULL, at INTEGER NOT NULL,
    rows INTEGER NOT NULL, model REAL NOT NULL, persistence REAL NOT NULL, mean REAL NOT NULL,
    crc INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS by_key ON runs (key, at);
"""
NEWEST = "FROM runs WHERE at = (SELECT max(at) FROM runs AS other WHERE other.key = runs.key)"
FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_SHMSIZE)


class KeyErrors(NamedTuple):
    """What is known of one key: scored rows, and mean squared errors of the model, the last value and the mean."""

    key: bytes
    rows: int
    model: float
    persistence: float
    mean: float


class Entry(NamedTuple):
    """A key to be written: its run as bytes, and the rows it was scored on with the sums of their errors."""

    key: bytes
    content: bytes | memoryview
    rows: int = 0
    model: float = 0.0
    persistence: float = 0.0
    mean: float = 0.0


class Store:
    """Runs of keys on disk. `layout` says what the bytes of a run are: a file with another one is refused, if it is
    given."""

    def __init__(self, folder: Path, layout: str | None, *, write: bool = True):
        self.path = folder / KEYS
        if not write and not self.path.exists():
            raise CheckpointError(f"{self.path} does not exist, so the keys of this run are lost. Start a new run.")
        if write:
            os.close(open_itself(self.path, os.O_RDWR | os.O_CREAT))  # not through a symbolic link
        with self._naming():
            uri = f"{self.path.absolute().as_uri()}?mode={'rw' if write else 'ro'}"
            # Python's own transactions would begin where ours should not.
            self._base = sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None, check_same_thread=False)
            if write:
                self._base.execute("PRAGMA page_size = 16384")
                # Readers never wait, and nothing is synchronised before a checkpoint (see `commit`).
                self._base.execute("PRAGMA journal_mode = WAL")
                self._base.execute("PRAGMA synchronous = NORMAL")
                self._base.executescript(SCHEMA)
            found = dict(self._base.execute("SELECT name, value FROM about"))
            layout = layout or found.get("layout", "")
            if not found and write:
                about = [("format", str(FORMAT)), ("layout", layout)]
                self._base.executemany("INSERT INTO about VALUES (?, ?)", about)
            elif found != {"format": str(FORMAT), "layout": layout}:
                raise CheckpointError(
                    f"{self.path}: its keys were trained with another model, method, optimizer or columns. "
                    "Continue with the settings it was made with, or start a new run."
                )

    def forget_after(self, samples: int) -> None:
        """Remove what was written after the checkpoint at this number of samples."""
        with self._naming():
            self._base.execute("DELETE FROM runs WHERE at > ?", (samples,))

    def write(self, entries: Iterable[Entry], at: int, oldest: int, *, durable: bool = False) -> None:
        """Write keys as they are after `at` samples, all or none, and remove rows that no checkpoint from `oldest` on
        needs. With `durable`, they survive a crash of the machine from now on."""
        with self._naming():
            self._base.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._base.execute("BEGIN IMMEDIATE")
            try:
                for entry in entries:
                    key, content, *errors = entry
                    row = key, at, *errors, zlib.crc32(content), content
                    self._base.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                    self._base.execute(
                        "DELETE FROM runs WHERE key = ?1 AND at < "
                        "(SELECT max(at) FROM runs WHERE key = ?1 AND at <= ?2)",
                        (key, oldest),
                    )
                if durable:  # a commit without any change would not reach the disk
                    self._base.execute("INSERT OR REPLACE INTO about SELECT name, value FROM about")
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")
                raise

    def read(self, key: bytes, until: int = LAST) -> bytes | None:
        """The newest run of a key that was written after at most `until` samples; None if it has none."""
        with self._naming():
            query = "SELECT crc, content FROM runs WHERE key = ? AND at <= ? ORDER BY at DESC LIMIT 1"
            row = self._base.execute(query, (key, until)).fetchone()
        return None if row is None else self._checked(key, *row)

    def all(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys in their order, with their newest runs."""
        with self._naming():
            for key, crc, content in self._base.execute(f"SELECT key, crc, content {NEWEST} ORDER BY key"):
                yield key, self._checked(key, crc, content)

    def worst(self, count: int, fewest: int) -> list[KeyErrors]:
        """The keys with the largest mean squared errors, of those with at least this many scored rows."""
        with self._naming():
            query = f"SELECT key, rows, model / rows, persistence / rows, mean / rows {NEWEST} AND rows >= ?"
            found = self._base.execute(f"{query} ORDER BY model / rows DESC, key LIMIT ?", (fewest, count))
            return [KeyErrors(*row) for row in found]

    def __len__(self) -> int:
        with self._naming():
            return self._base.execute("SELECT count(DISTINCT key) FROM runs").fetchone()[0]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.path.parent.glob(KEYS + "*"))

    def close(self) -> None:
        with self._naming():
            self._base.close()

    def _checked(self, key: bytes, crc: int, content: bytes) -> bytes:
        if not isinstance(key, bytes) or not isinstance(content, bytes) or zlib.crc32(content) != crc:
            raise DamagedError(f"{self.path}: damaged: the run of key {key!r} does not have its checksum.")
        return content

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Say what went wrong with the file: a full disk as the operating system would, damage as a checkpoint's."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code in FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(self.path)) from None
            raise CheckpointError(f"{self.path}: cannot be used: {error}.") from None
