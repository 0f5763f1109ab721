"""Requests for forecasts and explanations, which the learning thread answers between two chunks."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from norewind.errors import NorewindError
from norewind.serving.bodies import RequestError, busy_error

# The most requests that may wait, the most rows in one, and the most seconds until an answer.
MAX_REQUESTS, MAX_ROWS, MAX_SECONDS = 16, 1_000, 60


class ForecastRequest(NamedTuple):
    """A request for a forecast.

    Attributes:
        rows: the number of rows; None for the horizon.
        key: the name of the key, if the run has keys.
        known_future: what is known in advance about these rows; None for what the run was told.
    """

    rows: int | None = None
    key: str | None = None
    known_future: list[dict[str, Any]] | None = None


class LearnerRequests:
    """A queue of requests. `answer_all` is called in the learning thread, all other methods in the event loop."""

    def __init__(self):
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future]] = deque()

    async def ask(self, compute: Callable[[], Any]) -> Any:
        """Wait for an answer.

        Args:
            compute: computes the answer.

        Raises:
            RequestError: the run cannot answer this, or is too busy.
        """
        if len(self._waiting) >= MAX_REQUESTS:
            raise busy_error(f"{MAX_REQUESTS} forecasts are waiting")
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((compute, answer))
        done, _ = await asyncio.wait([answer], timeout=MAX_SECONDS)
        if not done:
            raise busy_error("no answer was computed in time")
        return answer.result()

    def answer_all(self, call_soon: Callable) -> None:
        """Answer the requests that wait.

        Args:
            call_soon: calls a function in the event loop.
        """
        while self._waiting:
            compute, answer = self._waiting.popleft()
            try:
                call_soon(_settle, answer, compute())
            except NorewindError as error:
                call_soon(_settle, answer, RequestError(400, str(error)))

    def end(self) -> None:
        """Answer all requests with an error, since learning has ended."""
        while self._waiting:
            _settle(self._waiting.popleft()[1], RequestError(503, "the run no longer learns."))


def _settle(answer: asyncio.Future, result: Any) -> None:
    """Set the result of a request, or its error, unless it is no longer wanted."""
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
