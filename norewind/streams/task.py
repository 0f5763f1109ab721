"""The built-in tasks as streams."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from norewind.streams.place import check_position, is_count
from norewind.streams.stream import Samples, StreamError, check_count

if TYPE_CHECKING:
    from norewind.tasks import Text

BLOCK = 4096


class TaskStream:
    """The endless text of a task and a seed; every sample is a character and the next one.

    `position` is what another stream's `position()` returned, to go on there.

    >>> from norewind.tasks import anbn
    >>> stream = TaskStream(anbn(1, 3))
    >>> stream.decode(stream.take(12).xs)
    b'aaa\\nbbb\\naa\\nb'
    """

    def __init__(self, text: "Text", seed: int = 0, *, position: dict[str, Any] | None = None):
        self.symbols, self.alphabet = len(text.alphabet), text.alphabet
        self._text, self._seed, self._taken = text, seed, 0
        if position is not None:
            self._restore(position)
        self._chunks = text.chunks(seed, BLOCK, self._taken)
        self._ahead = np.empty(0, np.int32)

    def _restore(self, position: dict[str, Any]) -> None:
        valid = {"task": lambda value: isinstance(value, str), "seed": is_count, "characters": is_count}
        check_position(position, "task", valid)
        for name, value in {"task": self._text.name, "seed": self._seed}.items():
            if position[name] != value:
                raise StreamError(
                    f"the run was begun with {name} = {position[name]!r}, but now it is {value!r}. "
                    "Leave it as it was, or begin a new run."
                )
        self._taken = position["characters"]

    @property
    def counts(self) -> dict[str, int]:
        """Nothing is ever skipped."""
        return {}

    def take(self, count: int, patience: float | None = None) -> Samples:
        """See `Stream.take`; a task never ends and never makes anybody wait."""
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
        """See `Stream.position`."""
        return {"kind": "task", "task": self._text.name, "seed": self._seed, "characters": self._taken}

    def encode(self, text: bytes | str) -> np.ndarray:
        """The symbols of a text."""
        letters = text if isinstance(text, str) else text.decode(errors="replace")
        strange = next((letter for letter in letters if letter not in self.alphabet), None)
        if strange is not None:
            raise StreamError(f"the text has the character {strange!r}, but the task has only {self.alphabet!r}.")
        return np.array([self.alphabet.index(letter) for letter in letters], np.int32)

    def decode(self, symbols: Sequence[int] | np.ndarray) -> bytes:
        """The text that symbols stand for."""
        return self._text.decode(np.asarray(symbols)).encode()
