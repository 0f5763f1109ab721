"""Bytes and lines from a file or a pipe."""

import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from norewind.machine import give_back_free_memory
from norewind.streams.columns import BadRow
from norewind.streams.position import Mark, Progress, damaged
from norewind.streams.stream import Stream, StreamError

BLOCK = 1 << 16
# A request to stop is noticed within this time (in seconds).
SLICE = 0.2
LONGEST = 1 << 20
UNUSABLE: dict[type[Exception], str] = {
    FileNotFoundError: "does not exist. Check the path.",
    IsADirectoryError: "is a folder. Give the path of a file, or - for standard input.",
    PermissionError: "cannot be read: permission denied. Allow it, e.g. with chmod +r.",
}
SAME_AGAIN = "Give the same stream again from its start, or say that it starts where the run stopped (continues)."


class BaseSource:
    """Where a stream reads from.

    The defaults describe a source without a known end, which starts where the run stopped.

    Attributes:
        name: what messages call the source.
        has_rows: whether it provides rows by column instead of text.
        ended: whether all of it was read.
        unfinished: the bytes at the end of a file that wait for the rest of their line.
        closed: whether it was closed. Nothing can be read any more.
    """

    name = ""
    has_rows = False
    ended = False
    unfinished = 0
    closed = False

    @property
    def size(self) -> int | None:
        """The current size of a file in bytes; None if it is unknown."""
        return None

    @property
    def complete(self) -> bool:
        """Whether all of it was read and nothing can follow."""
        return self.ended

    def lines(self, start: dict[str, Any]) -> Any:
        """The lines of the source, from the position `start` on."""
        return Lines(self, Progress(start))

    def go_to(self, place: Mark) -> None:
        """Go to the place where the run stopped."""

    def fragments(self, patience: float | None) -> Iterator[bytes]:
        """Iterate over the bytes as they come, until the end, until a stop, or until `patience` (seconds) runs out.

        What is already there is read even if `patience` is 0. If it is None, there is no limit.
        """
        if self.closed:
            raise ValueError(f"{self.name} is closed, so no more samples can be taken. Open a new stream.")
        return self._fragments(None if patience is None else time.monotonic() + patience)

    def _fragments(self, deadline: float | None) -> Iterator[bytes]:
        return iter(())

    def show(self, position: dict[str, Any]) -> None:
        """Tell whoever watches the source how far it was learned from."""

    def close(self) -> None:
        """Close the source."""
        self.closed = True


