"""The interface of all streams: samples in order, and positions to resume from."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np

from norewind.errors import NorewindError

# Where to continue a stream, as JSON values and NumPy arrays.
Position = dict[str, Any]


class StreamError(NorewindError, ValueError):
    """The input, an option or a saved position is unusable; the message says what is wrong and how to fix it."""


class BadRow(ValueError):
    """A row that cannot be used, with the reason as its message. The reader adds where the row is."""

    counted_as = "bad rows"


class MissingValue(BadRow):
    """A row that lacks a required value."""

    counted_as = "rows with missing values"


class Samples(NamedTuple):
    """Consecutive samples.

    Attributes:
        xs: n symbols (int32) or n rows of inputs (float32).
        targets: the symbols that follow them, or the targets observed in these rows. With a horizon h, these are the
            values that had to be forecast h rows earlier. NaN is an unknown target, from which nothing can be learned.
        scales: the mean and standard deviation that each target was standardised with, as known when it had to be
            forecast: float64 of shape (n, targets, 2). NaN while there are too few values. None for symbols.
        last: the persistence forecast of the targets: the latest value of each target's column known at that time,
            standardised like the target. None for symbols.
        scales_after: the scales known after each row. Forecasts made at that row are expressed in them.
        values: the targets as they were sent, in float64; a category is given by its number. NaN is a missing value.
        lines: the line number of each row, counted from 1; for messages, partition and offset as one `message_line`.
        copied: the columns to copy, as one JSON text per row. None if there are none.
        keys: the key of each row, as bytes in an array of objects. The rows are then raw, in float64 (see
            `KeyedStream`). None if all samples belong to one series.
        named: how many symbols or classes had appeared, and so had a name, before each target came. None if all have
            names from the start.
        times: the time of each row as text, as it was sent; "" if it has none. None if the table has no times.
    """

    xs: np.ndarray
    targets: np.ndarray
    # Streams of rows have all of these and streams of symbols have none, so callers need not check each one.
    scales: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    last: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    scales_after: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    values: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    lines: np.ndarray | None = None
    copied: np.ndarray | None = None
    keys: np.ndarray | None = None
    named: np.ndarray | None = None
    times: np.ndarray | None = None


def count_named(before: int, numbers: np.ndarray) -> np.ndarray:
    """Return how many symbols or classes had appeared after each sample. They are numbered as they appear.

    Args:
        before: how many had appeared before the first sample.
        numbers: the number that came with each sample; NaN if none came.

    >>> count_named(2, np.array([0, 2, 1, np.nan, 3])).tolist()
    [2, 3, 3, 3, 4]
    """
    return np.fmax.accumulate(np.fmax(before, numbers + 1)).astype(np.int64)


class Keyed(NamedTuple):
    """Inputs together with the keys they belong to.

    Attributes:
        keys: the key of each input, as bytes in an array of objects or a list.
        xs: the inputs.
    """

    keys: Any
    xs: Any


class Stream(ABC):
    """Samples in order, each exactly once.

    Neither the samples nor the positions depend on how many samples are taken at a time
    or on the pieces in which the bytes arrive. A stream is a context manager: leaving the
    `with` block closes it.

    Attributes:
        steps: for rows, how many rows ahead they are to be forecast, in increasing order; (0,) if targets belong to the
            row itself. Empty for anything but rows.
    """

    steps: tuple[int, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The number of skipped items by reason, up to the last sample returned."""
        return {}

    @property
    def unfinished(self) -> int:
        """The number of bytes at the end of a file that belong to an incomplete line or character."""
        return 0

    @abstractmethod
    def take(self, count: int, timeout: float | None = None) -> Samples | None:
        """Return the next samples.

        Samples that precede bad input are returned first; the next call raises the error.

        Args:
            count: the number of samples. Fewer are returned at the end of the stream or when `timeout` runs out.
            timeout: how many seconds to wait for samples; None to wait indefinitely.

        Returns:
            The samples, with arrays of length 0 if none have arrived in time; None if the stream has ended and no
            sample is left.
        """

    @abstractmethod
    def position(self) -> Position:
        """Return the end of the samples returned so far, for `position=` of a new stream."""

    def close(self) -> None:  # noqa: B027 (not every stream has a source)
        """Close the source, if there is one. No more samples can be taken, but the position stays available."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_take_count(count: int) -> None:
    if count < 1:
        raise ValueError(f"take needs a count of at least 1, not {count}.")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise a StreamError unless an option has one of its allowed values.

    Args:
        name: the name of the option, for the message.
        value: the value to check.
        choices: the allowed values.
    """
    if value not in choices:
        raise StreamError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
