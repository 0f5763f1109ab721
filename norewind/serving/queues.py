"""Rows that wait: to be learned from, to be predicted, or for their labels."""

import asyncio
import json
import threading
import timeit
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from norewind.serving.bodies import Refusal, busy
from norewind.storage.checkpoint import CheckpointError
from norewind.storage.files import write_atomically
from norewind.streams.source import BaseSource

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
UNLABELED_FILE = "waiting.json"


class Incoming(BaseSource):
    """A source to which one thread adds rows, and from which another reads them.

    Rows that arrive within a moment are read together, unless a client waits for the answer.
    A record is a row with the line it would be in a file, so that positions equal those in a
    file with the same rows.

    Args:
        most: the largest number of rows that may wait to be read.
    """

    name = "the service"
    has_rows = True

    def __init__(self, most: int):
        self.most = most
        self._waiting: deque[tuple[dict[str, Any], bytes]] = deque()
        self._queue: list[tuple[dict[str, Any], bytes]] = []
        self._changed = threading.Condition()
        self._hurry = False

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
                self._changed.wait_for(lambda: self._queue or self.closed, POLL_SECONDS)
                if self._queue:
                    self._changed.wait_for(
                        lambda: len(self._queue) >= MAX_BATCH or self.closed or self._hurry, GATHER_SECONDS
                    )
                batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                self._hurry = bool(self._queue)
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
            Refusal: too many rows are waiting.
        """
        unanswered = len(self._unanswered)
        if unanswered + len(rows) > max(self.most, 0 if unanswered else len(rows)):
            raise busy(f"{unanswered} rows wait for their prediction")
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


class LateLabels:
    """Predicted rows that wait for their remaining columns, which are sent later with the same id.

    A completed row is kept, with its sample number, until a checkpoint contains it, so that its
    label can be sent again after a crash. The file is written with every checkpoint.

    Args:
        folder: the run folder.
        most: the largest number of rows without labels; beyond it, the oldest is dropped.
        durable: the number of samples in the newest checkpoint.

    Raises:
        CheckpointError: the file in the folder is damaged.
    """

    def __init__(self, folder: Path, most: int, durable: int):
        self.path, self.most = folder / UNLABELED_FILE, most
        self.accepted: dict[str, tuple[int, dict[str, Any]]] = {}
        try:
            saved = json.loads(self.path.read_bytes()) if self.path.exists() else {}
            saved = msgspec.convert(saved, dict[str, tuple[int | None, dict[str, Any]]])
        except (ValueError, RecursionError):
            message = f"{self.path} is damaged: remove it. The rows that waited for their labels are lost."
            raise CheckpointError(message) from None
        self.unlabeled = {id: row for id, (number, row) in saved.items() if number is None or number > durable}

    def add(self, id: str, row: dict[str, Any]) -> None:
        """Add a row. It replaces one with the same id.

        Args:
            id: the id of the row.
            row: the columns that are known.
        """
        self.unlabeled.pop(id, None)
        self.unlabeled[id] = row
        while len(self.unlabeled) > self.most:
            del self.unlabeled[next(iter(self.unlabeled))]

    def completed(self, id: str, rest: dict[str, Any]) -> dict[str, Any]:
        """Return the row with this id together with its remaining columns.

        Args:
            id: the id of the row.
            rest: the remaining columns.

        Raises:
            Refusal: no row waits with this id.
        """
        if id in self.accepted:
            raise Refusal(409, f"the row with the id {id!r} was already accepted, as row {self.accepted[id][0]}.")
        if id not in self.unlabeled:
            raise Refusal(
                404,
                f"no row waits with the id {id!r}: it was not sent to /predict, was already learned from, or was "
                f"dropped when more than {self.most} rows waited.",
            )
        return {**self.unlabeled[id], **rest}

    def done(self, id: str, number: int) -> None:
        """Mark a row as accepted.

        Args:
            id: the id of the row.
            number: the number of its sample.
        """
        # `save` copies the two in the opposite order, so that it never misses a row that moves between them.
        self.accepted[id] = number, self.unlabeled[id]
        del self.unlabeled[id]

    def forget(self, durable: int) -> None:
        """Drop completed rows that a checkpoint contains.

        Args:
            durable: the number of samples in the checkpoint.
        """
        self.accepted = {id: entry for id, entry in self.accepted.items() if entry[0] > durable}

    def save(self) -> None:
        """Write all rows to the file. May be called from another thread."""
        unlabeled = self.unlabeled.copy()
        rows = {**{id: (None, row) for id, row in unlabeled.items()}, **self.accepted.copy()}
        if rows or self.path.exists():
            write_atomically(self.path, json.dumps(rows).encode())
