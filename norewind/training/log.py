"""Logs of a run: JSON lines that only grow, and are cut back to the latest checkpoint."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

from norewind.scoring.metrics import METRICS_ENTRIES
from norewind.storage.checkpoint import CheckpointError
from norewind.storage.files import name_in_errors, open_itself, sync_folder

# The names of the logs.
LogName = Literal["metrics.jsonl", "predictions.jsonl"]
METRICS, PREDICTIONS = get_args(LogName)
# Entries of logs that are drawn and shown.
NUMERIC_ENTRIES = (*METRICS_ENTRIES, "surprise")
# The most bytes that a tail reads at a time. If there are more, only the end is read.
MAX_READ_BYTES = 4_000_000


class Log:
    """A file of JSON lines that only grows. Lines are written immediately; `sync` makes them survive a crash.

    Args:
        path: the file.
        length: the number of bytes to keep. Lines after them, left by a crash after the last checkpoint, are removed
            and will be written again.

    Raises:
        CheckpointError: the file is shorter, or this is not the end of a line.
    """

    def __init__(self, path: Path, length: int = 0):
        self.path = path
        present = path.lstat().st_size if os.path.lexists(path) else 0
        if present < length:
            raise CheckpointError(
                f"{path} has only {present} of the {length} bytes it had at the checkpoint. Restore the missing lines."
            )
        self._file = os.fdopen(open_itself(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab")
        with name_in_errors(path):
            sync_folder(path.parent)  # otherwise a power failure may remove a new log, although its lines are on disk
            if length and os.pread(self._file.fileno(), 1, length - 1) != b"\n":
                self._file.close()
                raise CheckpointError(f"{path}: byte {length}, its length at the checkpoint, is inside a line.")
            self._file.truncate(length)
        self.length = length

    def write(self, entries: Iterable[dict[str, Any]]) -> None:
        """Append entries, one line each, in a single write.

        Args:
            entries: JSON objects, written in this order.
        """
        content = as_lines(entries)
        with name_in_errors(self.path):
            self._file.write(content)
            self._file.flush()
        self.length += len(content)

    def sync(self) -> None:
        with name_in_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with name_in_errors(self.path):
            self._file.close()


def as_lines(entries: Iterable[dict[str, Any]]) -> bytes:
    """Return entries as JSON lines."""
    # An unpaired surrogate stays escaped, as it was sent.
    text = "".join(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n" for entry in entries)
    return text.encode(errors="backslashreplace")


def as_entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line of a log; None if norewind cannot have written it."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    numbers = [entry[name] for name in NUMERIC_ENTRIES if entry.get(name) is not None]
    are_finite = all(type(value) in (int, float) and abs(value) <= sys.float_info.max for value in numbers)
    return entry if are_finite else None


def read_log(path: Path, length: int | None = None) -> list[dict[str, Any]]:
    """Return all complete lines of a log. A last line without a newline was being written when the run was killed.

    Args:
        path: the path of the log, which need not exist.
        length: the number of bytes to read; None for all.

    Raises:
        CheckpointError: norewind cannot have written one of the lines.
    """
    if not path.exists():
        return []
    entries = []
    for line in path.read_bytes()[:length].split(b"\n")[:-1]:
        entry = as_entry(line)
        if entry is None:
            raise CheckpointError(f"{path}, line {len(entries) + 1}: not a line that norewind wrote.")
        entries.append(entry)
    return entries


class LogTail:
    """The new lines of a log. A log that was truncated, because its run was resumed, is read again from the start.

    Args:
        path: the path of the log, which need not exist yet.
        last: the most lines to return at a time, counted from the end; None for all.
    """

    def __init__(self, path: Path, last: int | None = None):
        self.path, self.last = path, last
        self._offset, self._before = 0, b""

    def new(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return whether the log was truncated, and its new entries."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(self._offset - len(self._before))
                restarts = file.read(len(self._before)) != self._before
                if restarts:
                    self._offset, self._before = 0, b""
                start = max(self._offset, size - MAX_READ_BYTES)
                file.seek(start)
                data = file.read(size - start)
        except OSError:
            return False, []  # it does not exist yet, or cannot be read at the moment
        whole = data[: data.rfind(b"\n") + 1]
        # If a part was skipped, the first line may be incomplete.
        lines = whole.split(b"\n")[start > self._offset : -1]
        self._offset = start + len(whole)
        self._before = (self._before + whole)[-64:]
        lines = lines[-(self.last or len(lines)) :]
        return restarts, [entry for line in lines if (entry := as_entry(line)) is not None]
