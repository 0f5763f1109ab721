"""Rows that wait for late labels, by id."""

import json
from pathlib import Path
from threading import Lock
from typing import Any

from norewind.checkpoint import CheckpointError
from norewind.files import write_atomically
from norewind.serving.bodies import Refusal

WAITING = "waiting.json"


class Labels:
    """Rows that were predicted and wait for the rest, which comes later under the same id.

    A row that was completed is remembered until it is in a checkpoint, under the number that
    it was learned as, so that after a crash its label can be sent again. The file is written
    with every checkpoint.

    Args:
        folder: the run folder.
        most: the largest number of rows that wait; then the oldest is forgotten.
        durable: the number of samples in the newest checkpoint.
    """

    def __init__(self, folder: Path, most: int, durable: int):
        self.path, self.most = folder / WAITING, most
        self.waiting: dict[str, dict[str, Any]] = {}
        self.learned: dict[str, tuple[int, dict[str, Any]]] = {}
        # A row that moves from one to the other must not be missed by the thread that saves both.
        self._moving = Lock()
        try:
            saved = json.loads(self.path.read_bytes()) if self.path.exists() else {}
            for id, (number, row) in saved.items():
                if number is None or int(number) > durable:
                    self.waiting[id] = dict(row)
        except (ValueError, TypeError, AttributeError, RecursionError):
            words = f"{self.path} is damaged: remove it; the rows that waited for their labels are lost."
            raise CheckpointError(words) from None

    def add(self, id: str, row: dict[str, Any]) -> None:
        with self._moving:
            self.waiting.pop(id, None)
            self.waiting[id] = row
            while len(self.waiting) > self.most:
                del self.waiting[next(iter(self.waiting))]

    def whole(self, id: str, rest: dict[str, Any]) -> dict[str, Any]:
        """The waiting row with this id, completed."""
        if id in self.learned:
            raise Refusal(409, f"the row with the id {id!r} was learned from already, as row {self.learned[id][0]}.")
        if id not in self.waiting:
            raise Refusal(
                404,
                f"no row waits under the id {id!r}: it was not sent to /predict, was learned from already, or was "
                f"forgotten when more than {self.most} rows waited.",
            )
        return {**self.waiting[id], **rest}

    def done(self, id: str, number: int) -> None:
        """The row was accepted as sample `number`."""
        with self._moving:
            self.learned[id] = number, self.waiting.pop(id)

    def forget(self, durable: int) -> None:
        """Rows up to `durable` are in a checkpoint, and need no longer be remembered."""
        self.learned = {id: entry for id, entry in self.learned.items() if entry[0] > durable}

    def save(self) -> None:
        """Write down what waits. May be called from another thread."""
        with self._moving:
            both = {**{id: (None, row) for id, row in self.waiting.items()}, **self.learned}
        if both or self.path.exists():
            write_atomically(self.path, json.dumps(both).encode())
