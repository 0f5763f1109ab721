"""Conversion of rows to numbers: one row at a time, or many rows column by column."""

import json
import math
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from norewind.streams.position import damaged
from norewind.streams.stream import BadRow, MissingValue
from norewind.streams.table.columns import CATEGORIES, LARGEST, READ, REMEMBERED, Kind, at, number_of

PLAIN = {float, int, type(None)}


class Rows(NamedTuple):
    """Rows after conversion.

    Attributes:
        values: the numbers of the columns in use as float64 of shape (rows, columns), NaN where missing.
        lines: the line number of each row.
        copied: the columns to copy, as JSON text.
        times: the times of the newest rows, as they were sent.
        keys: the keys of the rows.
    """

    values: np.ndarray
    lines: np.ndarray
    copied: Sequence[str] = ()
    times: Sequence[Any] = ()
    keys: Sequence[bytes] = ()


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenate parts of rows."""
    if len(parts) == 1:
        return parts[0]
    values, lines, *others = zip(*parts, strict=True)
    return Rows(np.concatenate(values), np.concatenate(lines), *([*chain.from_iterable(some)] for some in others))


class Key(NamedTuple):
    """The column with the keys, and the part of the keys to take.

    Attributes:
        column: the name of the column.
        number: which part to take, counted from 0.
        shards: the number of parts.
    """

    column: str
    number: int = 0
    shards: int = 1

    def of(self, value: Any) -> bytes:
        """Return a value as a key: its JSON text.

        Args:
            value: the value of the column.

        Raises:
            BadRow: the value is missing or cannot be a key.
        """
        is_infinite = isinstance(value, float) and not math.isfinite(value)
        if value is None or value == "" or isinstance(value, dict | list) or is_infinite:
            raise BadRow(f"column {self.column!r} has no key")
        return json.dumps(value).encode()

    def of_all(self, values: Sequence[Any]) -> list[bytes]:
        """Return values as keys, up to the first bad one.

        Args:
            values: the values of the column.
        """
        text = "".join(values) if set(map(type, values)) == {str} else ""
        if text and text.isascii() and text.isprintable() and '"' not in text and "\\" not in text and all(values):
            return ('"' + '"\n"'.join(values) + '"').encode().split(b"\n")  # the same texts, faster
        return converted(self.of, values)

    def takes(self, key: bytes) -> bool:
        """Return whether a key is in the part to take.

        Args:
            key: the key.
        """
        return self.shards == 1 or zlib.crc32(key) % self.shards == self.number


class Conversion:
    """How rows are converted to numbers.

    A category becomes its index in `categories`, which lists the categories of each column in the order of
    appearance.

    Args:
        kinds: the columns in use, with their kinds.
        required: the columns that may not be missing.
        copied: the columns to copy.
        clock: the column with the times of rows.
        gaps: how many columns to leave empty after those in use, for the times since the previous rows.
        key: the column with the keys and the part to take; None if rows have no keys.
        nested: whether names such as sensor.temp refer to values inside values.
    """

    def __init__(
        self,
        kinds: dict[str, Kind],
        required: Sequence[str],
        copied: Sequence[str],
        clock: str | None,
        *,
        gaps: int,
        key: Key | None,
        nested: bool,
    ):
        self.used = [(name, READ[kind]) for name, kind in kinds.items()]
        self.copied, self.clock, self.key = copied, clock, key
        self.columns, self._gaps = len(kinds) + gaps, [math.nan] * gaps
        self.none = Rows(np.empty((0, self.columns)), np.empty(0, np.int64))
        self._get: Callable[[dict[str, Any], str], Any] = at if nested else dict.get
        places = {name: place for place, name in enumerate(kinds)}
        self._required = [places[name] for name in required]
        self._categories = [(places[name], name) for name, kind in kinds.items() if kind == "category"]
        self.categories: dict[str, dict[str, int]] = {name: {} for _, name in self._categories}

    def values(self, row: dict[str, Any], *, new: bool = True) -> list[float]:
        """Return the numbers of a row.

        Args:
            row: the row, as a dict by column.
            new: whether to remember categories that appear for the first time.

        Raises:
            BadRow: a value cannot be read, or is missing although it is required.
        """
        values = []
        try:
            for name, read in self.used:
                values.append(read(self._get(row, name)))
        except BadRow as problem:
            raise BadRow(f"column {self.used[len(values)][0]!r}: {problem}") from None
        for place in self._required:
            if values[place] != values[place]:
                raise MissingValue(f"column {self.used[place][0]!r} has no value")
        # Only once the row is known to be good.
        for place, name in self._categories:
            values[place] = self._number(name, values[place], new)
        return values + self._gaps

    def _number(self, column: str, value: Any, new: bool = True) -> float:
        """Return the number of a category; those that appear when there are too many share one."""
        if not isinstance(value, str):
            return value
        if self.key is not None:
            # By a checksum, so that no key depends on the earlier rows of other keys.
            return float(zlib.crc32(value.encode("utf-8", "surrogatepass")) % CATEGORIES)
        known = self.categories[column]
        if new and value not in known and len(known) < CATEGORIES:
            known[value] = len(known)
        return float(known.get(value, len(known)))

    def restore(self, categories: dict[str, list[str]]) -> None:
        """Continue with the categories of a saved position.

        Args:
            categories: the categories of each column.

        Raises:
            StreamError: they do not fit the columns.
        """
        if set(categories) != set(self.categories) or any(len(set(k)) < len(k) for k in categories.values()):
            raise damaged("its categories do not match its columns, or one occurs twice")
        for name, known in categories.items():
            self.categories[name] = {value: number for number, value in enumerate(known)}

    def key_of(self, row: dict[str, Any]) -> bytes | None:
        """Return the key of a row; None if it belongs to another shard.

        Args:
            row: the row, as a dict by column.
        """
        assert self.key is not None
        key = self.key.of(self._get(row, self.key.column))
        return key if self.key.takes(key) else None

    def row(self, row: dict[str, Any], lines: np.ndarray) -> Rows:
        """Convert one row.

        Args:
            row: the row, as a dict by column.
            lines: its line number, as an array.

        Returns:
            The row; no row if its key is in another shard.

        Raises:
            BadRow: it cannot be read.
        """
        key = None if self.key is None else self.key_of(row)
        if key is None and self.key is not None:
            return self.none
        values = np.array([self.values(row)])
        return self._rows(values, lines, lambda name: [self._get(row, name)], [] if key is None else [key])

    def rows(self, column: Callable[[str], Sequence[Any]], lines: np.ndarray) -> tuple[Rows, int]:
        """Convert rows column by column, up to the first bad one.

        Args:
            column: a function from the name of a column to its values.
            lines: the line numbers of the rows.

        Returns:
            The rows without those of other shards, and how many rows to move past: up to the last of them, or if there
            are none, up to the first that may be bad.
        """
        ours, keys = range(len(lines)), []
        if self.key is not None:
            keys = self.key.of_all(column(self.key.column))
            ours = range(len(keys))
            if self.key.shards > 1:
                ours = [place for place in ours if self.key.takes(keys[place])]

        def column_of_ours(name: str) -> Sequence[Any]:
            found = column(name)
            return found if len(ours) == len(found) else [found[place] for place in ours]

        values = self._converted(np.full((len(ours), self.columns), np.nan), column_of_ours)
        if not len(values):
            return self.none, ours[0] if ours else len(keys)
        if len(ours) < len(lines):
            keys, lines = [keys[place] for place in ours], lines[list(ours)]
        return self._rows(values, lines, column_of_ours, keys), ours[len(values) - 1] + 1

    def _converted(self, values: np.ndarray, column: Callable[[str], Sequence[Any]]) -> np.ndarray:
        """Fill in the numbers of rows up to the first bad row, and return the filled part."""
        found = {}
        for place, (name, read) in enumerate(self.used):
            some = column(name)[: len(values)]
            if read is not number_of or not _write_plain(some, values[:, place]):
                found[place] = good = converted(read, some)
                values = values[: len(good)]
                values[:, place] = [0.0 if isinstance(value, str) else value for value in good]
        if self._required:
            missing = np.isnan(values[:, self._required]).any(axis=1)
            values = values[: missing.argmax()] if missing.any() else values
        for place, name in self._categories:
            values[:, place] = [self._number(name, value) for value in found[place][: len(values)]]
        return values

    def _rows(
        self, values: np.ndarray, lines: np.ndarray, column: Callable[[str], Sequence[Any]], keys: list[bytes]
    ) -> Rows:
        good = len(values)
        # JSON has no NaN, although Python reads it.
        copied = [
            json.dumps({name: None if value != value else value for name, value in zip(self.copied, row, strict=True)})
            for row in (zip(*(column(name)[:good] for name in self.copied), strict=True) if self.copied else ())
        ]
        times = () if self.clock is None else column(self.clock)[:good][-REMEMBERED:]
        return Rows(values, lines[:good], copied, times, keys[:good])


def converted(read: Callable[[Any], Any], found: Sequence[Any]) -> list[Any]:
    """Apply a function to values, up to the first bad one.

    Args:
        read: the function, which raises a ValueError for a bad value.
        found: the values.
    """
    good = []
    with suppress(ValueError, RecursionError, msgspec.MsgspecError):
        for value in found:
            good.append(read(value))
    return good


def _write_plain(found: Sequence[Any], column: np.ndarray) -> bool:
    """Write numbers into a column, if all of them are plain ones that `number_of` would read the same way."""
    kinds, text = set(map(type, found)), ""
    if kinds == {str}:
        text = "".join(found)
    if not text.isascii() or "_" in text or not (text or kinds <= PLAIN):
        return False
    try:
        column[:] = list(map(float, found)) if text else found
    except (ValueError, OverflowError):
        return False
    return not (np.abs(column) > LARGEST).any()
