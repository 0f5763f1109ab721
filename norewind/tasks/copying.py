"""Sequences to remember: letters that come once more, after a pause."""

from typing import Any

import numpy as np

from norewind.streams.stream import Samples, Stream, check_count

# The target of a sample whose next symbol need not be predicted.
UNSCORED = -1


class Copying(Stream):
    """An endless stream of sequences: a start, `length` random letters, a pause, a cue, and the same letters again.

    Only the letters that come again have targets; the others have `UNSCORED`. Letters are
    the symbols from 0, followed by the blank of the pause, the start and the cue. `pause`
    is the shortest and the longest number of blanks, between which it is uniform.

    `length` may be changed at any time, and holds from the next sequence on: see
    `Curriculum`.

    >>> stream = Copying(letters=2, length=3, pause=(1, 1), seed=0)
    >>> samples = stream.take(9)
    >>> samples.xs, samples.targets
    (array([3, 1, 1, 1, 2, 4, 1, 1, 1], dtype=int32), array([-1, -1, -1, -1, -1,  1,  1,  1, -1], dtype=int32))
    """

    def __init__(self, *, letters: int, length: int, pause: tuple[int, int] = (0, 0), seed: int = 0):
        if letters < 2 or length < 1 or not 0 <= pause[0] <= pause[1]:
            raise ValueError(
                f"Copying needs at least 2 letters, a length of at least 1 and a pause (shortest, longest), not "
                f"letters={letters}, length={length}, pause={pause}."
            )
        self.letters, self.length, self.pause, self.symbols = letters, length, pause, letters + 3
        self._generator = np.random.default_rng(seed)
        self._left = np.empty((2, 0), np.int32)

    def take(self, count: int, patience: float | None = None) -> Samples:
        check_count(count)
        parts, have = [self._left], self._left.shape[1]
        while have < count:
            parts.append(self._sequence())
            have += parts[-1].shape[1]
        whole = np.concatenate(parts, axis=1)
        self._left = whole[:, count:]
        return Samples(*whole[:, :count])

    def _sequence(self) -> np.ndarray:
        blank, start, cue = range(self.letters, self.symbols)
        letters = self._generator.integers(0, self.letters, self.length)
        pause = self._generator.integers(self.pause[0], self.pause[1] + 1)
        xs = np.concatenate([[start], letters, np.full(pause, blank), [cue], letters])
        targets = np.full(len(xs), UNSCORED)
        # The cue is answered with the first letter, and each letter with the next one.
        targets[-len(letters) - 1 : -1] = letters
        return np.stack([xs, targets]).astype(np.int32)

    def position(self) -> dict[str, Any]:
        """Nothing: a stream whose sequences depend on what was learned cannot be resumed."""
        return {}


class Curriculum:
    """Makes the sequences of `Copying` longer by one letter whenever the smoothed loss falls below a bound.

    - `below`: the bound, in bits per letter.
    - `smoothing`: the weight of the past when the mean loss of another piece of the stream is added.
    """

    def __init__(self, stream: Copying, *, below: float = 0.15, smoothing: float = 0.5):
        self.stream, self.below, self.smoothing = stream, below, smoothing
        self.smoothed = float(np.log2(stream.letters))

    def add(self, bits: float) -> None:
        """The mean loss of the letters in a piece of the stream."""
        self.smoothed += (1 - self.smoothing) * (bits - self.smoothed)
        self.stream.length += self.smoothed < self.below
