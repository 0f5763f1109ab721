"""Streams of the characters of UTF-8 text."""

import codecs
import copy
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from norewind.streams.place import PLACE_FIELDS, Place, check_position, counted, place_of
from norewind.streams.source import Source
from norewind.streams.stream import Samples, StreamError, check_choice, check_count
from norewind.streams.symbols import is_symbol, next_symbols, too_short

UNICODE = 0x110000
SIGHT = 4096
# What an unused slot of a growing alphabet is written as.
UNUSED = "\N{REPLACEMENT CHARACTER}"


class CharacterStream:
    """The characters of UTF-8 text as symbols; every sample is a character and the next one.

    With an `alphabet` these are the symbols, and any other character is bad. Without one,
    each character gets the next symbol when it first appears, up to `size` of them.
    Characters that have no symbol, and bytes that are not UTF-8, end the stream with an
    error, or are skipped and counted (`bad="skip"`).

    `symbols` is their number, `alphabet` the characters they stand for so far. `position`
    is what another stream's `position()` returned, to go on there.

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
        check_choice("bad", bad, ("fail", "skip"))
        if alphabet is not None and (fault := _alphabet_fault(alphabet)):
            raise StreamError(f"the alphabet {alphabet!r} cannot be used: {fault}. Give every character once.")
        if size < 1:
            raise StreamError(f"the alphabet needs room for at least one symbol, not {size}.")
        self.symbols = size if alphabet is None else len(alphabet)
        self.alphabet = alphabet or ""
        self._source, self._skips = source, bad == "skip"
        self._place, self._counts, self._previous = Place(), {}, None
        if position is not None:
            self._restore(position, alphabet)
        # How far the samples handed out go: what was skipped behind the last one is not settled yet.
        self._settled = self._place, self._counts
        # Until the first sample is handed out, the position is the one begun with, even if a symbol was read.
        self._start: dict[str, Any] | None = self._position()
        self._ahead = b""
        self._table = np.full(UNICODE, -1, np.int32)
        self._table[_codes(self.alphabet)] = np.arange(len(self.alphabet))
        source.go_to(self._place)

    def _restore(self, position: dict[str, Any], alphabet: str | None) -> None:
        valid = {
            **PLACE_FIELDS,
            "alphabet": lambda value: _is_alphabet(value, self.symbols),
            "previous": lambda value: is_symbol(value, len(position["alphabet"])),
        }
        check_position(position, "characters", valid)
        if alphabet is not None and position["alphabet"] != alphabet:
            raise StreamError(
                f"the run was begun with the alphabet {position['alphabet']!r}, but now it is {alphabet!r}. "
                "Its symbols would mean something else: leave the alphabet as it was."
            )
        self.alphabet, self._previous = position["alphabet"], position["previous"]
        self._place, self._counts = place_of(position), dict(position["counts"])

    @property
    def counts(self) -> dict[str, int]:
        """How many characters without a symbol and invalid sequences of bytes were skipped."""
        return dict(self._settled[1])

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """See `Stream.take`."""
        check_count(count)
        missing = count + (self._previous is None)
        parts = [np.empty(0, np.int32)]
        fragments, fault, reached = self._source.fragments(patience), None, self._settled
        try:
            while missing:
                part = self._next(missing)
                if part is None:
                    fragment = next(fragments, b"")
                    self._ahead += fragment
                    if not fragment and not (self._source.ended and self._ahead):
                        break
                elif len(part):
                    parts.append(part)
                    missing -= len(part)
                    reached = self._place, self._counts
        except StreamError as error:
            # What came before is handed out first; the next call meets the same fault again.
            fault = error
        symbols = np.concatenate(parts)
        samples = next_symbols(self._previous, symbols)
        if len(symbols):
            self._previous = int(symbols[-1])
        if len(samples.xs):
            self._start, self._settled = None, reached
        elif fault:
            raise fault
        elif self._source.ended and not self._ahead:
            return self._end()
        return samples

    def _end(self) -> None:
        if self._previous is None or (self._start and self._start["previous"] is None):
            number = 0 if self._previous is None else 1
            raise too_short(self._source.name, self._place, number, "characters", self._counts)
        self._start, self._settled = None, (self._place, self._counts)

    def _next(self, limit: int) -> np.ndarray | None:
        """Up to `limit` of the symbols that are there, perhaps none but skipped ones; None if more bytes are needed."""
        # With many strangers to skip, a longer look finds more symbols; but new ones must be met one after the other.
        sight = max(limit, SIGHT) if self._skips and len(self.alphabet) == self.symbols else limit
        window = self._ahead[: 4 * sight]  # a character has at most four bytes
        final = self._source.ended and len(window) == len(self._ahead)
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
        # Up to the last known one, or the last before a fault: what is skipped belongs to the symbol behind it.
        places = np.flatnonzero(known)[:limit] if self._skips else np.flatnonzero(np.logical_and.accumulate(known))
        end = int(places[-1]) + 1
        if len(places) < end:
            self._counts = counted(self._counts, "unknown symbols", end - len(places))
        self._leave(text[:end].encode())
        return symbols[places]

    def _grow(self, codes: np.ndarray) -> None:
        """Give new characters, in the order of their appearance, the slots that are left."""
        new = list(dict.fromkeys(codes.tolist()))[: self.symbols - len(self.alphabet)]
        self._table[new] = np.arange(len(self.alphabet), len(self.alphabet) + len(new))
        self.alphabet += "".join(map(chr, new))

    def _skip(self, data: bytes, reason: str, number: int, what: str) -> None:
        if not self._skips:
            place = self._place
            raise StreamError(
                f"{self._source.name} {what}, at byte {place.offset} (line {place.lines + 1}). Mend the text, read it "
                'as bytes, or skip and count what has no symbol (bad = "skip").'
            )
        self._counts = counted(self._counts, reason, number)
        self._leave(data)

    def _leave(self, data: bytes) -> None:
        self._place = self._place.after(data)
        self._ahead = self._ahead[len(data) :]

    def position(self) -> dict[str, Any]:
        """See `Stream.position`."""
        return copy.deepcopy(self._start) or self._position()

    def _position(self) -> dict[str, Any]:
        place, counts = self._settled
        text = {"alphabet": self.alphabet, "previous": self._previous}
        return {"kind": "characters", **place._asdict(), "counts": dict(counts), **text}

    def encode(self, text: bytes | str) -> np.ndarray:
        """The symbols of a text."""
        try:
            letters = text if isinstance(text, str) else text.decode()
            symbols = self._table[_codes(letters)]
        except UnicodeError as error:
            raise StreamError(f"the text is not valid UTF-8: {error}.") from None
        if (symbols < 0).any():
            place = int(np.argmin(symbols))
            raise StreamError(
                f"the text has the character {letters[place]!r} at place {place}, which is none of the symbols so far. "
                f"These are {self.alphabet!r}."
            )
        return symbols

    def decode(self, symbols: Sequence[int] | np.ndarray) -> bytes:
        """The text that symbols stand for, in UTF-8."""
        letters = self.alphabet.ljust(self.symbols, UNUSED)
        return "".join([letters[symbol] for symbol in np.asarray(symbols).tolist()]).encode()


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
