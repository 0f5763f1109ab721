"""Rows from requests, as the source of a stream."""

from collections import deque
from collections.abc import Iterator
from threading import Condition
from typing import Any

from norewind.streams.given import Given, GivenLines
from norewind.streams.position import Mark, Progress

IDLE = 0.5
"""How long the learning thread sleeps at most while nothing comes (in seconds)."""
GATHER = 0.02
"""How long the first row waits for others, so that they are learned from together (in seconds)."""
BATCH = 256
"""The most rows that are learned from in one go: short enough to let predictions through."""


class Incoming(Given):
    """A source to which one thread adds rows, which another reads.

    Rows that come within a moment are read together, unless somebody waits for the answer. Each has
    the line that it would be in a file, so that positions are those of a file with the same rows.
    """

    name = "the service"

    def __init__(self, most: int):
        super().__init__(lasts=True)
        self.most, self._queue, self._lines = most, deque(), deque()
        self._new, self._closed, self._hurry, self._idle = Condition(), False, False, False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, rows: list[tuple[dict[str, Any], bytes]], hurry: bool = False) -> bool:
        """Add rows with their lines, all or none: none if there would be too many, or if the source is closed."""
        with self._new:
            if self._closed or len(self._queue) + len(rows) > self.most:
                return False
            self._queue.extend(rows)
            self._hurry = self._hurry or hurry
            self._new.notify()
        return True

    def close(self) -> None:
        """Accept no more rows. Those that are there are still read."""
        with self._new:
            self._closed = True
            self._new.notify()

    def lines(self, progress: Progress) -> GivenLines:
        self._progress = progress
        return super().lines(progress)

    def go_to(self, place: Mark) -> None:
        """The rows follow on what the run has read. If that ended inside a line, the line ends now."""
        if place.inside:
            self._progress.read(b"\n")

    def fragments(self, patience: float | None) -> Iterator[bytes]:
        """Wait for rows, unless some that were read before are still ahead."""
        if self._waiting:
            return iter(())
        with self._new:
            # Not long at first: rows that were read before may still wait for a place in a batch.
            self._new.wait_for(lambda: self._queue or self._closed, IDLE if self._idle else GATHER)
            if self._queue:
                self._new.wait_for(lambda: len(self._queue) >= BATCH or self._closed or self._hurry, GATHER)
            some = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            self._hurry = self._hurry and bool(self._queue)
            self._lasts = not self._closed or bool(self._queue)
        self._idle = not some
        for row, line in some:
            self.put(row)
            self._lines.append(line)
        return iter(())

    def drop(self, count: int = 1) -> bytes:
        super().drop(count)
        return b"".join([self._lines.popleft() for _ in range(count)])
