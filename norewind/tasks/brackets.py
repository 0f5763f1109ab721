"""Distant brackets: remembering what was in the first pair of brackets."""

from math import log2
from string import ascii_letters

import numpy as np

from norewind.tasks.entropy import entropy
from norewind.tasks.text import Text

LINES_PER_BLOCK = 1024


def distant_brackets(s: int = 1, k: int = 5, a: int = 10) -> Text:
    """Distant brackets (s, k, a): lines [x]y[x], where x is s and y is k random letters out of the first a.

    A line has s + k letters to guess and 2s + k + 5 characters, so the entropy rate is
    (s + k) log₂(a) / (2s + k + 5) bits per character. A model that does not remember x
    guesses it twice: (2s + k) log₂(a) / (2s + k + 5).

    Reference: Tallec & Ollivier (2017), section "Next-character prediction".

    >>> task = distant_brackets(1, 5, 10)
    >>> round(task.floor, 3), round(task.memoryless, 3), round(task.unigram, 3)
    (1.661, 1.938, 3.552)
    >>> line = task.decode(next(task.chunks(seed=0, size=12)))
    >>> line[0], line[2], line[8], line[10:], line[1] == line[9]
    ('[', ']', '[', ']\\n', True)
    """
    if s < 1 or k < 0 or not 1 <= a <= len(ascii_letters):
        raise ValueError(
            f"distant_brackets needs s >= 1, k >= 0 and 1 <= a <= {len(ascii_letters)}, not s={s}, k={k} and a={a}."
        )
    length = 2 * s + k + 5
    left, right, newline = a, a + 1, a + 2

    def draw(generator: np.random.Generator) -> np.ndarray:
        letters = generator.integers(0, a, (LINES_PER_BLOCK, s + k))
        inside, between = letters[:, :s], letters[:, s:]

        def column(symbol):
            return np.full((LINES_PER_BLOCK, 1), symbol)

        bracketed = [column(left), inside, column(right)]
        return np.concatenate([*bracketed, between, *bracketed, column(newline)], axis=1).reshape(-1)

    return Text(
        name=f"brackets({s},{k},{a})",
        alphabet=ascii_letters[:a] + "[]\n",
        floor=(s + k) * log2(a) / length,
        memoryless=(2 * s + k) * log2(a) / length,
        unigram=entropy([2, 2, 1] + [(2 * s + k) / a] * a),
        draw=draw,
        block_length=LINES_PER_BLOCK * length,
    )
