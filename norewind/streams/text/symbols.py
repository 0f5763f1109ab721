"""Streams of symbols: the bytes of a source, the characters of UTF-8 text, or the text of a built-in task."""

import codecs
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from norewind.streams.base_source import SourceStream, closed_on_error
from norewind.streams.position import Count, SourcePosition, check_position, damaged_position_error, init_position
from norewind.streams.source import Source
from norewind.streams.stream import Samples, Stream, StreamError, check_choice, check_take_count, count_named

if TYPE_CHECKING:
    from norewind.tasks import Text

CODE_POINTS = 0x110000
# Where unknown characters are skipped, at least this many are decoded at a time.
MIN_DECODED = 4096


class _BytePosition(SourcePosition):
    previous: Annotated[int, msgspec.Meta(ge=0, lt=256)] | None


class _CharacterPosition(SourcePosition):
    alphabet: str
    previous: Count | None


class _TaskPosition(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    task: str
    seed: Count
    characters: Count


class _SymbolStream(SourceStream):
    """Every symbol of a source together with the next one."""

    def _begin(self, source: Source, start: dict[str, Any]) -> None:
        self._source: Source = source  # pyright: ignore[reportIncompatibleVariableOverride]
        self._kind, self._previous = start["kind"], start["previous"]
        source.start(start)
        source.catch_up()

    def _named(self) -> int | None:
        """Return how many symbols have appeared so far; None if all have names from the start."""
        return None

    @abstractmethod
    def _next(self, limit: int) -> np.ndarray | None:
        """Decode up to `limit` symbols: an empty array if it could only skip, None if it needs more bytes."""

    def take(self, count: int, timeout: float | None = None) -> Samples | None:
        check_take_count(count)
        source = self._source
        progress = self._source.progress
        problem = None
        parts = [np.array([] if self._previous is None else [self._previous], np.int32)]
        missing, named = count + 1 - len(parts[0]), self._named()
        source.set_timeout(timeout)
        try:
            while missing:
                part = self._next(missing)
                if part is None:
                    if not source.fill() and not (source.complete and source.buffer):
                        break
                elif len(part):
                    parts.append(part)
                    missing -= len(part)
                    progress.mark()
        except StreamError as error:
            # Symbols before the problem are returned first; the next call finds the same problem again.
            problem = error
        symbols = np.concatenate(parts)
        if len(symbols):
            self._previous = int(symbols[-1])
        progress.note_returned(len(symbols[1:]), problem)
        if len(symbols) > 1 or not source.ended or (source.buffer and source.complete):
            return Samples(symbols[:-1], symbols[1:], named=None if named is None else count_named(named, symbols[:-1]))
        source.unfinished = len(source.buffer)
        if progress.start and progress.start["previous"] is None:
            content = f"{self._kind}: {len(symbols)}"
            raise progress.too_short_error(source.name, content, f"two {self._kind}", source.unfinished)
        return progress.end()

    def position(self) -> dict[str, Any]:
        return self._source.progress.position(previous=self._previous)


class _Alphabet:
    """Translation between text and symbols, for streams of characters."""

    alphabet: str
    symbols: int

    def encode(self, text: bytes | str) -> np.ndarray:
        """Return `text` as symbols.

        Args:
            text: text, or its bytes in UTF-8.

        Raises:
            StreamError: the text is not valid UTF-8, or has a character without a symbol.
        """
        try:
            letters = text if isinstance(text, str) else text.decode()
        except UnicodeError as error:
            raise StreamError(f"the text is not valid UTF-8: {error}.") from None
        numbers = {letter: number for number, letter in enumerate(self.alphabet)}
        for index, letter in enumerate(letters):
            if letter not in numbers:
                where = f"the text has the character {letter!r} at index {index}"
                raise StreamError(f"{where}, which is not in the alphabet so far: {self.alphabet!r}.")
        return np.array([numbers[letter] for letter in letters], np.int32)

    def decode(self, symbols: Sequence[int] | np.ndarray) -> bytes:
        """Return the text of some symbols, in UTF-8. Symbols without a character yet become replacement characters.

        Args:
            symbols: numbers of characters in the alphabet.
        """
        letters = self.alphabet.ljust(self.symbols, "\N{REPLACEMENT CHARACTER}")
        return "".join([letters[symbol] for symbol in np.asarray(symbols).tolist()]).encode()


class ByteStream(_SymbolStream):
    """Bytes as 256 symbols; every sample is a byte and the next one.

    Args:
        source: the source of the bytes. It is closed with the stream.
        position: a position returned by another stream's `position()`, to resume there.

    Raises:
        StreamError: the source cannot be read, or does not match the position.

    >>> import os
    >>> from norewind.streams import Source
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
                check_position(position, "bytes", _BytePosition, {})
            self._begin(source, position or init_position("bytes", previous=None))

    def _next(self, limit: int) -> np.ndarray | None:
        data = self._source.buffer[:limit]
        if not data:
            return None
        self._source.move_past(data)
        return self.encode(data)

    @staticmethod
    def encode(text: bytes | bytearray | str) -> np.ndarray:
        """Return `text` as symbols; a string is encoded as UTF-8, with the surrogates that represent other bytes."""
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype(np.int32)

    @staticmethod
    def decode(symbols: Sequence[int] | np.ndarray) -> bytes:
        """Return the bytes that the symbols represent."""
        return np.asarray(symbols, np.uint8).tobytes()


class CharacterStream(_Alphabet, _SymbolStream):
    """The characters of UTF-8 text as symbols; every sample is a character and the next one.

    Args:
        source: the source of the text. It is closed with the stream.
        alphabet: the characters that are symbols, in the order of their numbers. By default, each character gets the
            next number when it first appears.
        size: the maximum number of different characters if there is no `alphabet`.
        bad: how to treat characters without a symbol and bytes that are not UTF-8. They end the stream with an error
            ("stop"), or are skipped and counted ("skip").
        position: a position returned by another stream's `position()`, to resume there.

    Attributes:
        symbols: the number of symbols.
        alphabet: the characters that have a symbol so far.

    Raises:
        StreamError: an option is invalid, the source cannot be read, or it does not match the position.

    >>> import os
    >>> from norewind.streams import Source
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
        bad: Literal["stop", "skip"] = "stop",
        position: dict[str, Any] | None = None,
    ):
        with closed_on_error(source):
            check_choice("bad", bad, ("stop", "skip"))
            if alphabet is not None and (fault := _alphabet_fault(alphabet)):
                raise StreamError(f"the alphabet {alphabet!r} cannot be used: {fault}. Give every character once.")
            if size < 1:
                raise StreamError(f"the size of the alphabet must be at least 1, not {size}.")
            self.symbols = size if alphabet is None else len(alphabet)
            self.alphabet = alphabet or ""
            self._skips = bad == "skip"
            if position is not None:
                same = {} if alphabet is None else {"alphabet": alphabet}
                check_position(position, "characters", _CharacterPosition, same)
                self.alphabet, previous = position["alphabet"], position["previous"]
                if len(self.alphabet) > self.symbols or (self.alphabet and _alphabet_fault(self.alphabet)):
                    raise damaged_position_error("its alphabet cannot be used")
                if previous is not None and previous >= len(self.alphabet):
                    raise damaged_position_error(f"its alphabet has no symbol {previous}")
            self._table = np.full(CODE_POINTS, -1, np.int32)
            self._table[_codes(self.alphabet)] = np.arange(len(self.alphabet))
            self._begin(source, position or init_position("characters", alphabet=self.alphabet, previous=None))

    def _named(self) -> int:
        return len(self.alphabet)

    def _next(self, limit: int) -> np.ndarray | None:
        # Where many are skipped, looking further ahead finds more symbols. But new ones must be numbered in order.
        sight = max(limit, MIN_DECODED) if self._skips and len(self.alphabet) == self.symbols else limit
        window = self._source.buffer[: 4 * sight]  # a character has at most four bytes
        final = self._source.complete and len(window) == len(self._source.buffer)
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
            # New characters are numbered in the order of their appearance, while there is room.
            new = list(dict.fromkeys(codes[symbols < 0].tolist()))[: self.symbols - len(self.alphabet)]
            self._table[new] = np.arange(len(self.alphabet), len(self.alphabet) + len(new))
            self.alphabet += "".join(map(chr, new))
            symbols = self._table[codes]
        known = symbols >= 0
        if not known.any() or not (self._skips or known[0]):
            what = f"has the character {text[0]!r}, which is not one of the {self.symbols} symbols"
            self._skip(text.encode(), "unknown symbols", len(text), what)
            return symbols[:0]
        # Stop at the last known one, or before an error: skipped characters are counted with the symbol after them.
        places = np.flatnonzero(known)[:limit] if self._skips else np.flatnonzero(np.logical_and.accumulate(known))
        end = int(places[-1]) + 1
        if len(places) < end:
            self._source.progress.skip("unknown symbols", end - len(places))
        self._source.move_past(text[:end].encode())
        return symbols[places]

    def _skip(self, data: bytes | bytearray, reason: str, number: int, what: str) -> None:
        if not self._skips:
            here = self._source.progress.here
            raise StreamError(
                f"{self._source.name} {what}, at byte {here.offset} (line {here.lines + 1}). Fix the text, "
                'read it as bytes, or skip and count anything without a symbol (bad="skip").'
            )
        self._source.progress.skip(reason, number)
        self._source.move_past(data)

    def position(self) -> dict[str, Any]:
        return self._source.progress.position(alphabet=self.alphabet, previous=self._previous)


