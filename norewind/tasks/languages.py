"""Endless synthetic text: two languages with known entropy rates."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import log2
from string import ascii_letters

import numpy as np

ANBN_LINES = 256
# The lines in a block of each language.
BRACKETS_LINES = 1024


@dataclass(frozen=True)
class Text:
    """An endless, seeded source of characters with a known entropy rate.

    Args:
        name: the language with its parameters.
        alphabet: its characters; a symbol is an index into them.
        floor: the entropy rate, in bits per character.
        memoryless: the best loss of a model without the memory that the task requires.
        unigram: the entropy of the character frequencies.
        draw: makes a block of whole lines, as symbols, from a generator.
        block_length: the length of a block, if all blocks have the same length.
    """

    name: str
    alphabet: str
    floor: float
    memoryless: float
    unigram: float
    draw: Callable[[np.random.Generator], np.ndarray] = field(repr=False)
    block_length: int | None = None

    def chunks(self, seed: int, size: int, start: int = 0) -> Generator[np.ndarray, int | None, None]:
        """Generate the endless text of a seed in chunks of `size` symbols.

        A number sent to the generator changes the size of the following chunks.

        Args:
            seed: the seed of the text.
            size: the number of symbols in a chunk. The text does not depend on it.
            start: the first character. Skipping to a distant one is free if all blocks have the same length, and
                otherwise takes about two seconds per 10⁸ characters.

        Returns:
            A generator of arrays of symbols.

        Raises:
            ValueError: `size` or `start` is too small.
        """
        if size < 1 or start < 0:
            raise ValueError(f"chunks needs size >= 1 and start >= 0, not size={size} and start={start}.")
        block, skip = divmod(start, self.block_length) if self.block_length else (0, start)
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
            rest = whole[size:]
            size = (yield whole[:size]) or size

    def pairs(self, seed: int, size: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Generate chunks of inputs and their targets, the next symbols.

        Args:
            seed: the seed of the text.
            size: the number of symbols in a chunk. The text does not depend on it.
            start: the first character; see `chunks`.

        Returns:
            An iterator over pairs of arrays.
        """
        for here, following in pairwise(self.chunks(seed, size, start)):
            yield here, np.append(here[1:], following[0])

    def decode(self, symbols: np.ndarray) -> str:
        """Return symbols as a string.

        Args:
            symbols: indices into the alphabet.
        """
        return "".join(np.array(list(self.alphabet))[symbols])


def anbn(k: int = 1, l: int = 32) -> Text:  # noqa: E741 (the paper's letters)
    """Create the language aⁿbⁿ(k, l): n a's, a line break, n b's, a line break, with n uniform between k and l.

    Only n has to be guessed, once in 2n + 2 characters, so the entropy rate is
    log₂(l − k + 1) / (k + l + 2) bits per character. A model that does not count the a's
    has to guess n again for the b's, which doubles it.

    Reference: Gers & Schmidhuber (2001); Tallec & Ollivier (2017).

    Args:
        k: the smallest n.
        l: the largest n.

    Returns:
        The text source.

    Raises:
        ValueError: not 1 ≤ k ≤ l.

    >>> task = anbn(1, 32)
    >>> round(task.floor, 4), round(task.memoryless, 4), round(task.unigram, 4)
    (0.1429, 0.2857, 1.2589)
    >>> task.alphabet, len(next(task.chunks(seed=0, size=1000)))
    ('ab\\n', 1000)
    """
    if not 1 <= k <= l:
        raise ValueError(f"anbn needs 1 <= k <= l, not k={k} and l={l}.")
    floor = log2(l - k + 1) / (k + l + 2)

    def draw(generator: np.random.Generator) -> np.ndarray:
        lengths = generator.integers(k, l + 1, ANBN_LINES)
        counts = np.stack([lengths, np.ones_like(lengths), lengths, np.ones_like(lengths)], axis=1)
        return np.repeat(np.tile([0, 2, 1, 2], ANBN_LINES), counts.reshape(-1))

    return Text(f"anbn({k},{l})", "ab\n", floor, 2 * floor, entropy([(k + l) / 2, (k + l) / 2, 2]), draw)


def distant_brackets(s: int = 1, k: int = 5, a: int = 10) -> Text:
    """Create the language of distant brackets (s, k, a): lines [x]y[x], with random letters out of the first a.

    A line has s + k letters to guess and 2s + k + 5 characters, so the entropy rate is
    (s + k) log₂(a) / (2s + k + 5) bits per character. A model that does not remember x
    guesses it twice: (2s + k) log₂(a) / (2s + k + 5).

    Reference: Tallec & Ollivier (2017), section "Next-character prediction".

    Args:
        s: the number of letters in x.
        k: the number of letters in y.
        a: the number of different letters, at most 52.

    Returns:
        The text source.

    Raises:
        ValueError: an argument is out of range.

    >>> task = distant_brackets(1, 5, 10)
    >>> round(task.floor, 3), round(task.memoryless, 3), round(task.unigram, 3)
    (1.661, 1.938, 3.552)
    >>> line = task.decode(next(task.chunks(seed=0, size=12)))
    >>> line[0], line[2], line[8], line[10:], line[1] == line[9]
    ('[', ']', '[', ']\\n', True)
    """
    if s < 1 or k < 0 or not 1 <= a <= len(ascii_letters):
        raise ValueError(f"distant_brackets needs s >= 1, k >= 0 and a from 1 to 52, not s={s}, k={k} and a={a}.")
    length = 2 * s + k + 5

    def draw(generator: np.random.Generator) -> np.ndarray:
        letters = generator.integers(0, a, (BRACKETS_LINES, s + k))
        left, right, newline = (np.full((BRACKETS_LINES, 1), symbol) for symbol in (a, a + 1, a + 2))
        bracketed = [left, letters[:, :s], right]
        return np.concatenate([*bracketed, letters[:, s:], *bracketed, newline], axis=1).reshape(-1)

    return Text(
        name=f"brackets({s},{k},{a})",
        alphabet=ascii_letters[:a] + "[]\n",
        floor=(s + k) * log2(a) / length,
        memoryless=(2 * s + k) * log2(a) / length,
        unigram=entropy([2, 2, 1] + [(2 * s + k) / a] * a),
        draw=draw,
        block_length=BRACKETS_LINES * length,
    )


def entropy(counts: Iterable[float]) -> float:
    """Compute the entropy of a distribution given by its weights, in bits.

    >>> entropy([1, 1, 2])
    1.5
    """
    weights = [count for count in counts if count > 0]
    total = sum(weights)
    return sum(weight / total * log2(total / weight) for weight in weights)
