"""Requests that come within the same moment, answered by one call."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from norewind.serving.refusals import busy

MOST = 64
"""The largest number of rows that one call answers."""
LONGEST_CALL = 0.004
"""The event loop should not be held longer than this by one call (in seconds)."""
APART = 0.003
"""Calls are at least this far apart, so that requests that come one by one in quick succession share them."""
REQUEST = 0.0004
"""What a request costs beside its prediction (in seconds)."""
LONGEST_WAIT = 0.1
"""Requests that would wait longer than this for their turn are refused (in seconds)."""


class Batches:
    """Rows that are answered in the event loop, those that came within a moment by one call.

    How many are taken on, and how many at a time, follows from the time that a row takes.
    """

    def __init__(self, answers: Callable[[Sequence[Any]], list[Any]], seconds: float):
        self.answers = answers
        self.size = max(1, min(MOST, int(LONGEST_CALL / seconds)))
        self.most = max(4, int(LONGEST_WAIT / (seconds + REQUEST)))
        self._waiting: deque[tuple[Any, asyncio.Future]] = deque()
        self._scheduled, self._last = False, 0.0

    def ask(self, rows: Sequence[Any]) -> list[asyncio.Future]:
        """The answers to come, all or none: none if there is too much to do already."""
        if len(self._waiting) + len(rows) > max(self.most, len(rows) if not self._waiting else 0):
            raise busy(f"{len(self._waiting)} rows wait for their prediction")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in rows]
        self._waiting.extend(zip(rows, futures, strict=True))
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._gather)
        return futures

    def _gather(self) -> None:
        """Wait for others if the last call began a moment ago.

        The thread sleeps: to be woken for each of them would cost more than to answer it, and
        nobody else is kept from anything for longer than a call takes.
        """
        wait = self._last + APART - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        self._last = time.monotonic()
        # Not yet: what has come meanwhile is read first, and then asked for.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._answer)

    def _answer(self) -> None:
        some = [self._waiting.popleft() for _ in range(min(self.size, len(self._waiting)))]
        try:
            answers = self.answers([row for row, _ in some])
        except Exception as error:
            for _, future in some:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), answer in zip(some, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._answer)


def seconds_per_row(call: Callable[[int], Any]) -> float:
    """How long a row takes at best, alone or together with others. Compiles what `call(rows)` needs."""
    best = float("inf")
    for size in (1, MOST):
        call(size)
        for _ in range(3):
            began = time.perf_counter()
            call(size)
            best = min(best, (time.perf_counter() - began) / size)
        if best > LONGEST_CALL:
            break  # one at a time
    return best
