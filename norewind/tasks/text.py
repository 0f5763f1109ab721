"""Endless synthetic text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Text:
    """An endless, seeded source of characters with a known entropy rate.

    `draw(generator)` makes a block of whole lines as symbols (indices into `alphabet`).
    `floor` is the entropy rate in bits per character, `naive` what a model without the
    memory that the task asks for can reach.
    """

    name: str
    alphabet: str
    floor: float
    naive: float
    draw: Callable[[np.random.Generator], np.ndarray] = field(repr=False)

    def chunks(self, seed: int, size: int) -> Iterator[np.ndarray]:
        """The text of a seed, endlessly, `size` symbols at a time. The text does not depend on the size."""
        rest = np.empty(0, np.int32)
        block = 0
        while True:
            parts, length = [rest], len(rest)
            while length < size:
                # Every block has a generator of its own, so that a stream can be entered at any block.
                parts.append(self.draw(np.random.default_rng([seed, block])).astype(np.int32))
                length += len(parts[-1])
                block += 1
            whole = np.concatenate(parts)
            yield whole[:size]
            rest = whole[size:]

    def pairs(self, seed: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Chunks of `size` inputs and their targets, the next symbols."""
        for here, following in pairwise(self.chunks(seed, size)):
            yield here, np.append(here[1:], following[0])

    def decode(self, symbols: np.ndarray) -> str:
        """Symbols as text."""
        return "".join(self.alphabet[symbol] for symbol in symbols)
