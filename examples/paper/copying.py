"""The copying task: letters that must be repeated after a pause."""

from typing import Any

import numpy as np

from norewind.streams.stream import Samples, Stream, check_take_count

# The target of a sample that is not scored.
UNSCORED = -1


class Copying(Stream):
    """An endless stream of sequences: a start, `length` random letters, a pause, a cue, and the same letters again.

    Only the repeated letters have targets; all other targets are `UNSCORED`. Letters are the symbols from 0,
    followed by the blank of the pause, the start and the cue.

    Args:
        letters: the number of different letters.
        length: the number of letters in a sequence. It may be changed at any time, with effect from the next sequence
            on: see `Curriculum`.
        pause: the smallest and the largest number of blanks; the number is drawn uniformly.
        seed: the seed of letters and pauses.

    Raises:
        ValueError: an argument is out of range.

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

    def take(self, count: int, timeout: float | None = None) -> Samples:
        """Return the next samples.

        Args:
            count: the number of samples.
            timeout: unused; samples are always available.
        """
        check_take_count(count)
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
        # The target of the cue is the first letter, and the target of each letter is the next one.
        targets[-len(letters) - 1 : -1] = letters
        return np.stack([xs, targets]).astype(np.int32)

    def position(self) -> dict[str, Any]:
        """Return what `restore` needs to continue with the same samples, if the length is changed in the same way."""
        left = self._left.tolist()
        return {"length": int(self.length), "left": left, "generator": self._generator.bit_generator.state}

    def restore(self, position: dict[str, Any]) -> None:
        """Continue at a position.

        Args:
            position: the position, from a stream with the same arguments.
        """
        self.length, self._left = position["length"], np.array(position["left"], np.int32).reshape(2, -1)
        self._generator.bit_generator.state = position["generator"]


class Curriculum:
    """Makes the sequences of `Copying` longer by one letter whenever the smoothed loss falls below a bound.

    Args:
        stream: the stream of sequences.
        below: the bound, in bits per letter.
        smoothing: the weight of the past when the mean loss of another piece of the stream is added.
    """

    def __init__(self, stream: Copying, *, below: float = 0.15, smoothing: float = 0.5):
        self.stream, self.below, self.smoothing = stream, below, smoothing
        self.smoothed = float(np.log2(stream.letters))

    def add(self, bits: float) -> None:
        """Update the smoothed loss, and lengthen the sequences if it is below the bound.

        Args:
            bits: the mean loss of the letters in a piece of the stream.
        """
        self.smoothed += (1 - self.smoothing) * (bits - self.smoothed)
        self.stream.length += self.smoothed < self.below