class Source(BaseSource):
    """The bytes of a file or a pipe.

    A stream that resumes at a position reads the source again from its start, drops what
    it had read before, and checks that it is the same. A pipe has to send it again.

    Args:
        path: the path of a file, `"-"` for standard input, or an open file descriptor (a number). A file opened by
            its path is closed by `close`. A descriptor and standard input stay open: whoever opened a descriptor
            closes it.
        continues: the source starts right at the position of the stream, so nothing is dropped or checked.
        stop: called between reads and while waiting. Once it returns True, no more is read.
        final: a file will not grow any more. Otherwise its last line waits for its newline.

    >>> reader, writer = os.pipe()
    >>> os.write(writer, b"some bytes")
    10
    >>> next(Source(reader).fragments(patience=0))
    b'some bytes'
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | int,
        *,
        continues: bool = False,
        stop: Callable[[], bool] = lambda: False,
        final: bool = False,
    ):
        descriptor = 0 if path == "-" else path
        named = f"file descriptor {path}" if isinstance(path, int) else os.fspath(path)
        self.name = "standard input" if descriptor == 0 else named
        self._final, self._continues, self._stop = final, continues, stop
        try:
            self._file = open(  # noqa: SIM115
                descriptor, "rb", buffering=0, closefd=not isinstance(descriptor, int), opener=_open_at_once
            )
        except (OSError, ValueError) as error:
            raise StreamError(f"{self.name} {UNUSABLE.get(type(error), f'cannot be opened: {error}.')}") from None
        self._largest = 0
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)

    @property
    def size(self) -> int | None:
        status = os.fstat(self._file.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def complete(self) -> bool:
        """A pipe cannot grow after its end, but a file can."""
        return self.ended and (self._final or self.size is None)

    def close(self) -> None:
        """Close the file if it was opened by its path. Nothing can be read any more."""
        self.closed = True
        self._file.close()

    def go_to(self, place: Mark) -> None:
        """Drop the bytes up to `place`, and check that they are those that were read before."""
        if self._continues:
            return
        here = Mark()
        while here.offset < place.offset:
            data = self._read(min(BLOCK, place.offset - here.offset), None)
            if not data and self.ended:
                found = f"has only {here.offset} bytes, but the run has read {place.offset}: the file shrank"
                raise StreamError(f"{self.name} {found}, or this is another pipe. {SAME_AGAIN}")
            if not data:
                where = f"stopped at byte {here.offset}, before byte {place.offset}, where the run resumes"
                raise StreamError(f"{self.name}: {where}. Resume it again.")
            here = here.after(data)
        if here.crc != place.crc:
            found = f"is not what the run has read: its first {place.offset} bytes differ"
            raise StreamError(f"{self.name} {found}. {SAME_AGAIN}")
        if here.lines != place.lines:
            raise damaged(f"it counts {place.lines} lines, but {self.name} has {here.lines} up to there")

    def _fragments(self, deadline: float | None) -> Iterator[bytes]:
        while data := self._read(BLOCK, deadline):
            yield data
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _read(self, size: int, deadline: float | None) -> bytes:
        """The next bytes; none at the end, at the deadline or when stopped."""
        while not self.ended and not self._stop() and self._wait(deadline):
            try:
                self._check_size()
                data = self._file.read(size)
                if data == b"":
                    self._check_size()  # it may have shrunk between the two
            except OSError as error:
                raise StreamError(f"{self.name} cannot be read: {error}.") from None
            if data is not None:  # or it is a non-blocking descriptor that was not ready after all
                self.ended = not data
                return data
        return b""

    def _wait(self, deadline: float | None) -> bool:
        """Whether there is something to read (or the end), before the deadline and without a stop."""
        seconds = 0.0
        while not self._poll.poll(1000 * seconds):
            seconds = SLICE if deadline is None else min(SLICE, deadline - time.monotonic())
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


def _open_at_once(path: str, flags: int) -> int:
    """Do not wait for somebody to write to a pipe before it is opened: whether to stop is asked while reading."""
    is_pipe = sys.platform == "linux" and os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode)
    return os.open(path, flags | os.O_NONBLOCK if is_pipe else flags)


@contextmanager
def closed_on_error(source: BaseSource) -> Iterator[None]:
    """Close the source if its stream cannot be made, as there is no stream to close it with."""
    try:
        yield
    except BaseException:
        source.close()
        raise


class SourceStream(Stream):
    """A stream of what a source brings, with its progress."""

    _source: BaseSource
    _progress: Progress

    @property
    def counts(self) -> dict[str, int]:
        return self._progress.counts

    @property
    def unfinished(self) -> int:
        return self._source.unfinished

    def close(self) -> None:
        self._source.close()


def decoded(line: bytes, offset: int = 0) -> str:
    """The text of a line that begins at this byte."""
    if len(line) > LONGEST:
        raise BadRow(f"it is longer than {LONGEST} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadRow(f"it is not valid UTF-8, at byte {offset + error.start}") from None


class BaseLines:
    """The lines of a source, or its rows: look at the next one (`peek`), then move past it (`drop`).

    `may_be_blank` says whether a line with nothing in it means nothing.
    """

    may_be_blank = False
    progress: Progress

    def is_cut(self) -> bool:
        """Whether the next line is the last of the source and has no newline."""
        return False

    def in_one_go(self) -> bool:
        """Whether the next lines may be read together."""
        return False

    def move(self, size: int) -> None:
        """Move past this many bytes, or rows."""
        raise NotImplementedError

    def drop(self) -> None:
        """Move past the next line."""
        self.move(1)

    def skip(self, why: str) -> None:
        """Move past a bad line."""
        self.drop()

    def number(self) -> int:
        """The number of the next line, from 1."""
        return self.progress.here.lines + 1

    def place(self) -> str:
        """Where the next line stands, for messages."""
        return f"row {self.number()}"

    def row(self, line: Any, parse: Callable[[str], Any]) -> Any:
        """The row in a line, the next one or one ahead, by column; `parse` is applied to its text, if it has any."""
        return line


class Lines(BaseLines):
    """The lines of a file or a pipe.

    To limit the memory, a line longer than `LONGEST` bytes is cut somewhere after that
    length. When its beginning is dropped, its rest is dropped too. Whole lines that were
    read are in `block`, from byte `at` on.
    """

    may_be_blank = True

    def __init__(self, source: BaseSource, progress: Progress):
        self._source, self.progress = source, progress
        self.block, self.at = b"", 0
        self._rest = bytearray()
        self._dropping, self._long = False, 0

    def peek(self, fragments: Iterator[bytes]) -> bytes | None:
        """The next line, without its newline; None if there is none, or not yet.

        The last line may have no newline, but is not used before the source is complete.
        """
        while self.at == len(self.block):
            if len(self._rest) > LONGEST:
                return bytes(self._rest)
            fragment = next(fragments, b"")
            if not fragment:
                if self._source.complete and self._rest:
                    return bytes(self._rest)
                self._source.unfinished = len(self._rest) if self._source.ended else 0
                return None
            self._add(fragment)
        return self.block[self.at : self.block.index(b"\n", self.at)]

    def ahead(self, fragments: Iterator[bytes], count: int) -> list[bytes]:
        """The next lines, up to `count` or `LONGEST` bytes, without moving past any."""
        size, whole = 0, self.block.count(b"\n", self.at)
        while whole < count and size + len(self._rest) <= LONGEST and (fragment := next(fragments, b"")):
            self._add(fragment)
            size, whole = size + len(fragment), whole + fragment.count(b"\n")
        *lines, _ = self.block[self.at :].split(b"\n")
        rest = [bytes(self._rest)] if self._source.ended and self._rest else []
        return [*lines, *rest][:count]

    def drop(self) -> None:
        if self.at < len(self.block):
            self.move(self.block.index(b"\n", self.at) + 1 - self.at)
        else:
            self._pass(bytes(self._rest))
            self._rest.clear()
            self._dropping = True

    def move(self, size: int) -> None:
        """Move past lines of this many bytes in the block."""
        data = self.block[self.at : self.at + size]
        self.at += size
        self._pass(data)

    def _pass(self, data: bytes) -> None:
        self.progress.read(data)
        # The C library keeps the memory of long lines, and lines of ever other lengths fit into none of its gaps.
        self._long += len(data) if len(data) > 2 * BLOCK else 0
        if self._long > 4 * LONGEST:
            self._long = 0
            give_back_free_memory()

    def place(self) -> str:
        return f"line {self.number()} (byte {self.progress.here.offset})"

    def is_cut(self) -> bool:
        return self._source.ended and self.at == len(self.block)

    def row(self, line: bytes, parse: Callable[[str], Any]) -> Any:
        here = self.progress.here
        if here.inside:
            raise BadRow("it continues a line that had no newline yet when the run read it")
        text = decoded(line, here.offset)
        # The source may begin with a byte order mark.
        return parse((text if here.offset else text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")).removesuffix("\r"))

    def in_one_go(self) -> bool:
        """A first or a very long line is read on its own."""
        here = self.progress.here
        return bool(here.offset) and not here.inside and self.at < len(self.block) <= LONGEST

    def _add(self, fragment: bytes) -> None:
        if self._dropping:
            head, newline, fragment = fragment.partition(b"\n")
            self.progress.read(head + newline)
            self._dropping = not newline
        cut = fragment.rfind(b"\n") + 1
        if cut:
            self.block, self.at = b"".join([self.block[self.at :], self._rest, fragment[:cut]]), 0
            self._rest = bytearray()
        # A line may be a megabyte: only what belongs to it is copied.
        self._rest += fragment[cut:]
