"""Lines of a source, one at a time."""

from collections import deque
from collections.abc import Iterator

from norewind.streams.place import Place
from norewind.streams.source import Source

LONGEST = 1 << 20


class Lines:
    """The line at hand can be looked at (`peek`) before it is left behind (`drop`).

    `place` is the start of the line at hand, and `inside` says that this is the middle of
    a line, whose beginning was dropped before its newline came. Of a line that is longer
    than `LONGEST` only a beginning is shown, which is longer than that, too; so the
    memory is bounded.
    """

    def __init__(self, source: Source, place: Place):
        self.place = place
        self.inside = False
        self._source = source
        self._whole: deque[bytes] = deque()
        self._rest = bytearray()

    def peek(self, fragments: Iterator[bytes]) -> bytes | None:
        """The line at hand, without its newline (the last one may have none); None if there is none, or not yet."""
        while not self._whole:
            if len(self._rest) > LONGEST:
                return bytes(self._rest)
            fragment = next(fragments, b"")
            if not fragment:
                return bytes(self._rest) if self._source.ended and self._rest else None
            self._add(fragment)
        return self._whole[0]

    def drop(self) -> None:
        """Go on to the next line."""
        if self._whole:
            self.place = self.place.after(self._whole.popleft() + b"\n")
        else:
            self.place = self.place.after(bytes(self._rest))
            self._rest.clear()
            self.inside = True

    def is_cut(self) -> bool:
        """Whether the line at hand has no newline."""
        return not self._whole

    def _add(self, fragment: bytes) -> None:
        if self.inside:
            head, newline, fragment = fragment.partition(b"\n")
            self.place = self.place.after(head + newline)
            self.inside = not newline
        self._rest += fragment
        if b"\n" in fragment:
            *whole, rest = bytes(self._rest).split(b"\n")
            self._whole.extend(whole)
            self._rest = bytearray(rest)
