"""The bytes and lines of a file or a pipe, as the source of a stream."""

import os
import select
import stat
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from norewind.engines.processor import give_back_free_memory
from norewind.streams.base_source import MAX_LINE_BYTES, POLL_SECONDS, BaseSource, decoded
from norewind.streams.position import Mark, damaged_position_error
from norewind.streams.stream import BadRow, StreamError
from norewind.streams.unpacked import Unpacked

BLOCK_BYTES = 1 << 16
# Seconds to wait, after the first line of a pipe, for more lines from which to infer the kinds of its columns.
PREVIEW_SECONDS = 1.0
OPEN_ERRORS: dict[type[Exception], str] = {
    FileNotFoundError: "does not exist. Check the path.",
    IsADirectoryError: "is a folder. Give the path of a file, or - for standard input.",
    PermissionError: "cannot be read: permission denied. Allow it, e.g. with chmod +r.",
}
REPLAY_HINT = "Provide the same stream from its start, or pass continues=True if it resumes where the run stopped."


class Source(BaseSource):
    """The bytes and lines of a file or a pipe.

    A stream that resumes at a position reads the source again from its start, drops the part that was read before, and
    checks that it is unchanged. A pipe has to send that part again.

    To limit memory, a line longer than `MAX_LINE_BYTES` bytes is cut somewhere after that length. If its beginning is
    dropped, the rest is dropped too.

    Args:
        path: the path of a file, `"-"` for standard input, or an open file descriptor (a number). A file opened by
            its path is closed by `close`. Standard input and descriptors stay open: a descriptor is closed by the
            code that opened it.
        continues: the source starts exactly at the position of the stream, so nothing is dropped or checked.
        stop: called between reads and while waiting. Once it returns True, nothing more is read.
        final: a file will not grow any more. Otherwise, its last line is held back until its newline arrives.
        unpack: it is a gzip file, of which the unpacked bytes are read. Positions count these too.

    Attributes:
        buffer: the bytes that have been read, but not moved past.

    Raises:
        StreamError: the file cannot be opened.

    >>> reader, writer = os.pipe()
    >>> os.write(writer, b"some bytes")
    10
    >>> Source(reader).read()
    b'some bytes'
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | int,
        *,
        continues: bool = False,
        stop: Callable[[], bool] = lambda: False,
        final: bool = False,
        unpack: bool = False,
    ):
        descriptor = 0 if path == "-" else path
        named = f"file descriptor {path}" if isinstance(path, int) else os.fspath(path)
        self.name = "standard input" if descriptor == 0 else named
        self._final = final
        self._continues = continues
        self._stop = stop
        try:
            self._file = open(  # noqa: SIM115
                descriptor, "rb", buffering=0, closefd=not isinstance(descriptor, int), opener=_open_at_once
            )
        except (OSError, ValueError) as error:
            raise StreamError(f"{self.name} {OPEN_ERRORS.get(type(error), f'cannot be opened: {error}.')}") from None
        if unpack:
            self._file = Unpacked(self._file, self.name)
        self._largest = 0
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)
        self.buffer = bytearray()
        self._dropping = False  # whether the rest of a dropped line follows the buffer
        self._long_bytes = 0  # in long lines, since memory was last given back

    @property
    def size(self) -> int | None:
        """The current size of a file in bytes; None for a pipe."""
        status = os.fstat(self._file.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def complete(self) -> bool:
        """Whether all of it has been read and nothing can follow: a file can grow after its end, but a pipe cannot."""
        return self.ended and (self._final or self.size is None)

    def close(self) -> None:
        """Close the file if it was opened by its path. Nothing more can be read."""
        self.closed = True
        self._file.close()

    def catch_up(self) -> None:
        """Drop the bytes up to the position, and check that they equal the bytes read before."""
        if self._continues:
            return
        here, place = Mark(), self.progress.here
        while here.offset < place.offset:
            data = self.read(min(BLOCK_BYTES, place.offset - here.offset))
            if not data and self.ended:
                sizes = f"has only {here.offset} bytes, but the run has read {place.offset}"
                raise StreamError(
                    f"{self.name} {sizes}: the file was truncated, or this is a different pipe. {REPLAY_HINT}"
                )
            if not data:
                where = f"stopped at byte {here.offset}, before byte {place.offset}, where the run resumes"
                raise StreamError(f"{self.name}: {where}. Resume it again.")
            here = here.after(data)
        if here.crc != place.crc:
            problem = f"is not the stream that the run has read: its first {place.offset} bytes differ"
            raise StreamError(f"{self.name} {problem}. {REPLAY_HINT}")
        if here.lines != place.lines:
            raise damaged_position_error(f"it counts {place.lines} lines, but {self.name} has {here.lines} up to there")

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """Return the next bytes; none at the end, at the deadline or when stopped.

        Args:
            size: the maximum number of bytes.
        """
        while not (self.ended or self.late or self._stop()) and self._wait():
            try:
                self._check_size()
                data = self._file.read(size)
                if data == b"":
                    self._check_size()  # it may have shrunk between the two
            except OSError as error:
                raise StreamError(f"{self.name} cannot be read: {error}.") from None
            if data is not None:  # or it is a non-blocking descriptor that was not ready after all
                self.ended = not data
                self.late = self.deadline is not None and time.monotonic() >= self.deadline
                return data
        return b""

    def _wait(self) -> bool:
        """Wait until there are bytes to read, or the end; return False at the deadline or when stopped."""
        seconds = 0.0
        while not self._poll.poll(1000 * seconds):
            seconds = POLL_SECONDS if self.deadline is None else min(POLL_SECONDS, self.deadline - time.monotonic())
            if seconds <= 0 or self._stop():
                return False
        return True

    def _check_size(self) -> None:
        size = self.size or 0
        if size < self._largest:
            raise StreamError(
                f"{self.name} shrank while it was read: it had {self._largest} bytes and now has {size}. Resume "
                "the run when the file is complete again. To follow a log that is rotated, use a pipe (tail -F)."
            )
        self._largest = size

    def peek(self, count: int = 1) -> list[bytes]:
        """Return the next lines without their newlines. A last line without one waits until the source is complete."""
        while (end := self.buffer.rfind(b"\n")) < 0:
            if len(self.buffer) > MAX_LINE_BYTES or (self.buffer and self.complete):
                return [bytes(self.buffer)]
            if not self.fill() and not (self.buffer and self.complete):
                self.unfinished = len(self.buffer) if self.ended else 0
                return []
        here = self.progress.here
        # The first line and a very long one are read on their own.
        if count == 1 or not here.offset or here.inside or end > MAX_LINE_BYTES:
            return [bytes(self.buffer[: self.buffer.index(b"\n")])]
        return bytes(self.buffer[:end]).split(b"\n", count)[:count]

    def read_ahead(self, count: int) -> tuple[list[bytes], bool]:
        while self.buffer.count(b"\n") < count and self.fill():
            pass
        *lines, rest = bytes(self.buffer).split(b"\n")
        lines += [rest] if rest and self.complete else []
        return lines[:count], self.ended and len(lines) < count

    def preview(self, count: int) -> list[bytes]:
        # All of a file can be read now, but the sender of a pipe may wait for the answer to its first row.
        self.set_timeout(PREVIEW_SECONDS if self.size is None else None)
        while self.buffer.count(b"\n") < count and len(self.buffer) <= MAX_LINE_BYTES + BLOCK_BYTES and self.fill():
            pass
        *lines, rest = bytes(self.buffer).split(b"\n")
        return [*lines, rest][:count] if self.ended and rest else lines[:count]

    def drop(self, records: Sequence[bytes]) -> None:
        data = self.buffer[: sum(map(len, records)) + len(records)]
        self.move_past(data)
        self._dropping = not data.endswith(b"\n")
        # The C library keeps the memory of long lines, and lines of varying lengths do not fit into its gaps.
        self._long_bytes += len(data) if len(data) > 2 * BLOCK_BYTES else 0
        if self._long_bytes > 4 * MAX_LINE_BYTES:
            self._long_bytes = 0
            give_back_free_memory()

    def move_past(self, data: bytes | bytearray) -> None:
        """Move past the next bytes, which are the first of `buffer`."""
        self.progress.read(data)
        del self.buffer[: len(data)]

    def parse(self, record: bytes, parse: Callable[[str], Any]) -> Any:
        here = self.progress.here
        if here.inside:
            raise BadRow("it continues a line that had no newline yet when the run read it")
        text = decoded(record, here.offset)
        # The source may begin with a byte order mark.
        return parse((text if here.offset else text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")).removesuffix("\r"))

    def location(self, record: bytes) -> str:
        cut = "; it has no newline and may be cut off" if self.ended and b"\n" not in self.buffer else ""
        here = self.progress.here
        return f"line {here.lines + 1} (byte {here.offset}{cut})"

    def fill(self) -> bool:
        """Read more bytes into the buffer, and return whether there were any."""
        data = rest = self.read()
        if self._dropping:
            head, newline, rest = data.partition(b"\n")
            self.progress.read(head + newline)
            self._dropping = not newline
        self.buffer += rest
        return bool(data)


def _open_at_once(path: str, flags: int) -> int:
    """Open a pipe without waiting for a writer. Requests to stop are then checked while reading."""
    is_pipe = sys.platform == "linux" and os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode)
    return os.open(path, flags | os.O_NONBLOCK if is_pipe else flags)
