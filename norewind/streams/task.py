"""The built-in tasks as streams."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from norewind.streams.position import check_position, check_same, is_count
from norewind.streams.stream import Samples, Stream, StreamError, check_count

if TYPE_CHECKING:
    from norewind.tasks import Text

BLOCK = 4096


class TaskStream(Stream):
    """The endless text of a task; every sample is a character and the next one.

    - `text`: the task, e.g. `norewind.tasks.anbn()`.
    - `seed`: the seed of its random text.
    - `position`: what another stream's `position()` returned, to resume there.

    The stream has the attributes `symbols`, the number of symbols, and `alphabet`, their
    characters.

    >>> from norewind.tasks import anbn
    >>> stream = TaskStream(anbn(1, 3))
    >>> stream.decode(stream.take(12).xs)
    b'aaa\\nbbb\\naa\\nb'
    """

    def __init__(self, text: "Text", seed: int = 0, *, position: dict[str, Any] | None = None):
        self.symbols, self.alphabet = len(text.alphabet), text.alphabet
        self._text, self._seed, self._taken = text, seed, 0
        if position is not None:
            valid = {"task": lambda value: isinstance(value, str), "seed": is_count, "characters": is_count}
            check_position(position, "task", valid)
            check_same(position, {"task": text.name, "seed": seed})
            self._taken = position["characters"]
        self._chunks = text.chunks(seed, BLOCK, self._taken)
        self._ahead = np.empty(0, np.int32)

    @property
    def counts(self) -> dict[str, int]:
        """What was skipped: nothing, as a task has only good samples."""
        return {}

    def take(self, count: int, patience: float | None = None) -> Samples:
        """Return the next `count` samples. A task never ends, and `patience` is not needed: all of them are there."""
        check_count(count)
        parts, length = [self._ahead], len(self._ahead)
        while length < count + 1:
            parts.append(next(self._chunks))
            length += BLOCK
        whole = np.concatenate(parts)
        self._ahead = whole[count:]
        self._taken += count
        return Samples(whole[:count], whole[1 : count + 1])

    def position(self) -> dict[str, Any]:
        """Return where the samples handed out so far end; see `Stream.position`."""
        return {"kind": "task", "task": self._text.name, "seed": self._seed, "characters": self._taken}

    def close(self) -> None:
        """Do nothing: a task has no source."""

    def encode(self, text: bytes | str) -> np.ndarray:
        """Return `text` as symbols."""
        letters = text if isinstance(text, str) else text.decode(errors="replace")
        unknown = next((letter for letter in letters if letter not in self.alphabet), None)
        if unknown is not None:
            raise StreamError(f"the text has the character {unknown!r}, but the task has only {self.alphabet!r}.")
        return np.array([self.alphabet.index(letter) for letter in letters], np.int32)

    def decode(self, symbols: Sequence[int] | np.ndarray) -> bytes:
        """Return the text that `symbols` stand for."""
        return self._text.decode(np.asarray(symbols)).encode()
