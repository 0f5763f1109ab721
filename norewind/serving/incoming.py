"""The rows of requests, as a source for the training loop."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from norewind.streams.table.python_rows import PythonRows

# The learning thread checks whether it should stop at least this often (in seconds).
IDLE = 0.5
# How long the first row waits for more, so that they are learned from together (in seconds).
GATHER = 0.02
# The most rows that are learned from together: few enough to let predictions through.
BATCH = 256


class Incoming(PythonRows):
    """A source to which one thread adds rows, and from which another reads them.

    Rows that arrive within a moment are read together, unless a client waits for the answer.
    Each row carries the line it would be in a file, so that positions equal those in a file
    with the same rows.

    Args:
        most: the largest number of rows that may wait to be read.
    """

    name = "the service"

    def __init__(self, most: int):
        super().__init__(lasts=True)
        self.most = most
        self._queue: list[tuple[dict[str, Any], bytes]] = []
        self._lines: deque[bytes] = deque()
        self._changed, self._hurry = threading.Condition(), False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, rows: list[tuple[dict[str, Any], bytes]], *, hurry: bool = False) -> bool:
        """Add rows, all or none.

        Args:
            rows: rows with their lines.
            hurry: read them without waiting for more.

        Returns:
            Whether they were added; False if there would be too many, or if the source is closed.
        """
        with self._changed:
            if self.closed or len(self._queue) + len(rows) > self.most:
                return False
            self._queue += rows
            self._hurry = self._hurry or hurry
            self._changed.notify()
        return True

    def close(self) -> None:
        """Accept no more rows. Those that were accepted can still be read."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def catch_up(self) -> None:
        """Continue where the run stopped. If that was within a line, the line ends here."""
        if self.progress.here.inside:
            self.progress.read(b"\n")

    def set_patience(self, patience: float | None) -> None:
        """Wait for rows, unless some are left from the last time.

        Args:
            patience: ignored; this source has its own limits.
        """
        if not self._waiting:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self.closed, IDLE)
                if self._queue:
                    self._changed.wait_for(lambda: len(self._queue) >= BATCH or self.closed or self._hurry, GATHER)
                some, self._queue = self._queue[:BATCH], self._queue[BATCH:]
                self._hurry = bool(self._queue)
                self._lasts = not self.closed or bool(self._queue)
            for row, line in some:
                self.put(row)
                self._lines.append(line)

    def drop(self, records: Sequence[dict[str, Any]]) -> None:
        for _ in records:
            self.discard()
        self.progress.read(b"".join([self._lines.popleft() for _ in records]))
