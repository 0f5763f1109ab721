"""Endless synthetic text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Text:
    """An endless, seeded source of characters with a known entropy rate.

    `draw(generator)` makes a block of whole lines as symbols (indices into `alphabet`).
    In bits per character, `floor` is the entropy rate, `memoryless` the best that a model
    can do without remembering what the task asks for, and `unigram` the entropy of the
    character frequencies. `block_length` is the length of a block, if all have the same.
    """

    name: str
    alphabet: str
    floor: float
    memoryless: float
    unigram: float
    draw: Callable[[np.random.Generator], np.ndarray] = field(repr=False)
    block_length: int | None = None

    def chunks(self, seed: int, size: int, start: int = 0) -> Iterator[np.ndarray]:
        """The endless text of a seed from character `start`, `size` symbols at a time.

        The text does not depend on the size. To skip to a distant `start` costs nothing if
        all blocks have the same length, and otherwise about two seconds per 10⁸ characters.
        """
        if size < 1 or start < 0:
            raise ValueError(f"chunks needs size >= 1 and start >= 0, not size={size} and start={start}.")
        block = start // self.block_length if self.block_length else 0
        skip = start - block * self.block_length if self.block_length else start
        rest = np.empty(0, np.int32)
        while True:
            parts, length = [rest], len(rest)
            while length < size:
                # Every block has its own generator, so that the text can start at any block.
                drawn = self.draw(np.random.default_rng([seed, block])).astype(np.int32)
                drawn, skip = drawn[skip:], max(0, skip - len(drawn))
                parts.append(drawn)
                length += len(drawn)
                block += 1
            whole = np.concatenate(parts)
            yield whole[:size]
            rest = whole[size:]

    def pairs(self, seed: int, size: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Chunks of `size` inputs and their targets, the next symbols."""
        for here, following in pairwise(self.chunks(seed, size, start)):
            yield here, np.append(here[1:], following[0])

    def decode(self, symbols: np.ndarray) -> str:
        """The text of some symbols."""
        return "".join(np.array(list(self.alphabet))[symbols])
