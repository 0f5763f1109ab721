"""Conversion of rows to numbers: one row at a time, or many rows column by column."""

import json
import math
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from norewind.streams.position import damaged_position_error
from norewind.streams.stream import BadRow, MissingValue
from norewind.streams.table.calendar_entries import wall_clock
from norewind.streams.table.columns import CATEGORIES, MAX_NUMBER, READERS, Kind, as_time, number_of
from norewind.streams.table.row_outlook import Outlook, sent_plan

NUMBER_TYPES = {float, int, type(None)}
# Returns the value of a column in a row.
Getter = Callable[[Any], Any]


class Rows(NamedTuple):
    """Rows after conversion.

    Attributes:
        values: the numbers of the columns in use as float64 of shape (rows, columns), NaN where missing.
        lines: the line number of each row; None if they are not from a source.
        copied: the columns to copy, as JSON text.
        times: the times of the rows, as they were sent; empty if the table has none.
        keys: the keys of the rows.
        moments: the times of all rows as `wall_clock` returns them, if they are needed.
        plans: what each row says of the next ones, if there are planned columns; see `sent_plan`.
    """

    values: np.ndarray
    lines: np.ndarray | None
    copied: Sequence[str] = ()
    times: Sequence[Any] = ()
    keys: Sequence[bytes] = ()
    moments: Sequence[float] = ()
    plans: Sequence[np.ndarray | None] = ()

    def times_as_text(self, clock: str | None) -> np.ndarray | None:
        """Return the time of each row as text, "" if it has none; None if the table has no times.

        Args:
            clock: the column of times; None if there is none.
        """
        if clock is None:
            return None
        texts = np.full(len(self.values), "", object)
        texts[:] = ["" if time is None else str(time) for time in map(as_time, self.times)]
        return texts


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenate parts of rows."""
    if len(parts) == 1:
        return parts[0]
    values, lines, *others = zip(*parts, strict=True)
    return Rows(np.concatenate(values), np.concatenate(lines), *([*chain.from_iterable(part)] for part in others))


class KeyColumn(NamedTuple):
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
        """Return values as keys; see `of`.

        Args:
            values: the values of the column.
        """
        text = "".join(values) if set(map(type, values)) == {str} else ""
        if text and text.isascii() and text.isprintable() and '"' not in text and "\\" not in text and all(values):
            return ('"' + '"\n"'.join(values) + '"').encode().split(b"\n")  # the same texts, faster
        return [self.of(value) for value in values]

    def takes(self, key: bytes) -> bool:
        """Return whether a key is in the part to take.

        Args:
            key: the JSON text of the value, as `of` returns it.
        """
        return self.shards == 1 or zlib.crc32(key) % self.shards == self.number


class Conversion:
    """How rows are converted to numbers.

    A category becomes its index in `categories`, which lists the first categories of each column in the order of
    appearance. Any other becomes a number beyond these, by a checksum.

    Args:
        getters: for each column, the function that returns its value in a row.
        kinds: the columns in use, with their kinds.
        required: the columns that may not be missing.
        copied: the columns to copy.
        clock: the column with the times of rows.
        gaps: how many columns to leave empty after those in use, for the times since the previous rows.
        key: the column with the keys and the part to take; None if rows have no keys.
        outlook: what is known in advance; with a calendar, the times of all rows are needed.
        sizes: the number of categories that are listed, for each column of categories that is no class.

    Attributes:
        width: the number of columns of converted rows.
        none: no rows.
    """

    def __init__(
        self,
        getters: dict[str, Getter],
        kinds: dict[str, Kind],
        *,
        required: Sequence[str],
        copied: Sequence[str],
        clock: str | None,
        gaps: int,
        key: KeyColumn | None,
        outlook: Outlook,
        sizes: dict[str, int],
    ):
        self._getters = getters
        self._required = required
        self._copied = copied
        self._clock = clock
        self._gaps = gaps
        self._has_calendar, self._planned = bool(outlook.entries), outlook.columns
        self._sizes = sizes
        self.key = key
        self._used = [(name, READERS[kind]) for name, kind in kinds.items()]
        self.width = len(kinds) + gaps
        self.none = Rows(np.empty((0, self.width)), np.empty(0, np.int64))
        self.categories: dict[str, dict[str, int]] = {name: {} for name, kind in kinds.items() if kind == "category"}

    def convert(self, rows: Sequence[Any], lines: np.ndarray | None, *, new: bool = True) -> tuple[Rows, int]:
        """Convert rows, all of them or none.

        Args:
            rows: the rows, in the form that the getters expect.
            lines: their line numbers, if they have any.
            new: whether to remember categories that appear for the first time.

        Returns:
            The rows without those of other shards, and the number of rows up to the last of them; if there are none,
            the number of all rows.

        Raises:
            BadRow: a row has no key, or its values or its plan cannot be used; see `values` and `sent_plan`.
        """
        keys, passed = [], len(rows)
        if self.key is not None:
            keys = self.key.of_all(list(map(self._getters[self.key.column], rows)))
            if self.key.shards > 1:
                ours = [place for place, key in enumerate(keys) if self.key.takes(key)]
                passed = ours[-1] + 1 if ours else passed
                rows, keys = [rows[place] for place in ours], [keys[place] for place in ours]
                lines = None if lines is None else lines[ours]
        plans = [sent_plan(row, self._planned) for row in rows] if self._planned else ()
        values = self.values(rows, new=new)
        copied = [self._copy_of(row) for row in rows] if self._copied else ()
        times = () if self._clock is None else list(map(self._getters[self._clock], rows))
        moments = list(map(wall_clock, times)) if self._has_calendar else ()
        return Rows(values, lines, copied, times, keys, moments, plans), passed

    def values(self, rows: Sequence[Any], *, new: bool = True) -> np.ndarray:
        """Return the numbers of rows as float64 of shape (rows, columns).

        Args:
            rows: the rows, in the form that the getters expect.
            new: whether to remember categories that appear for the first time.

        Raises:
            BadRow: a value cannot be read, or is missing although it is required. In a single row it is the first one.
        """
        found = {}
        try:
            for name, read in self._used:
                get = self._getters[name]
                found[name] = [read(get(rows[0]))] if len(rows) == 1 else read_all(read, list(map(get, rows)))
        except BadRow as problem:
            raise BadRow(f"column {self._used[len(found)][0]!r}: {problem}") from None
        for name in self._required:
            column = found[name]
            if np.any(np.isnan(column) if isinstance(column, np.ndarray) else [value != value for value in column]):
                raise MissingValue(f"column {name!r} has no value")
        # Only once the rows are known to be good.
        for name in self.categories:
            found[name] = [self._number(name, value, new) for value in found[name]]
        gaps = [[math.nan] * len(rows)] * self._gaps
        if len(rows) == 1:  # in half the time
            return np.array([[column[0] for column in (*found.values(), *gaps)]])
        return np.array([*found.values(), *gaps]).T.copy()

    def _copy_of(self, row: Any) -> str:
        """Return the columns to copy as JSON, which has no NaN, although Python reads it."""
        copied = {name: self._getters[name](row) for name in self._copied}
        return json.dumps({name: None if value != value else value for name, value in copied.items()})

    def _number(self, column: str, value: Any, new: bool) -> float:
        """Return the number of a category. Classes that appear when there are too many share one."""
        if not isinstance(value, str):
            return value
        if self.key is not None:
            # By a checksum, so that no key depends on the earlier rows of other keys.
            return float(zlib.crc32(value.encode("utf-8", "surrogatepass")) % CATEGORIES)
        known, size = self.categories[column], self._sizes.get(column, CATEGORIES)
        if new and value not in known and len(known) < size:
            known[value] = len(known)
        if value in known or len(known) < size or column not in self._sizes:
            return float(known.get(value, len(known)))
        return float(size + zlib.crc32(value.encode("utf-8", "surrogatepass")))

    def restore(self, categories: dict[str, list[str]]) -> None:
        """Continue with the categories of a saved position.

        Args:
            categories: the categories of each column.

        Raises:
            StreamError: they do not fit the columns.
        """
        too_many = [name for name, known in categories.items() if len(known) > self._sizes.get(name, CATEGORIES)]
        twice = any(len(set(known)) < len(known) for known in categories.values())
        if set(categories) != set(self.categories) or twice or too_many:
            raise damaged_position_error("its categories do not match its columns, are too many, or one occurs twice")
        for name, known in categories.items():
            self.categories[name] = {value: number for number, value in enumerate(known)}


def read_all(read: Callable[[Any], Any], values: Sequence[Any]) -> list[Any] | np.ndarray:
    """Return the values of a column, read one by one, or faster if all of them are plain numbers.

    Args:
        read: the function that reads a value.
        values: the values as they were sent.

    Raises:
        BadRow: one of them cannot be read.
    """
    kinds = set(map(type, values)) if read is number_of else {object}
    text = "".join(values) if kinds == {str} else ""
    if kinds <= NUMBER_TYPES or (text.isascii() and text and "_" not in text):
        with suppress(ValueError, OverflowError):
            numbers = np.array(list(map(float, values)) if text else values, np.float64)
            if not (np.abs(numbers) > MAX_NUMBER).any():
                return numbers
    return list(map(read, values))
