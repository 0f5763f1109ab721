"""Streams of bytes, and what all streams of symbols share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from norewind.streams.place import PLACE_FIELDS, Place, check_position, is_count, place_of
from norewind.streams.source import Source
from norewind.streams.stream import Samples, StreamError, check_count


class ByteStream:
    """Bytes as 256 symbols; every sample is a byte and the next one.

    `position` is what another stream's `position()` returned, to go on there.

    >>> import os
    >>> reader, writer = os.pipe()
    >>> os.write(writer, b"abab")
    4
    >>> os.close(writer)
    >>> xs, targets, *_ = ByteStream(Source(reader)).take(1000)
    >>> targets
    array([98, 97, 98], dtype=int32)
    """

    symbols = 256

    def __init__(self, source: Source, *, position: dict[str, Any] | None = None):
        self._source = source
        self._place, self._previous = Place(), None
        self._ahead = b""
        if position is not None:
            valid = {**PLACE_FIELDS, "previous": lambda value: is_symbol(value, self.symbols)}
            check_position(position, "bytes", valid)
            self._place, self._previous = place_of(position), position["previous"]
        source.go_to(self._place)

    @property
    def counts(self) -> dict[str, int]:
        """Nothing is ever skipped: every byte is a symbol."""
        return {}

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """See `Stream.take`."""
        check_count(count)
        wanted = count + (self._previous is None)
        fragments, fault = self._source.fragments(patience), None
        parts, length = [self._ahead], len(self._ahead)
        try:
            while length < wanted and (fragment := next(fragments, b"")):
                parts.append(fragment)
                length += len(fragment)
        except StreamError as error:
            # What came before is handed out first; the next call meets the same fault again.
            fault = error
        self._ahead = b"".join(parts)
        data = self._ahead[:wanted]
        samples = next_symbols(self._previous, np.frombuffer(data, np.uint8).astype(np.int32))
        if len(samples.xs):
            # The first sample takes two bytes: until then nothing is consumed.
            self._place, self._previous = self._place.after(data), data[-1]
            self._ahead = self._ahead[len(data) :]
        elif fault:
            raise fault
        elif self._source.ended and self._previous is None:
            raise too_short(self._source.name, self._place.after(data), len(data), "bytes", {})
        elif self._source.ended:
            return None
        return samples

    def position(self) -> dict[str, Any]:
        """See `Stream.position`."""
        return {"kind": "bytes", **self._place._asdict(), "counts": {}, "previous": self._previous}

    def encode(self, text: bytes | str) -> np.ndarray:
        """The symbols of a text (of its UTF-8 bytes)."""
        data = text.encode() if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype(np.int32)

    def decode(self, symbols: Sequence[int] | np.ndarray) -> bytes:
        """The bytes that symbols stand for."""
        return np.asarray(symbols, np.uint8).tobytes()


def next_symbols(previous: int | None, symbols: np.ndarray) -> Samples:
    """Every symbol, and the one before the first if there was any, with the one that follows."""
    if previous is not None:
        symbols = np.concatenate([np.array([previous], np.int32), symbols])
    return Samples(symbols[:-1], symbols[1:])


def too_short(name: str, place: Place, number: int, what: str, counts: dict[str, int]) -> StreamError:
    """The error for a stream that ends before its first sample."""
    if place.offset == 0:
        return StreamError(f"{name} is empty. Give it something to learn from.")
    skipped = "".join(f", {count} {reason} skipped" for reason, count in counts.items())
    return StreamError(f"{name} ends at byte {place.offset} with {number} {what}{skipped}: a sample needs two.")


def is_symbol(value: Any, symbols: int) -> bool:
    """A symbol in a position, or none yet."""
    return value is None or (is_count(value) and value < symbols)
