"""A client of a service that is killed: it sends every row, and again those that the service has lost."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

LABEL = "light"
ROWS_AT_ONCE = 5
"""The first of this many rows is predicted without its label, and completed later."""
AHEAD = 50
"""It is predicted this many rows before its label is sent."""
START_SECONDS = 300.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Client(threading.Thread):
    """Sends rows to a service until all are accepted, and then asks its process to end. Ends early if that dies.

    The rows of a service that was killed continue after those in its latest checkpoint. Of the others, the service
    knows some that wait for their labels. It answers 404 for an id that it has lost, and the client sends the row.

    Args:
        port: the port of the service.
        rows: all rows, from the first.
        end: asks the process to end.
        is_running: whether the process still runs.

    Attributes:
        late: the number of labels that were sent later.
        problem: an answer that a service must not give; None if there was none.
    """

    def __init__(
        self, port: int, rows: Sequence[dict[str, Any]], end: Callable[[], Any], is_running: Callable[[], bool]
    ):
        super().__init__(daemon=True)
        self.address = f"http://127.0.0.1:{port}/"
        self.rows, self.end, self.is_running = rows, end, is_running
        self.late = 0
        self.problem: str | None = None

    def run(self) -> None:
        number = self._begin()
        while number is not None and number < len(self.rows):
            number = self._send(number)
        if number is not None or self.problem:
            self.end()

    def _begin(self) -> int | None:
        """Wait for the service, and return the number of rows that it has learned from."""
        deadline = time.monotonic() + START_SECONDS
        while self.is_running() and time.monotonic() < deadline:
            status, answer = self._ask("health")
            if status == 200:
                return answer["accepted"]
            time.sleep(0.02)
        return None

    def _send(self, number: int) -> int | None:
        """Send the next rows, the first with a late label if the service still knows it; return the last number."""
        rows = self.rows[number : number - number % ROWS_AT_ONCE + ROWS_AT_ONCE]
        for later in range(number + AHEAD, min(number + AHEAD + len(rows), len(self.rows))):
            if later % ROWS_AT_ONCE == 0:
                known = {name: value for name, value in self.rows[later].items() if name != LABEL}
                self._ask("predict", {"row": known, "id": str(later)})
        status, answer = self._ask("learn", {"row": {LABEL: rows[0][LABEL]}, "id": str(number)})
        self.late += status == 202
        if status == 404:
            status, answer = self._ask("learn", {"row": rows[0]})
        if status == 202 and len(rows) > 1:
            status, answer = self._ask("learn", {"rows": rows[1:]})
        if status == 429:
            time.sleep(0.05)
            return self._begin()
        if status == 0:  # it was killed
            return None
        if status != 202 or answer["last"] != number + len(rows):
            self.problem = f"row {number}: {status}, {answer}"
            return None
        return answer["last"]

    def _ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the answer; 0 without an answer."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.address + path, data), timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, ValueError):
            return 0, None
