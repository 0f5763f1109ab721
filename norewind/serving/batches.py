"""Rows that requests ask about at about the same time, answered by one call."""

import asyncio
import timeit
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from norewind.serving.bodies import busy

# The largest number of rows that one call answers.
MOST = 64
# The event loop should not be held longer than this by one call (in seconds).
LONGEST_CALL = 0.004
# Calls are at least this far apart, so that requests in quick succession share them (in seconds).
APART = 0.003
# The cost of a request in addition to its prediction (in seconds).
REQUEST = 0.0004
# Requests that would wait longer than this for their turn are rejected (in seconds).
LONGEST_WAIT = 0.1


class Batches:
    """Answers rows in the event loop. Rows that arrive within a moment share one call.

    Args:
        answers: from rows to their answers.
        seconds: how long a row takes. It decides how many rows may wait, and how many are answered at a time.
    """

    def __init__(self, answers: Callable[[Sequence[Any]], list[Any]], seconds: float):
        self.answers = answers
        self.size = max(1, min(MOST, int(LONGEST_CALL / seconds)))
        self.most = max(4, int(LONGEST_WAIT / (seconds + REQUEST)))
        self._waiting: deque[tuple[Any, asyncio.Future]] = deque()
        self._next = 0.0

    def ask(self, rows: Sequence[Any]) -> list[asyncio.Future]:
        """Return the answers to come.

        Raises:
            Refusal: too many rows wait already; none of these is accepted.
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
    """How long `call(rows)` takes for a row at best, alone or together with others. Compiles what it needs."""
    best = float("inf")
    for size in (1, MOST):
        best = min(best, min(timeit.repeat(lambda: call(size), number=1, repeat=4)) / size)  # noqa: B023
        if best > LONGEST_CALL:
            break  # one at a time
    return best
