"""Streams of symbols: the bytes of a source, or the characters of UTF-8 text."""

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from norewind.streams.position import PLACE_FIELDS, Progress, check_position, check_same, is_count, unread
from norewind.streams.reading import Source, closed_on_error
from norewind.streams.stream import Samples, Stream, StreamError, check_choice, check_count

UNICODE = 0x110000
# Where unknown characters are skipped, at least this many are decoded at a time.
SIGHT = 4096


class ByteStream(Stream):
    """Bytes as 256 symbols; every sample is a byte and the next one.

    - `source`: where the bytes come from. It is closed with the stream.
    - `position`: what another stream's `position()` returned, to resume there.

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
        with closed_on_error(source):
            if position is not None:
                check_position(position, "bytes", {**PLACE_FIELDS, "previous": lambda value: _is_symbol(value, 256)})
            self._pairs = _Pairs(source, position or unread("bytes", previous=None))

    @property
    def counts(self) -> dict[str, int]:
        """What was skipped: nothing, as every byte is a symbol."""
        return self._pairs.progress.counts

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """Return the next `count` samples, or what there is after `patience` seconds; see `Stream.take`."""
        return self._pairs.take(self._next, count, patience)

    def _next(self, limit: int) -> np.ndarray | None:
        data = self._pairs.ahead[:limit]
        if not data:
            return None
        self._pairs.leave(data)
        return self.encode(data)

    def position(self) -> dict[str, Any]:
        """Return where the samples handed out so far end; see `Stream.position`."""
        return self._pairs.position()

    def close(self) -> None:
        """Close the source."""
        self._pairs.source.close()

    def encode(self, text: bytes | str) -> np.ndarray:
        """Return `text` as symbols; a string is encoded as UTF-8."""
        data = text.encode() if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype(np.int32)

    def decode(self, symbols: Sequence[int] | np.ndarray) -> bytes:
        """Return the bytes that `symbols` stand for."""
        return np.asarray(symbols, np.uint8).tobytes()


class CharacterStream(Stream):
    """The characters of UTF-8 text as symbols; every sample is a character and the next one.

    - `source`: where the text comes from. It is closed with the stream.
    - `alphabet`: the characters that are symbols, in the order of their numbers. Without
      it, each character gets the next number when it first appears.
    - `size`: how many characters can get a number if there is no `alphabet`.
    - `bad`: what to do about characters that have no symbol and bytes that are not UTF-8.
      They end the stream with an error ("fail"), or are skipped and counted ("skip").
    - `position`: what another stream's `position()` returned, to resume there.

    The stream has the attributes `symbols`, the number of symbols, and `alphabet`, the
    characters that have one so far.

    >>> import os
    >>> reader, writer = os.pipe()
    >>> size = os.write(writer, "naïve".encode())
    >>> os.close(writer)
    >>> stream = CharacterStream(Source(reader), size=128)
    >>> stream.take(1000).targets, stream.alphabet
    (array([1, 2, 3, 4], dtype=int32), 'naïve')
    """

    def __init__(
        self,
        source: Source,
        alphabet: str | None = None,
        *,
        size: int = 256,
        bad: Literal["fail", "skip"] = "fail",
        position: dict[str, Any] | None = None,
    ):
        with closed_on_error(source):
            check_choice("bad", bad, ("fail", "skip"))
            if alphabet is not None and (fault := _alphabet_fault(alphabet)):
                raise StreamError(f"the alphabet {alphabet!r} cannot be used: {fault}. Give every character once.")
            if size < 1:
                raise StreamError(f"the size of the alphabet must be at least 1, not {size}.")
            self.symbols = size if alphabet is None else len(alphabet)
            self.alphabet = alphabet or ""
            self._skips = bad == "skip"
            if position is not None:
                self._check(position, alphabet)
                self.alphabet = position["alphabet"]
            self._table = np.full(UNICODE, -1, np.int32)
            self._table[_codes(self.alphabet)] = np.arange(len(self.alphabet))
            self._pairs = _Pairs(source, position or unread("characters", alphabet=self.alphabet, previous=None))

    def _check(self, position: dict[str, Any], alphabet: str | None) -> None:
        valid = {
            **PLACE_FIELDS,
            "alphabet": lambda value: _is_alphabet(value, self.symbols),
            "previous": lambda value: _is_symbol(value, len(position["alphabet"])),
        }
        check_position(position, "characters", valid)
        if alphabet is not None:
            check_same(position, {"alphabet": alphabet})

    @property
    def counts(self) -> dict[str, int]:
        """How many characters without a symbol and how many invalid sequences of bytes were skipped."""
        return self._pairs.progress.counts

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """Return the next `count` samples, or what there is after `patience` seconds; see `Stream.take`."""
        return self._pairs.take(self._next, count, patience)

    def _next(self, limit: int) -> np.ndarray | None:
        # Where many are skipped, looking further ahead finds more symbols. But new ones must be numbered in order.
        sight = max(limit, SIGHT) if self._skips and len(self.alphabet) == self.symbols else limit
        window = self._pairs.ahead[: 4 * sight]  # a character has at most four bytes
        final = self._pairs.source.ended and len(window) == len(self._pairs.ahead)
        try:
            text, _ = codecs.utf_8_decode(window, "strict", final)
        except UnicodeDecodeError as error:
            if error.start == 0:
                self._skip(window[: error.end], "invalid bytes", 1, "is not valid UTF-8")
                return np.empty(0, np.int32)
            text = window[: error.start].decode()
        return self._symbols(text[:sight], limit) if text else None

    def _symbols(self, text: str, limit: int) -> np.ndarray:
        codes = _codes(text)
        symbols = self._table[codes]
        if symbols.min() < 0:
            self._grow(codes[symbols < 0])
            symbols = self._table[codes]
        known = symbols >= 0
        if not known.any() or not (self._skips or known[0]):
            what = f"has the character {text[0]!r}, which is none of the {self.symbols} symbols"
            self._skip(text.encode(), "unknown symbols", len(text), what)
            return symbols[:0]
        # Stop at the last known one, or before an error: what is skipped is counted with the symbol that follows it.
        places = np.flatnonzero(known)[:limit] if self._skips else np.flatnonzero(np.logical_and.accumulate(known))
        end = int(places[-1]) + 1
        if len(places) < end:
            self._pairs.progress.skip("unknown symbols", end - len(places))
        self._pairs.leave(text[:end].encode())
        return symbols[places]

    def _grow(self, codes: np.ndarray) -> None:
        """Number new characters in the order of their appearance, while there is room."""
        new = list(dict.fromkeys(codes.tolist()))[: self.symbols - len(self.alphabet)]
        self._table[new] = np.arange(len(self.alphabet), len(self.alphabet) + len(new))
        self.alphabet += "".join(map(chr, new))

    def _skip(self, data: bytes, reason: str, number: int, what: str) -> None:
        if not self._skips:
            place = self._pairs.progress.here.place
            raise StreamError(
                f"{self._pairs.source.name} {what}, at byte {place.offset} (line {place.lines + 1}). Fix the text, "
                'read it as bytes, or skip and count what has no symbol (bad = "skip").'
            )
        self._pairs.progress.skip(reason, number)
        self._pairs.leave(data)

    def position(self) -> dict[str, Any]:
        """Return where the samples handed out so far end; see `Stream.position`."""
        return self._pairs.position(alphabet=self.alphabet)

    def close(self) -> None:
        """Close the source."""
        self._pairs.source.close()

    def encode(self, text: bytes | str) -> np.ndarray:
        """Return `text` as symbols."""
        try:
            letters = text if isinstance(text, str) else text.decode()
            symbols = self._table[_codes(letters)]
        except UnicodeError as error:
            raise StreamError(f"the text is not valid UTF-8: {error}.") from None
        if (symbols < 0).any():
            place = int(np.argmin(symbols))
            raise StreamError(
                f"the text has the character {letters[place]!r} at index {place}, which is not in the alphabet so far: "
                f"{self.alphabet!r}."
            )
        return symbols

    def decode(self, symbols: Sequence[int] | np.ndarray) -> bytes:
        """Return the text that `symbols` stand for, in UTF-8."""
        letters = self.alphabet.ljust(self.symbols, "\N{REPLACEMENT CHARACTER}")  # for symbols that are not in use yet
        return "".join([letters[symbol] for symbol in np.asarray(symbols).tolist()]).encode()


class _Pairs:
    """Every symbol of a source with the one that follows it. The bytes `ahead` were read, but not decoded yet."""

    def __init__(self, source: Source, start: dict[str, Any]):
        self.source, self.progress, self.ahead = source, Progress(start), b""
        self._what, self._previous = start["kind"], start["previous"]
        source.go_to(self.progress.here.place)

    def leave(self, data: bytes) -> None:
        """Move past bytes that were decoded or skipped."""
        self.progress.read(data)
        self.ahead = self.ahead[len(data) :]

    def take(self, decode: Callable[[int], np.ndarray | None], count: int, patience: float | None) -> Samples | None:
        """See `Stream.take`.

        `decode(limit)` decodes up to `limit` symbols of the bytes ahead and moves past them. It
        returns None if it needs more bytes, and an empty array if it could only skip.
        """
        check_count(count)
        missing = count + (self._previous is None)
        parts = [np.empty(0, np.int32) if self._previous is None else np.array([self._previous], np.int32)]
        fragments, problem = self.source.fragments(patience), None
        try:
            while missing:
                part = decode(missing)
                if part is None:
                    fragment = next(fragments, b"")
                    self.ahead += fragment
                    if not fragment and not (self.source.ended and self.ahead):
                        break
                elif len(part):
                    parts.append(part)
                    missing -= len(part)
                    self.progress.mark()
        except StreamError as error:
            # What came before is handed out first; the next call finds the same problem again.
            problem = error
        symbols = np.concatenate(parts)
        samples = Samples(symbols[:-1], symbols[1:])
        if len(symbols):
            self._previous = int(symbols[-1])
        self.progress.hand_out(len(samples.xs), problem)
        if not len(samples.xs) and self.source.ended and not self.ahead:
            return self._end()
        return samples

    def _end(self) -> None:
        start = self.progress.start
        if start and start["previous"] is None:
            found = f"{self._what}: {0 if self._previous is None else 1}"
            raise self.progress.too_short(self.source.name, found, f"two {self._what}")
        self.progress.end()

    def position(self, **rest: Any) -> dict[str, Any]:
        return self.progress.position(**rest, previous=self._previous)


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.int32)


def _alphabet_fault(alphabet: str) -> str | None:
    if not alphabet:
        return "it is empty"
    if len(set(alphabet)) < len(alphabet):
        twice = next(letter for place, letter in enumerate(alphabet) if letter in alphabet[:place])
        return f"{twice!r} is in it twice"
    half = next((letter for letter in alphabet if "\ud800" <= letter <= "\udfff"), None)
    return None if half is None else f"{half!r} is half a character, which UTF-8 cannot hold"


def _is_alphabet(value: Any, size: int) -> bool:
    return value == "" or (isinstance(value, str) and len(value) <= size and _alphabet_fault(value) is None)


def _is_symbol(value: Any, symbols: int) -> bool:
    return value is None or (is_count(value) and value < symbols)
