"""Lines that come with requests, as the source of a stream."""

import time
from collections import deque
from collections.abc import Iterator
from threading import Condition

from norewind.streams.position import Mark
from norewind.streams.reading import BaseSource

IDLE = 0.5
"""How long the learning thread sleeps at most while nothing comes (in seconds)."""
GATHER = 0.02
"""How long the first line waits for others, so that they are learned from together (in seconds)."""
BATCH = 256
"""The most lines that are learned from in one go: short enough to let predictions through."""


class Incoming(BaseSource):
    """A source to which one thread adds lines, which another reads.

    Lines that come within a moment are read together, unless somebody waits for the answer.
    """

    def __init__(self, most: int):
        self.name, self.most = "the service", most
        self._lines: deque[bytes] = deque()
        self._new, self._hurry, self._idle = Condition(), False, False

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, lines: list[bytes], hurry: bool = False) -> bool:
        """Add lines, all or none: none if there would be too many, or if the source is closed."""
        with self._new:
            if self.closed or len(self._lines) + len(lines) > self.most:
                return False
            self._lines.extend(lines)
            self._hurry = self._hurry or hurry
            self._new.notify()
        return True

    def close(self) -> None:
        """Take no more lines. Those that are there are still read."""
        with self._new:
            self.closed = True
            self._new.notify()

    def go_to(self, place: Mark) -> None:
        """The lines follow on what the run has read. If that ended inside a line, the line ends now."""
        if place.inside:
            self._lines.append(b"\n")

    def fragments(self, patience: float | None) -> Iterator[bytes]:
        left = BATCH
        # Not long at first: lines that were read before may still wait for a place in a batch.
        deadline = time.monotonic() + (IDLE if self._idle else GATHER)
        while left and (lines := self._take(left, deadline)):
            deadline = time.monotonic() + GATHER if left == BATCH else deadline
            left -= len(lines)
            yield b"".join(lines)
        self._idle = left == BATCH

    def _take(self, most: int, deadline: float) -> list[bytes]:
        with self._new:
            while not self._lines and not self.closed and not self._hurry:
                if not self._new.wait(deadline - time.monotonic()):
                    break
            self.ended = self.closed and not self._lines
            if not self._lines:
                self._hurry = False
            return [self._lines.popleft() for _ in range(min(most, len(self._lines)))]
