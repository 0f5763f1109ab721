"""The contract of a stream: samples, one after the other, and the position to go on from."""

from typing import Any, NamedTuple, Protocol

import numpy as np


class StreamError(ValueError):
    """What a user gave to read is not what it should be; the message says what, where, and what to do."""


class Samples(NamedTuple):
    """Consecutive samples.

    `xs` are n symbols (int32) or n rows of inputs (float32), `targets` what comes after
    them: symbols, or rows of targets where NaN is a target that nothing can be learned
    from. Streams of rows also tell, for every target, the mean and the standard deviation
    that it was standardised with (`scales`, (n, targets, 2), float64, NaN if there were
    none yet), and the newest value of its column that was known when predicting,
    standardised the same way (`last`): the persistence forecast.
    """

    xs: np.ndarray
    targets: np.ndarray
    scales: np.ndarray | None = None
    last: np.ndarray | None = None


class Stream(Protocol):
    """Samples in order, each once.

    Neither the samples nor the positions depend on how many are taken at a time, nor on
    the pieces in which the bytes arrive.
    """

    @property
    def counts(self) -> dict[str, int]:
        """How much was skipped, by reason, up to the last sample handed out."""
        ...

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """The next `count` samples; fewer at the end of the stream, or when `patience` (seconds) is over.

        There may be none yet (arrays of length 0); None says that the stream has ended and
        nothing is left. Samples before bad input are handed out first, then it is raised.
        """
        ...

    def position(self) -> dict[str, Any]:
        """Where to go on after the samples handed out so far, for `position=` of a new stream; JSON can hold it."""
        ...


def check_count(count: int) -> None:
    """A number of samples to take is at least 1."""
    if count < 1:
        raise ValueError(f"take needs a count of at least 1, not {count}.")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """An option that is one of a few words."""
    if value not in choices:
        raise StreamError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
