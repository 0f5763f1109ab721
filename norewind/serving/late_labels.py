"""Rows that wait for their labels, by id."""

import json
from pathlib import Path
from typing import Any

import msgspec

from norewind.serving.bodies import Refusal
from norewind.storage.checkpoint import CheckpointError
from norewind.storage.files import write_atomically

WAITING = "waiting.json"


class LateLabels:
    """Predicted rows that wait for their remaining columns, which are sent later with the same id.

    A completed row is kept, with its sample number, until a checkpoint contains it, so that its
    label can be sent again after a crash. The file is written with every checkpoint.

    Args:
        folder: the run folder.
        most: the largest number of waiting rows; beyond it, the oldest is dropped.
        durable: the number of samples in the newest checkpoint.

    Raises:
        CheckpointError: the file in the folder is damaged.
    """

    def __init__(self, folder: Path, most: int, durable: int):
        self.path, self.most = folder / WAITING, most
        self.learned: dict[str, tuple[int, dict[str, Any]]] = {}
        try:
            saved = json.loads(self.path.read_bytes()) if self.path.exists() else {}
            saved = msgspec.convert(saved, dict[str, tuple[int | None, dict[str, Any]]])
        except (ValueError, RecursionError):
            message = f"{self.path} is damaged: remove it. The rows that waited for their labels are lost."
            raise CheckpointError(message) from None
        self.waiting = {id: row for id, (number, row) in saved.items() if number is None or number > durable}

    def add(self, id: str, row: dict[str, Any]) -> None:
        """Add a waiting row. It replaces one with the same id.

        Args:
            id: the id of the row.
            row: the columns that are known.
        """
        self.waiting.pop(id, None)
        self.waiting[id] = row
        while len(self.waiting) > self.most:
            del self.waiting[next(iter(self.waiting))]

    def completed(self, id: str, rest: dict[str, Any]) -> dict[str, Any]:
        """Return the waiting row with this id together with its remaining columns.

        Args:
            id: the id of the row.
            rest: the remaining columns.

        Raises:
            Refusal: no row waits with this id.
        """
        if id in self.learned:
            raise Refusal(409, f"the row with the id {id!r} was already accepted, as row {self.learned[id][0]}.")
        if id not in self.waiting:
            raise Refusal(
                404,
                f"no row waits with the id {id!r}: it was not sent to /predict, was already learned from, or was "
                f"dropped when more than {self.most} rows waited.",
            )
        return {**self.waiting[id], **rest}

    def done(self, id: str, number: int) -> None:
        """Mark a row as accepted.

        Args:
            id: the id of the row.
            number: the number of its sample.
        """
        # `save` copies the two in the opposite order, so that it never misses a row that moves between them.
        self.learned[id] = number, self.waiting[id]
        del self.waiting[id]

    def forget(self, durable: int) -> None:
        """Drop completed rows that a checkpoint contains.

        Args:
            durable: the number of samples in the checkpoint.
        """
        self.learned = {id: entry for id, entry in self.learned.items() if entry[0] > durable}

    def save(self) -> None:
        """Write all rows to the file. May be called from another thread."""
        waiting = self.waiting.copy()
        both = {**{id: (None, row) for id, row in waiting.items()}, **self.learned.copy()}
        if both or self.path.exists():
            write_atomically(self.path, json.dumps(both).encode())
