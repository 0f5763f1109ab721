"""What all streams have in common: samples in order, and positions to resume from."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np


class StreamError(ValueError):
    """The input, an option or a saved position cannot be used; the message says what is wrong and how to fix it."""


class Samples(NamedTuple):
    """Consecutive samples.

    - `xs`: n symbols (int32) or n rows of inputs (float32).
    - `targets`: the symbols that follow them, or the targets that come with these rows.
      With a horizon h, a row's targets are what the row h rows before had to forecast. NaN
      is an unknown target, from which nothing can be learned.
    - `scales`: the mean and the standard deviation that each target was standardised
      with, those known when it was to be forecast, as float64 of shape (n, targets, 2); NaN
      while there are too few values. None for symbols.
    - `last`: the persistence forecast of the targets, which is the newest value of each
      target's column that was known then, standardised like the target. None for symbols.
    - `ahead`: the scales known after each row, in which forecasts made there are expressed.
    - `values`: the targets as they were sent, in float64; a category is its number. NaN is a
      missing value.
    - `lines`: the number of the line that each row stands in, from 1; of a message, what
      `as_line` makes of its partition and offset.
    - `copied`: the columns to copy, one JSON text per row. None if there are none.
    - `keys`: the key that each row belongs to, as bytes in an array of objects. The rows are
      then raw, in float64 (see `KeyedStream`). None where all samples are of one series.
    """

    xs: np.ndarray
    targets: np.ndarray
    # Streams of rows have all of these, and streams of symbols none: nothing needs to check.
    scales: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    last: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    ahead: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    values: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    lines: np.ndarray | None = None
    copied: np.ndarray | None = None
    keys: np.ndarray | None = None


def joined(parts: Sequence[Samples]) -> Samples:
    """Parts of a stream, one after the other."""
    fields: list[Any] = [None if part[0] is None else np.concatenate(part) for part in zip(*parts, strict=True)]
    return Samples(*fields)


class Keyed(NamedTuple):
    """Inputs with the key that each belongs to: `keys` are bytes, in an array of objects or a list."""

    keys: Any
    xs: Any


# Offsets are below this, or one number could not hold both offset and partition.
OFFSETS = 2**48


def as_line(partition: int, offset: int) -> int:
    """The place of a message as one number, which is negative, so that it is not taken for that of a line.

    >>> as_place(as_line(3, 12))
    (3, 12)
    """
    return -1 - (partition * OFFSETS + offset)


def as_place(line: int) -> tuple[int, int]:
    """The partition and the offset of a message, from what `as_line` made of them."""
    return divmod(-1 - line, OFFSETS)


class Stream(Protocol):
    """Samples in order, each of them once.

    Neither the samples nor the positions depend on how many samples are taken at a time
    or on the pieces in which the bytes arrive. A stream is a context manager: leaving the
    `with` block closes it.

    `horizon` is the number of samples after which a sample's target comes; 0 if it comes
    with the sample.
    """

    horizon: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """How much was skipped, by reason, up to the last sample returned."""
        return {}

    @property
    def unfinished(self) -> int:
        """The bytes at the end of a file that wait for the rest of their line or character."""
        return 0

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """Return the next `count` samples, or None if the stream has ended and no sample is left.

        There are fewer at the end of the stream and when `patience` (in seconds) runs
        out, perhaps none yet: arrays of length 0. Without `patience`, it waits as long as
        it takes. Samples before bad input are returned first; the next call raises the
        error.
        """
        ...

    def position(self) -> dict[str, Any]:
        """Return where the samples returned so far end, for `position=` of a new stream.

        It is JSON, but for NumPy arrays.
        """
        ...

    def close(self) -> None:
        """Close the source, if there is one. No more samples can be taken; the position stays available."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_count(count: int) -> None:
    if count < 1:
        raise ValueError(f"take needs a count of at least 1, not {count}.")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise StreamError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
