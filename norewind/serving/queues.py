"""Rows that wait to be learned from, or to be predicted."""

import asyncio
import threading
import timeit
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from norewind.serving.bodies import busy_error
from norewind.streams.base_source import BaseSource

# The learning thread checks whether it should stop at least this often (in seconds).
POLL_SECONDS = 0.5
# How long the first row waits for more, so that they are learned from together (in seconds).
GATHER_SECONDS = 0.02
# The most rows that are learned from together: few enough to let predictions through.
MAX_BATCH = 256
# The most rows that one call answers.
ROWS_PER_CALL = 64
# One call should not block the event loop for longer than this (in seconds).
MAX_CALL_SECONDS = 0.004
# The shortest time between two calls, so that requests in quick succession share one (in seconds).
SECONDS_BETWEEN_CALLS = 0.003
# The cost of a request in addition to its prediction (in seconds).
REQUEST_SECONDS = 0.0004
# Requests that would wait longer than this for their turn are rejected (in seconds).
MAX_TURN_SECONDS = 0.1
# The largest total size of the rows that wait to be learned from (in bytes of their lines).
MAX_QUEUE_BYTES = 1 << 26


class IncomingRows(BaseSource):
    """A source to which one thread adds rows, and from which another reads them.

    Rows that arrive within a moment are read together, unless a client waits for the answer.
    A record is a row with the line it would be in a file, so that positions equal those in a
    file with the same rows.

    Args:
        most: the largest number of rows that may wait to be read.
    """

    name = "the service"
    has_rows = True
    reads_ahead = False

    def __init__(self, most: int):
        self.most = most
        self._waiting: deque[tuple[dict[str, Any], bytes]] = deque()
        self._queue: list[tuple[dict[str, Any], bytes]] = []
        self._queue_bytes = 0
        self._changed = threading.Condition()
        self._at_once = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, rows: list[tuple[dict[str, Any], bytes]], *, at_once: bool = False) -> bool:
        """Add rows, all or none.

        Args:
            rows: rows with their lines.
            at_once: read them without waiting for more.

        Returns:
            Whether they were added; False if there would be too many, or if the source is closed.
        """
        with self._changed:
            size = self._queue_bytes + _bytes_in(rows)
            if self.closed or len(self._queue) + len(rows) > self.most or size > MAX_QUEUE_BYTES:
                return False
            self._queue += rows
            self._queue_bytes = size
            self._at_once = self._at_once or at_once
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

    def set_timeout(self, timeout: float | None) -> None:
        """Wait for rows, unless some are left from the last time.

        Args:
            timeout: ignored; this source has its own limits.
        """
        if not self._waiting:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self.closed, POLL_SECONDS)
                if self._queue:
                    self._changed.wait_for(
                        lambda: len(self._queue) >= MAX_BATCH or self.closed or self._at_once, GATHER_SECONDS
                    )
                batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                self._queue_bytes -= _bytes_in(batch)
                self._at_once = bool(self._queue)
            self._waiting.extend(batch)

    def peek(self, count: int = 1) -> list[tuple[dict[str, Any], bytes]]:
        self.ended = not self._waiting and self.closed and not self._queue
        return list(islice(self._waiting, count))

    def parse(self, record: tuple[dict[str, Any], bytes], parse: Callable[[str], Any]) -> dict[str, Any]:
        row, _ = record
        return row

    def drop(self, records: Sequence[Any]) -> None:
        for _ in records:
            self._waiting.popleft()
        self.progress.read(b"".join([line for _, line in records]))


def _bytes_in(rows: Sequence[tuple[Any, bytes]]) -> int:
    return sum(len(line) for _, line in rows)


class PredictionQueue:
    """A queue of rows to predict, emptied in the event loop. Rows that arrive within a moment share one call.

    Args:
        answers: computes the answers to rows.
        seconds: the time per row. It determines how many rows may wait, and how many are answered at a time.
    """

    def __init__(self, answers: Callable[[Sequence[Any]], list[Any]], seconds: float):
        self.answers = answers
        self.size = max(1, min(ROWS_PER_CALL, int(MAX_CALL_SECONDS / seconds)))
        self.most = max(4, int(MAX_TURN_SECONDS / (seconds + REQUEST_SECONDS)))
        self._unanswered: deque[tuple[Any, asyncio.Future]] = deque()
        self._next = 0.0

    def ask(self, rows: Sequence[Any]) -> list[asyncio.Future]:
        """Queue rows, all or none.

        Args:
            rows: the rows to predict.

        Returns:
            A future for the answer to each row.

        Raises:
            RequestError: too many rows are waiting.
        """
        unanswered = len(self._unanswered)
        if unanswered + len(rows) > max(self.most, 0 if unanswered else len(rows)):
            raise busy_error(f"{unanswered} rows wait for their prediction")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in rows]
        self._unanswered.extend(zip(rows, futures, strict=True))
        if not unanswered:
            loop.call_at(self._next, self._answer)
        return futures

    def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        self._next = loop.time() + SECONDS_BETWEEN_CALLS
        batch = [self._unanswered.popleft() for _ in range(min(self.size, len(self._unanswered)))]
        if self._unanswered:
            loop.call_soon(self._answer)
        try:
            answers = self.answers([row for row, _ in batch])
        except Exception as error:
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)


def seconds_per_row(call: Callable[[int], Any]) -> float:
    """Measure the shortest time of `call(rows)` per row, for one row or many. This also compiles it."""
    best = min(timeit.repeat(lambda: call(1), number=1, repeat=4))
    if best < MAX_CALL_SECONDS:  # otherwise rows are answered one at a time
        best = min(best, min(timeit.repeat(lambda: call(ROWS_PER_CALL), number=1, repeat=4)) / ROWS_PER_CALL)
    return best
