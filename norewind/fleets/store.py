"""The keys of a fleet on disk: one SQLite file, in which a key has one row for each checkpoint that needs it.

A row is written when its key has changed since the last checkpoint. Its number is that of the
checkpoint: the samples that the whole fleet has learned from. A row that is written between two
checkpoints has a number above the first one's, and at most the second one's. So the keys that
belong to a checkpoint are the latest rows up to its number. Later rows were left behind by a crash,
and are removed when the run continues. Rows that no checkpoint needs any more are removed when
their key is written again.
"""

import errno
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from norewind.storage.checkpoint import CheckpointError, DamagedError
from norewind.storage.files import open_itself

KEYS = "keys.sqlite"
KEYS_FORMAT = 1
# More samples than any run has.
MAX_SAMPLES = 2**63 - 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    key BLOB NOT NULL, at INTEGER NOT NULL,
    rows INTEGER NOT NULL, model REAL NOT NULL, persistence REAL NOT NULL, mean REAL NOT NULL,
    crc INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS by_key ON runs (key, at);
"""
LATEST_RUNS = "FROM runs WHERE at = (SELECT max(at) FROM runs AS other WHERE other.key = runs.key AND other.at <= ?)"
DISK_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_SHMSIZE)


class KeyErrors(NamedTuple):
    """The errors of one key.

    Attributes:
        key: the key, as bytes.
        rows: the number of scored rows.
        model: the mean squared error of the model.
        persistence: that of forecasting the last value.
        mean: that of forecasting the mean.
    """

    key: bytes
    rows: int
    model: float
    persistence: float
    mean: float


class KeyStore:
    """The runs of keys on disk.

    Args:
        folder: the folder of the file.
        layout: a description of the bytes of a run. A file with a different one is rejected. None accepts any.
        write: whether to open the file for writing, and create it if it does not exist.

    Raises:
        CheckpointError: the file does not exist, cannot be used, or was written for a different model.
    """

    def __init__(self, folder: Path, layout: str | None, *, write: bool = True):
        self.path = folder / KEYS
        if not write and not self.path.exists():
            raise CheckpointError(f"{self.path} does not exist, so the keys of this run are lost. Start a new run.")
        if write:
            os.close(open_itself(self.path, os.O_RDWR | os.O_CREAT))
        with self._translated_errors():
            uri = f"{self.path.absolute().as_uri()}?mode={'rw' if write else 'ro'}"
            # Python's automatic transactions would begin in the wrong places.
            self._base = sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None, check_same_thread=False)
            if write:
                self._base.execute("PRAGMA page_size = 16384")
                self._base.execute("PRAGMA cache_size = -65536")  # kB, for the index of a million keys
                # Readers never wait, and nothing is synchronised before a checkpoint (see `write`).
                self._base.execute("PRAGMA journal_mode = WAL")
                self._base.execute("PRAGMA synchronous = NORMAL")
                self._base.executescript(SCHEMA)
            about = dict(self._base.execute("SELECT name, value FROM about"))
            layout = layout or about.get("layout", "")
            expected = {"format": str(KEYS_FORMAT), "layout": layout}
            if not about and write:
                # One statement is one transaction: a kill leaves both lines or none.
                self._base.execute("INSERT INTO about VALUES ('format', :format), ('layout', :layout)", expected)
            elif about != expected:
                raise CheckpointError(
                    f"{self.path}: its keys were trained with another model, method, optimizer or set of columns. "
                    "Continue with the same settings, or start a new run."
                )

    def forget_after(self, samples: int) -> None:
        """Remove all rows written after a checkpoint.

        Args:
            samples: the number of samples at the checkpoint.
        """
        with self._translated_errors():
            self._base.execute("DELETE FROM runs WHERE at > ?", (samples,))

    def write(
        self,
        keys: Sequence[bytes],
        runs: Iterable[tuple[Sequence[float], bytes]],
        at: int,
        oldest: int,
        *,
        durable: bool = False,
    ) -> None:
        """Write keys, all or none, and remove rows that are no longer needed.

        Args:
            keys: the keys to write; sorted ones are written faster.
            runs: for each key, the number of its scored rows and the sums of the squared errors of the model, the last
                value and the mean; and its run as bytes.
            at: the number of samples to record for them, more than `oldest`.
            oldest: the number of samples at the oldest checkpoint whose rows are needed.
            durable: whether to wait until the rows survive a crash of the machine.
        """
        with self._translated_errors():
            self._base.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._base.execute("BEGIN IMMEDIATE")
            try:
                # First, so that the new rows take the place of the old ones.
                if oldest:
                    self._base.executemany(
                        "DELETE FROM runs WHERE key = ?1 AND at < "
                        "(SELECT max(at) FROM runs WHERE key = ?1 AND at <= ?2)",
                        ((key, oldest) for key in keys),
                    )
                self._base.executemany(
                    "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    ((key, at, *errors, zlib.crc32(run), run) for key, (errors, run) in zip(keys, runs, strict=True)),
                )
                if durable:  # a commit without any change would not be synchronised
                    self._base.execute("INSERT OR REPLACE INTO about SELECT name, value FROM about")
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")
                raise

    def read(self, key: bytes, until: int = MAX_SAMPLES) -> bytes | None:
        """Return the latest run of a key.

        Args:
            key: the key, as bytes.
            until: ignore rows written after more samples than this.

        Returns:
            The run as bytes; None if there is none.

        Raises:
            DamagedError: the checksum does not match.
        """
        with self._translated_errors():
            query = "SELECT crc, content FROM runs WHERE key = ? AND at <= ? ORDER BY at DESC LIMIT 1"
            row = self._base.execute(query, (key, until)).fetchone()
        return None if row is None else self._checked(key, *row)

    def all(self, until: int = MAX_SAMPLES) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over all keys in order, with their latest runs.

        Args:
            until: ignore rows written after more samples than this.
        """
        with self._translated_errors():
            query = f"SELECT key, crc, content {LATEST_RUNS} ORDER BY key"
            for key, crc, content in self._base.execute(query, (until,)):
                yield key, self._checked(key, crc, content)

    def verify(self, until: int) -> tuple[list[bytes], list[str]]:
        """Read everything, and return all keys of a checkpoint, and what is wrong with the file.

        Args:
            until: the number of samples at the checkpoint.

        Raises:
            CheckpointError: the file cannot be read.
        """
        names: set[bytes] = set()
        with self._translated_errors():
            found = [text for (text,) in self._base.execute("PRAGMA integrity_check") if text != "ok"]
            problems = [f"{self.path}: damaged: {text}." for text in found]
            for key, at, crc, content in self._base.execute("SELECT key, at, crc, content FROM runs ORDER BY key"):
                try:
                    self._checked(key, crc, content)
                except DamagedError as error:
                    problems.append(str(error))
                names |= {key} if at <= until else set()
        return sorted(names), problems

    def worst(self, count: int, fewest: int) -> list[KeyErrors]:
        """Return the keys with the largest mean squared errors.

        Args:
            count: the maximum number of keys to return.
            fewest: the minimum number of scored rows of a key.
        """
        with self._translated_errors():
            query = f"SELECT key, rows, model / rows, persistence / rows, mean / rows {LATEST_RUNS} AND rows >= ?"
            values = (MAX_SAMPLES, fewest, count)
            rows = self._base.execute(f"{query} ORDER BY model / rows DESC, key LIMIT ?", values)
            return [KeyErrors(*row) for row in rows]

    def __len__(self) -> int:
        with self._translated_errors():
            return self._base.execute("SELECT count(DISTINCT key) FROM runs").fetchone()[0]

    @property
    def size(self) -> int:
        """The number of bytes on disk."""
        return sum(path.stat().st_size for path in self.path.parent.glob(KEYS + "*"))

    def close(self) -> None:
        with self._translated_errors():
            self._base.close()

    def _checked(self, key: bytes, crc: int, content: bytes) -> bytes:
        if not isinstance(key, bytes) or not isinstance(content, bytes) or zlib.crc32(content) != crc:
            raise DamagedError(f"{self.path}: damaged: the checksum of the run of key {key!r} does not match.")
        return content

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate SQLite errors, naming the file: a full disk becomes an OSError, anything else a CheckpointError."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code in DISK_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(self.path)) from None
            raise CheckpointError(f"{self.path}: cannot be used: {error}.") from None
