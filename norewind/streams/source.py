"""Bytes from a file or a pipe."""

import os
import select
import stat
import time
from collections.abc import Callable, Iterator

from norewind.streams.place import Place
from norewind.streams.stream import StreamError

BLOCK = 1 << 16
# Somebody who asks to stop waits no longer than this (seconds).
SLICE = 0.2


class Source:
    """The bytes of a file, of the standard input (`"-"`) or of an open file descriptor (a number).

    A stream that goes on from a position reads the source from its start, drops what it
    had read before, and checks that it is the same; with a pipe, the producer has to send
    it again. `continues=True` takes the source as going on right after the position.
    `stop()` is asked between reads and while waiting: once it is true, no more is read.

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
    ):
        descriptor = 0 if path == "-" else path
        if descriptor == 0:
            self.name = "the standard input"
        else:
            self.name = f"file descriptor {path}" if isinstance(path, int) else os.fspath(path)
        self.ended = False
        self._continues, self._stop = continues, stop
        try:
            self._file = open(descriptor, "rb", buffering=0, closefd=not isinstance(descriptor, int))  # noqa: SIM115
        except FileNotFoundError:
            raise StreamError(f"{self.name} does not exist. Check the path.") from None
        except IsADirectoryError:
            raise StreamError(f"{self.name} is a folder. Name a file in it, or - for the standard input.") from None
        except PermissionError:
            raise StreamError(f"{self.name} may not be read: permission denied. Allow it, e.g. chmod +r.") from None
        except (OSError, ValueError) as error:
            raise StreamError(f"{self.name} cannot be opened: {error}.") from None
        self._largest = 0
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)

    @property
    def size(self) -> int | None:
        """The bytes of a file, as many as it has now; None for a pipe, which does not tell."""
        status = os.fstat(self._file.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def close(self) -> None:
        """Close the file, if it was opened here."""
        self._file.close()

    def go_to(self, place: Place) -> None:
        """Drop the bytes up to a place where a run has been, and check that they are those that it read."""
        if self._continues:
            return
        here = Place()
        while here.offset < place.offset:
            data = self._read(min(BLOCK, place.offset - here.offset), None)
            if not data and self.ended:
                raise StreamError(
                    f"{self.name} has only {here.offset} bytes, but the run has read {place.offset}: the file shrank, "
                    f"or the pipe is another one. {_SAME_AGAIN}"
                )
            if not data:
                raise StreamError(
                    f"{self.name}: stopped at byte {here.offset}, on the way to byte {place.offset} of the run. "
                    "Resume it again."
                )
            here = here.after(data)
        if here.crc != place.crc:
            raise StreamError(
                f"{self.name} is not what the run has read: its first {place.offset} bytes differ (checksum "
                f"{here.crc:08x}, not {place.crc:08x}). {_SAME_AGAIN}"
            )

    def fragments(self, patience: float | None) -> Iterator[bytes]:
        """Bytes as they come, until the end (then `ended` is true), until `patience` is over, or a stop.

        What is there already is read even when there is no patience at all.
        """
        return self._fragments(None if patience is None else time.monotonic() + patience)

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
                "the run when the file is whole again; follow a log that is rotated through a pipe (tail -F)."
            )
        self._largest = size


_SAME_AGAIN = "Give the same stream again from its start, or say that it goes on where the run stopped (continues)."
