"""A queue of rows to predict. Rows that arrive within a moment share one call of the model."""

import asyncio
import timeit
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from norewind.serving.bodies import busy

# The most rows that one call answers.
MOST = 64
# One call should not block the event loop for longer than this (in seconds).
LONGEST_CALL = 0.004
# The shortest time between two calls, so that requests in quick succession share one (in seconds).
APART = 0.003
# The cost of a request in addition to its prediction (in seconds).
REQUEST = 0.0004
# Requests that would wait longer than this for their turn are rejected (in seconds).
LONGEST_WAIT = 0.1


class PredictionQueue:
    """A queue of rows to predict, emptied in the event loop. Rows that arrive within a moment share one call.

    Args:
        answers: computes the answers to rows.
        seconds: the time per row. It determines how many rows may wait, and how many are answered at a time.
    """

    def __init__(self, answers: Callable[[Sequence[Any]], list[Any]], seconds: float):
        self.answers = answers
        self.size = max(1, min(MOST, int(LONGEST_CALL / seconds)))
        self.most = max(4, int(LONGEST_WAIT / (seconds + REQUEST)))
        self._waiting: deque[tuple[Any, asyncio.Future]] = deque()
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
        waiting = len(self._waiting)
        if waiting + len(rows) > max(self.most, 0 if waiting else len(rows)):
            raise busy(f"{waiting} rows wait for their prediction")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in rows]
        self._waiting.extend(zip(rows, futures, strict=True))
        if not waiting:
            loop.call_at(self._next, self._answer)
        return futures

    def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        self._next = loop.time() + APART
        some = [self._waiting.popleft() for _ in range(min(self.size, len(self._waiting)))]
        if self._waiting:
            loop.call_soon(self._answer)
        try:
            answers = self.answers([row for row, _ in some])
        except Exception as error:
            answers = [error] * len(some)
        for (_, future), answer in zip(some, answers, strict=True):
            if not future.done():
                future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)


def seconds_per_row(call: Callable[[int], Any]) -> float:
    """Measure the shortest time of `call(rows)` per row, for one row or many. This also compiles it."""
    best = min(timeit.repeat(lambda: call(1), number=1, repeat=4))
    if best < LONGEST_CALL:  # otherwise rows are answered one at a time
        best = min(best, *(seconds / MOST for seconds in timeit.repeat(lambda: call(MOST), number=1, repeat=4)))
    return best
