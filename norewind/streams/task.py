"""The built-in tasks as streams."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from norewind.streams.position import Count, check_position
from norewind.streams.stream import Samples, Stream, check_count
from norewind.streams.symbols import decode, encode

if TYPE_CHECKING:
    from norewind.tasks import Text


class _TaskPosition(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    task: str
    seed: Count
    characters: Count


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
            check_position(position, "task", _TaskPosition, {"task": text.name, "seed": seed})
            self._taken = position["characters"]
        self._chunks = text.chunks(seed, 1, self._taken)
        self._previous = next(self._chunks)

    def take(self, count: int, patience: float | None = None) -> Samples:
        """Return the next `count` samples. A task never ends, and `patience` is not needed: all of them are there."""
        check_count(count)
        targets = self._chunks.send(count)
        xs = np.append(self._previous, targets[:-1])
        self._previous = targets[-1:]
        self._taken += count
        return Samples(xs, targets)

    def position(self) -> dict[str, Any]:
        return {"kind": "task", "task": self._text.name, "seed": self._seed, "characters": self._taken}

    def encode(self, text: bytes | str) -> np.ndarray:
        """Return `text` as symbols."""
        return encode(text, self.alphabet)

    def decode(self, symbols: Sequence[int] | np.ndarray) -> bytes:
        """Return the text that `symbols` stand for."""
        return decode(symbols, self.alphabet, self.symbols)