class TaskStream(_Alphabet, Stream):
    """The endless text of a task; every sample is a character and the next one.

    Args:
        text: the task, e.g. `norewind.tasks.anbn()`.
        seed: the seed of its random text.
        position: a position returned by another stream's `position()`, to resume there.

    Attributes:
        symbols: the number of symbols.
        alphabet: their characters.

    Raises:
        StreamError: the position is damaged or belongs to another task.

    >>> from norewind.tasks import anbn
    >>> stream = TaskStream(anbn(1, 3))
    >>> stream.decode(stream.take(12).xs)
    b'aaa\\nbbb\\naa\\nb'
    """

    def __init__(self, text: "Text", seed: int = 0, *, position: dict[str, Any] | None = None):
        self.symbols, self.alphabet = len(text.alphabet), text.alphabet
        self._text = text
        self._seed = seed
        self._taken = 0
        if position is not None:
            check_position(position, "task", _TaskPosition, {"task": text.name, "seed": seed})
            self._taken = position["characters"]
        self._chunks = text.chunks(seed, 1, self._taken)
        self._previous = next(self._chunks)

    def take(self, count: int, timeout: float | None = None) -> Samples:
        """Return the next samples.

        Args:
            count: the number of samples. A task never ends, so there are always this many.
            timeout: ignored, since a task never waits.
        """
        check_take_count(count)
        targets = self._chunks.send(count)
        xs = np.append(self._previous, targets[:-1])
        self._previous = targets[-1:]
        self._taken += count
        return Samples(xs, targets)

    def position(self) -> dict[str, Any]:
        return {"kind": "task", "task": self._text.name, "seed": self._seed, "characters": self._taken}


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.int32)


def _alphabet_fault(alphabet: str) -> str | None:
    if not alphabet:
        return "it is empty"
    if len(set(alphabet)) < len(alphabet):
        twice = next(letter for place, letter in enumerate(alphabet) if letter in alphabet[:place])
        return f"{twice!r} is in it twice"
    half = next((letter for letter in alphabet if "\ud800" <= letter <= "\udfff"), None)
    return None if half is None else f"{half!r} is an unpaired surrogate, which UTF-8 cannot hold"
