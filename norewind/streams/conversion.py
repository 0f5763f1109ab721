"""Rows as numbers: one row at a time, or many, column by column."""

import json
import math
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from norewind.streams.clock import REMEMBERED
from norewind.streams.columns import (
    CATEGORIES,
    LARGEST,
    BadRow,
    Kind,
    MissingValue,
    at,
    boolean_of,
    category_of,
    is_missing,
    number_of,
    time_of,
)

PLAIN = {float, int, type(None)}


class Rows(NamedTuple):
    """Rows as they were read.

    Attributes:
        values: the numbers of the columns in use as float64 of shape (rows, columns), NaN where missing.
        lines: the number of the line that each row stands in.
        copied: the columns to copy, as JSON text.
        times: the times of the newest rows, as they were sent.
        keys: the keys of the rows.
    """

    values: np.ndarray
    lines: np.ndarray
    copied: Sequence[str] = ()
    times: Sequence[Any] = ()
    keys: Sequence[bytes] = ()

    def only(self, places: list[int]) -> "Rows":
        """Some of the rows, without their times."""
        copied, keys = ([part[place] for place in places] if part else part for part in (self.copied, self.keys))
        return Rows(self.values[places], self.lines[places], copied, (), keys)


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Rows, one after the other."""
    values, lines = (np.concatenate([part[place] for part in parts]) for place in range(2))
    return Rows(values, lines, *([*chain.from_iterable(some)] for some in list(zip(*parts, strict=True))[2:]))


class Key(NamedTuple):
    """The column with the keys, and which keys to take: those of part `number` of `shards`."""

    column: str
    number: int = 0
    shards: int = 1

    def of(self, value: Any) -> bytes:
        """A value as a key: its JSON text."""
        is_infinite = isinstance(value, float) and not math.isfinite(value)
        if value is None or value == "" or isinstance(value, dict | list) or is_infinite:
            raise BadRow(f"column {self.column!r} has no key")
        return json.dumps(value).encode()

    def takes(self, key: bytes) -> bool:
        """Whether a key is in the part to take."""
        return self.shards == 1 or zlib.crc32(key) % self.shards == self.number


def category_or_nan(value: Any) -> Any:
    return math.nan if is_missing(value) else category_of(value)


READ: dict[Kind, Callable[[Any], Any]] = {
    "number": number_of,
    "boolean": boolean_of,
    "time": time_of,
    "category": category_or_nan,
}


class Conversion:
    """How rows become numbers.

    A category is the number of its place in `categories`, by column, which grow as they appear.

    Args:
        kinds: the columns in use, with their kinds.
        required: the columns that may not be missing.
        copied: the columns to copy.
        clock: the column with the times of rows.
        gaps: how many columns to leave empty after those in use, for the times since the rows before.
        key: what finds the keys of rows.
        nested: whether names such as sensor.temp stand for values inside values.
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
        self.used, self.copied, self.clock, self.key = (
            [(name, READ[kind]) for name, kind in kinds.items()],
            copied,
            clock,
            key,
        )
        self.columns, self._gaps = len(kinds) + gaps, [math.nan] * gaps
        self.get: Callable[[dict[str, Any], str], Any] = at if nested else dict.get
        places = {name: place for place, name in enumerate(kinds)}
        self._required = [places[name] for name in required]
        self._categories = [(places[name], name) for name, kind in kinds.items() if kind == "category"]
        self.categories: dict[str, dict[str, int]] = {name: {} for _, name in self._categories}

    def values(self, row: dict[str, Any], *, new: bool = True) -> list[float]:
        """The numbers of a row. Categories that appear are remembered, or without `new` only numbered."""
        values = []
        try:
            for name, read in self.used:
                values.append(read(self.get(row, name)))
        except BadRow as problem:
            raise BadRow(f"column {self.used[len(values)][0]!r}: {problem}") from None
        for place in self._required:
            if values[place] != values[place]:
                raise MissingValue(f"column {self.used[place][0]!r} has no value")
        # Not before the row is known to be good.
        for place, name in self._categories:
            values[place] = self._number(name, values[place], new)
        return values + self._gaps

    def _number(self, column: str, value: Any, new: bool = True) -> float:
        """The number of a category; those that come when there are too many share one."""
        if not isinstance(value, str):
            return value
        if self.key is not None:
            # By a checksum, so that no key depends on what other keys have sent before.
            return float(zlib.crc32(value.encode("utf-8", "surrogatepass")) % CATEGORIES)
        known = self.categories[column]
        if new and value not in known and len(known) < CATEGORIES:
            known[value] = len(known)
        return float(known.get(value, len(known)))

    def key_of(self, row: dict[str, Any]) -> bytes:
        """The key of a row."""
        assert self.key is not None
        return self.key.of(self.get(row, self.key.column))

    def copy(self, row: dict[str, Any]) -> str:
        """The columns to copy, as JSON."""
        values = {name: self.get(row, name) for name in self.copied}
        # JSON has no NaN; Python reads it all the same.
        return json.dumps({name: None if value != value else value for name, value in values.items()})

    def rows(self, some: list[dict[str, Any]], first: int) -> Rows:
        """As many of the rows as are good, up to the first that is bad; they stand in lines from `first` on."""
        keys = [] if self.key is None else converted(self.key_of, some)
        values = np.full((len(some) if self.key is None else len(keys), self.columns), np.nan)
        fields = {}
        for place, (name, read) in enumerate(self.used):
            found = [self.get(row, name) for row in some[: len(values)]]
            if read is not number_of or not _are_plain(found, values[:, place]):
                fields[place] = found
        values = self.fill(values, fields)
        some = some[: len(values)]
        return Rows(
            values,
            np.arange(first, first + len(values)),
            [self.copy(row) for row in some] if self.copied else (),
            [at(row, self.clock) for row in some[-REMEMBERED:]] if self.clock is not None else (),
            keys[: len(values)],
        )

    def fill(self, values: np.ndarray, fields: dict[int, list[Any]]) -> np.ndarray:
        """Convert the fields of some columns, as far as rows are good. Returns the numbers of these rows."""
        for place, found in fields.items():
            fields[place] = good = converted(self.used[place][1], found[: len(values)])
            values = values[: len(good)]
            values[:, place] = [0.0 if isinstance(value, str) else value for value in good]
        if self._required:
            missing = np.isnan(values[:, self._required]).any(axis=1)
            values = values[: missing.argmax()] if missing.any() else values
        for place, name in self._categories:
            if place in fields:
                values[:, place] = [self._number(name, value) for value in fields[place][: len(values)]]
        return values


def converted(read: Callable[[Any], Any], found: Sequence[Any]) -> list[Any]:
    """What `read` makes of the values, up to the first bad one."""
    good = []
    try:
        for value in found:
            good.append(read(value))
    except BadRow:
        pass
    return good


def _are_plain(found: list[Any], column: np.ndarray) -> bool:
    """Write numbers into a column, if all of them are numbers or missing, and none is too large."""
    if not set(map(type, found)) <= PLAIN:
        return False
    try:
        column[:] = found
    except OverflowError:  # an integer of hundreds of digits
        return False
    return not (np.abs(column) > LARGEST).any()
