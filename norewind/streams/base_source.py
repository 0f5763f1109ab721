"""What all sources have in common: bytes or rows in order, deadlines, and positions."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from norewind.streams.position import SourceProgress


class BaseSource:
    """Records in order: lines, messages or rows from Python. Peek at the next ones, then move past them.

    The default methods suit rows from Python, which start where the run stopped.

    Attributes:
        name: the name of the source in messages.
        has_rows: whether records are dicts by column rather than text.
        progress: how far the source has been read.
        ended: whether all of it has been read.
        unfinished: the number of bytes at the end of a file that belong to an incomplete line.
        closed: whether it has been closed. Nothing more can be read then.
        deadline: the time at which to stop waiting for more; None for never.
        late: whether the deadline has passed.
    """

    name = ""
    has_rows = False
    progress: SourceProgress
    ended = False
    unfinished = 0
    closed = False
    deadline: float | None = None
    late = False

    def start(self, position: dict[str, Any]) -> None:
        """Start reading at a position.

        Args:
            position: a position of the stream.
        """
        self.progress = SourceProgress(position)

    def catch_up(self) -> None:
        """Move to the position that was passed to `start`."""

    def set_patience(self, patience: float | None) -> None:
        """Set how long to wait for records from now on.

        Args:
            patience: the time in seconds; None to wait indefinitely. Data that is already available is read even
                if it is 0.

        Raises:
            ValueError: the source is closed.
        """
        if self.closed:
            raise ValueError(f"{self.name} is closed, so no more samples can be taken. Open a new stream.")
        self.deadline, self.late = None if patience is None else time.monotonic() + patience, False

    def peek(self, count: int = 1) -> list[Any]:
        """Return the next records without moving past them.

        Args:
            count: the maximum number of records.

        Returns:
            The records; an empty list at the end, at the deadline or when stopped.
        """
        raise NotImplementedError

    def ahead(self, count: int) -> list[Any]:
        """Return the first records, from which the kinds of the columns are inferred, without moving past them.

        Args:
            count: the maximum number of records.
        """
        return self.peek(count)

    def drop(self, records: Sequence[Any]) -> None:
        """Move past the next records.

        Args:
            records: the records, as returned by `peek`.
        """
        raise NotImplementedError

    def is_blank(self, record: Any, *, csv: bool) -> bool:
        """Return whether a record is blank and therefore ignored.

        Args:
            record: the record.
            csv: whether it is a line of CSV.
        """
        return False

    def parse(self, record: Any, parse: Callable[[str], Any]) -> Any:
        """Return the row in a record, as a dict by column.

        Args:
            record: the record.
            parse: the function that parses the text of a record, if it has any.
        """
        return record

    def numbers(self, records: Sequence[Any]) -> np.ndarray:
        """Return the line numbers of the next records, counted from 1.

        Args:
            records: the records, as returned by `peek`.
        """
        first = self.progress.here.lines + 1
        return np.arange(first, first + len(records))

    def place(self, record: Any) -> str:
        """Describe the location of the next record, for messages.

        Args:
            record: the record.
        """
        return f"row {self.progress.here.lines + 1}"

    def report(self, record: Any, problem: str) -> None:
        """Report that the next record is bad and is skipped.

        Args:
            record: the record.
            problem: what is wrong with it.
        """

    def show(self, position: dict[str, Any]) -> None:
        """Publish how far the source has been learned from, for monitoring.

        Args:
            position: the position of the stream.
        """

    def close(self) -> None:
        """Close the source."""
        self.closed = True
