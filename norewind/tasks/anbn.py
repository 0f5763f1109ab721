"""The aⁿbⁿ language: remembering and counting."""

from math import log2

import numpy as np

from norewind.tasks.entropy import entropy
from norewind.tasks.text import Text

LINES_PER_BLOCK = 256


def anbn(k: int = 1, l: int = 32) -> Text:  # noqa: E741 (the paper's letters)
    """aⁿbⁿ(k, l): n a's, a line break, n b's, a line break, with n uniform between k and l.

    Only n has to be guessed, once in 2n + 2 characters, so the entropy rate is
    log₂(l − k + 1) / (k + l + 2) bits per character. A model that does not count the a's
    has to guess n again for the b's, which doubles it.

    Reference: Gers & Schmidhuber (2001); Tallec & Ollivier (2017).

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
        lengths = generator.integers(k, l + 1, LINES_PER_BLOCK)
        counts = np.stack([lengths, np.ones_like(lengths), lengths, np.ones_like(lengths)], axis=1)
        return np.repeat(np.tile([0, 2, 1, 2], LINES_PER_BLOCK), counts.reshape(-1))

    return Text(f"anbn({k},{l})", "ab\n", floor, 2 * floor, entropy([(k + l) / 2, (k + l) / 2, 2]), draw)
