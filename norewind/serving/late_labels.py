"""Predicted rows that wait for their labels, in memory and in a file."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from norewind.forecasting.uninterruptible_lock import UninterruptibleLock
from norewind.serving.bodies import RequestError
from norewind.storage.checkpoint import CheckpointError
from norewind.storage.files import write_atomically
from norewind.streams.table.columns import nested_value

WAITING_FILE = "waiting.json"
# The largest total size of the rows that wait, and of those that were accepted (in bytes).
MAX_WAITING_BYTES = 1 << 26
# The memory that a row takes in addition to its JSON and its id (in bytes).
ENTRY_BYTES = 250


class LimitedRows(dict[str, tuple[int | None, bytes]]):
    """Rows as JSON by id, with their numbers if they have any. Beyond a number or size, the oldest is dropped.

    Args:
        most: the largest number of rows.
    """

    def __init__(self, most: int):
        super().__init__()
        self._most = most
        self._bytes = 0

    def put(self, id: str, number: int | None, row: bytes) -> None:
        """Add a row, as the latest. It replaces one with the same id."""
        self.drop(id)
        self[id] = number, row
        self._bytes += _size(id, row)
        while len(self) > self._most or (self and self._bytes > MAX_WAITING_BYTES):
            self.drop(next(iter(self)))

    def drop(self, id: str) -> None:
        """Remove the row with this id, if there is one."""
        if id in self:
            self._bytes -= _size(id, self.pop(id)[1])


class LateLabels:
    """Predicted rows that wait for their remaining columns, which are sent later with the same id.

    Rows are kept as JSON, with only the columns that the run uses. A completed row is kept too, with its number, until
    a checkpoint contains it. If the process is killed before that, the row waits again, and its label can be sent
    again. Methods may be called from any thread.

    Args:
        folder: the run folder.
        columns: the names of the columns that the run uses.
        most: the largest number of rows that may wait; beyond it, the oldest is dropped.
        durable: the number of rows in the latest checkpoint.

    Raises:
        CheckpointError: the file in the folder is damaged.

    Attributes:
        lock: held while the rows change. Hold it to accept a completed row, so that no file is written in between.
        changed: whether the rows differ from those in the file.
    """

    def __init__(self, folder: Path, columns: Sequence[str], *, most: int, durable: int):
        self.path = folder / WAITING_FILE
        self.most = most
        self.lock = UninterruptibleLock()
        self.changed = False
        self._saving = threading.Lock()
        self._columns = columns
        # Without checkpoints, nothing else would limit the accepted rows.
        self._accepted = LimitedRows(max(1, most))
        self._waiting = LimitedRows(most)
        for id, (number, row) in read_waiting(self.path).items():
            if number is None or number > durable:
                self.add(id, row)

    def __len__(self) -> int:
        """The number of rows that wait."""
        return len(self._waiting)

    def add(self, id: str, row: dict[str, Any]) -> None:
        """Add a row. It replaces one with the same id.

        Args:
            id: the id of the row.
            row: the columns that are known.
        """
        content = json.dumps(self._keep_used(row)).encode()
        with self.lock:
            self._waiting.put(id, None, content)
            self.changed = True

    def _keep_used(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the known values of the columns in use. Those inside objects get the name that the stream uses."""
        return {name: value for name in self._columns if (value := nested_value(row, name)) is not None}

    def complete(self, id: str, rest: dict[str, Any]) -> dict[str, Any]:
        """Return the row with this id together with its remaining columns.

        Args:
            id: the id of the row.
            rest: the remaining columns.

        Raises:
            RequestError: no row waits with this id.
        """
        if id in self._accepted:
            raise RequestError(409, f"the row with the id {id!r} was already accepted, as row {self._accepted[id][0]}.")
        if id not in self._waiting:
            raise RequestError(
                404,
                f"no row waits with the id {id!r}: it was not sent to /predict, was already learned from, or was "
                f"dropped because more than {self.most} rows or {MAX_WAITING_BYTES} bytes waited.",
            )
        return {**json.loads(self._waiting[id][1]), **self._keep_used(rest)}

    def accept(self, id: str, number: int) -> None:
        """Mark a row as accepted.

        Args:
            id: the id of the row.
            number: the number of the row.
        """
        with self.lock:
            self._accepted.put(id, number, self._waiting[id][1])
            self._waiting.drop(id)
            self.changed = True

    def forget(self, durable: int) -> None:
        """Drop completed rows that a checkpoint contains.

        Args:
            durable: the number of rows in the checkpoint.
        """
        with self.lock:
            for id in [id for id, (number, _) in self._accepted.items() if number is not None and number <= durable]:
                self._accepted.drop(id)
                self.changed = True

    def save(self) -> None:
        """Write all rows to the file, if they have changed.

        Raises:
            OSError: the file cannot be written.
        """
        with self._saving:  # one at a time: an older state must not replace a newer one
            try:
                with self.lock:
                    if not self.changed:
                        return
                    rows = {**self._waiting, **self._accepted}
                    self.changed = False
                write_atomically(self.path, _as_json(rows))
            except BaseException:
                self.changed = True
                raise


def _size(id: str, row: bytes) -> int:
    return len(id) + len(row) + ENTRY_BYTES


def _as_json(rows: dict[str, tuple[int | None, bytes]]) -> bytes:
    """Return the content of the file: for each id, the number of the row or null, and its columns."""
    entries = [b"%s: [%s, %s]" % (*map(_dump, (id, number)), row) for id, (number, row) in rows.items()]
    return b"{" + b",\n".join(entries) + b"}"


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def read_waiting(path: Path) -> dict[str, tuple[int | None, dict[str, Any]]]:
    """Return the rows in a file: for each id, the number of the row or None, and its columns.

    Raises:
        CheckpointError: the file is damaged.
    """
    try:
        saved = json.loads(path.read_bytes()) if path.exists() else {}
        return msgspec.convert(saved, dict[str, tuple[int | None, dict[str, Any]]])
    except (ValueError, RecursionError):
        message = f"{path} is damaged: remove it. The rows that waited for their labels are lost."
        raise CheckpointError(message) from None
