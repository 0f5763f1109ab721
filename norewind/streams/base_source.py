"""The interface of sources, and the base of all streams that read from one."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from norewind.streams.position import SourceProgress
from norewind.streams.stream import BadRow, Stream

# A request to stop is noticed within this time (in seconds).
POLL_SECONDS = 0.2
MAX_LINE_BYTES = 1 << 20


class BaseSource(ABC):
    """Records in order: lines, messages or rows from Python. Peek at the next ones, then move past them.

    The default methods suit rows from Python, which start where the run stopped.

    Attributes:
        name: the name of the source in messages.
        has_rows: whether records are dicts by column rather than text.
        reads_ahead: whether records that come later may be awaited. Otherwise, a row has to hold what is known in
            advance of the next ones.
        progress: how far the source has been read.
        ended: whether all of it has been read.
        unfinished: the number of bytes at the end of a file that belong to an incomplete line.
        closed: whether it has been closed. Nothing more can be read then.
        deadline: the time at which to stop waiting for more; None for never.
        late: whether the deadline has passed.
    """

    name = ""
    has_rows = False
    reads_ahead = True
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

    def catch_up(self) -> None:  # noqa: B027 (by default, nothing is to be done)
        """Move to the position that was passed to `start`."""

    def set_timeout(self, timeout: float | None) -> None:
        """Set how long to wait for records from now on.

        Args:
            timeout: the time in seconds; None to wait indefinitely. Data that is already available is read even
                if it is 0.

        Raises:
            ValueError: the source is closed.
        """
        if self.closed:
            raise ValueError(f"{self.name} is closed, so no more samples can be taken. Open a new stream.")
        self.deadline, self.late = None if timeout is None else time.monotonic() + timeout, False

    @abstractmethod
    def peek(self, count: int = 1) -> list[Any]:
        """Return the next records without moving past them.

        Args:
            count: the maximum number of records.

        Returns:
            The records; an empty list at the end, at the deadline or when stopped.
        """

    def preview(self, count: int) -> list[Any]:
        """Return the first records, from which the kinds of the columns are inferred, without moving past them.

        Args:
            count: the maximum number of records.
        """
        return self.peek(count)

    def read_ahead(self, count: int) -> tuple[list[Any], bool]:
        """Return the next records without moving past them, and whether they are all that will come.

        Args:
            count: the maximum number of records.
        """
        records = self.peek(count)
        return records, len(records) < count

    @abstractmethod
    def drop(self, records: Sequence[Any]) -> None:
        """Move past the next records.

        Args:
            records: the records, as returned by `peek`.
        """

    def parse(self, record: Any, parse: Callable[[str], Any]) -> Any:
        """Return the row in a record, as a dict by column.

        Args:
            record: a record, as returned by `peek`.
            parse: the function that parses the text of a record, if it has any.
        """
        return record

    def line_numbers(self, records: Sequence[Any]) -> np.ndarray:
        """Return the line numbers of the next records, counted from 1.

        Args:
            records: the records, as returned by `peek`.
        """
        first = self.progress.here.lines + 1
        return np.arange(first, first + len(records))

    def location(self, record: Any) -> str:
        """Describe the location of the next record, for messages.

        Args:
            record: a record, as returned by `peek`.
        """
        return f"row {self.progress.here.lines + 1}"

    def report(self, record: Any, problem: str) -> None:  # noqa: B027
        """Report that the next record is bad and is skipped.

        Args:
            record: a record, as returned by `peek`.
            problem: what is wrong with it.
        """

    def commit(self, position: dict[str, Any]) -> None:  # noqa: B027
        """Note that everything up to a position is in a checkpoint. A source whose progress is monitored publishes it.

        Args:
            position: the position of the stream.
        """

    def close(self) -> None:
        """Close the source."""
        self.closed = True


@contextmanager
def closed_on_error(source: BaseSource) -> Iterator[None]:
    """Close the source if its stream cannot be created, since there is no stream that would close it."""
    try:
        yield
    except BaseException:
        source.close()
        raise


class SourceStream(Stream):
    """A stream that reads from a source."""

    _source: BaseSource

    @property
    def counts(self) -> dict[str, int]:
        return self._source.progress.counts

    @property
    def unfinished(self) -> int:
        return self._source.unfinished

    def commit(self, position: dict[str, Any]) -> None:
        self._source.commit(position)

    def close(self) -> None:
        self._source.close()


def decoded(line: bytes, offset: int = 0) -> str:
    """Decode a line or a message as UTF-8.

    Args:
        line: its bytes.
        offset: the offset of its first byte, for messages.

    Raises:
        BadRow: the line is too long or not valid UTF-8.
    """
    if len(line) > MAX_LINE_BYTES:
        raise BadRow(f"it is longer than {MAX_LINE_BYTES} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadRow(f"it is not valid UTF-8, at byte {offset + error.start}") from None
