"""Files of JSON lines that only grow, and that a resumed run continues without a line lost or doubled."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from norewind.checkpoint import CheckpointError


class Log:
    """A file of JSON lines. Lines reach the file at once; `sync` makes them last through a crash."""

    def __init__(self, path: Path, length: int = 0):
        """Go on after the first `length` bytes: what a crash left beyond the last checkpoint is written again."""
        self.path = path
        present = path.stat().st_size if path.exists() else 0
        if present < length:
            raise CheckpointError(
                f"{path}: has {present} bytes, but the checkpoint was taken when it had {length}. Lines were removed "
                "from it since: put them back, or start a new run."
            )
        self._file = path.open("ab")
        self._file.truncate(length)
        self.length = length

    def write(self, entries: Iterable[dict[str, Any]]) -> None:
        """Append entries, one line each, in one piece."""
        content = as_lines(entries)
        self._file.write(content)
        self._file.flush()
        self.length += len(content)

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """No more lines."""
        self._file.close()


def as_lines(entries: Iterable[dict[str, Any]]) -> bytes:
    """Entries as JSON lines."""
    return "".join(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n" for entry in entries).encode()


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a log. The last one may be half written if the run was killed: it does not count."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    entries = []
    try:
        for line in lines:
            entries.append(json.loads(line))
    except ValueError:
        raise CheckpointError(f"{path}, line {len(entries) + 1}: not JSON, so norewind did not write it.") from None
    return entries
