"""Rows as numbers: one row at a time, or many, column by column."""

import json
import math
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from norewind.streams.columns import CATEGORIES, LARGEST, READ, REMEMBERED, BadRow, Kind, MissingValue, at, number_of
from norewind.streams.position import damaged

PLAIN = {float, int, type(None)}
JSON = msgspec.json.Encoder()


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
        copied = [self.copied[place] for place in places] if self.copied else ()
        return Rows(self.values[places], self.lines[places], copied, (), [self.keys[place] for place in places])


def joined_rows(parts: Sequence[Rows], columns: int) -> Rows:
    """Rows of so many columns, one after the other."""
    if len(parts) == 1:
        return parts[0]
    none = Rows(np.empty((0, columns)), np.empty(0, np.int64))
    values, lines, *others = zip(none, *parts, strict=True)
    return Rows(np.concatenate(values), np.concatenate(lines), *([*chain.from_iterable(some)] for some in others))


class Key(NamedTuple):
    """The column with the keys, and which keys to take: those of part `number` of `shards`."""

    column: str
    number: int = 0
    shards: int = 1

    def of(self, value: Any) -> bytes:
        """A value as a key: its JSON text."""
        if type(value) is str and value and value.isascii() and value.isprintable():
            return JSON.encode(value)  # the same text, sooner
        is_infinite = isinstance(value, float) and not math.isfinite(value)
        if value is None or value == "" or isinstance(value, dict | list) or is_infinite:
            raise BadRow(f"column {self.column!r} has no key")
        return json.dumps(value).encode()

    def takes(self, key: bytes) -> bool:
        """Whether a key is in the part to take."""
        return self.shards == 1 or zlib.crc32(key) % self.shards == self.number


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
        self.used = [(name, READ[kind]) for name, kind in kinds.items()]
        self.copied, self.clock, self.key = copied, clock, key
        self.columns, self._gaps = len(kinds) + gaps, [math.nan] * gaps
        self._get: Callable[[dict[str, Any], str], Any] = at if nested else dict.get
        places = {name: place for place, name in enumerate(kinds)}
        self._required = [places[name] for name in required]
        self._categories = [(places[name], name) for name, kind in kinds.items() if kind == "category"]
        self.categories: dict[str, dict[str, int]] = {name: {} for _, name in self._categories}

    def values(self, row: dict[str, Any], *, new: bool = True) -> list[float]:
        """The numbers of a row. Categories that appear are remembered, or without `new` only numbered."""
        values = []
        try:
            for name, read in self.used:
                values.append(read(self._get(row, name)))
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

    def restore(self, categories: dict[str, list[str]]) -> None:
        """Continue with the categories of columns from a saved position."""
        if set(categories) != set(self.categories) or any(len(set(k)) < len(k) for k in categories.values()):
            raise damaged("its categories are not those of its columns, or one is named twice")
        for name, known in categories.items():
            self.categories[name] = {value: number for number, value in enumerate(known)}

    def key_of(self, row: dict[str, Any]) -> bytes | None:
        """The key of a row; None if it is not to be taken."""
        assert self.key is not None
        key = self.key.of(self._get(row, self.key.column))
        return key if self.key.takes(key) else None

    def row(self, row: dict[str, Any], line: int) -> Rows | None:
        """One row, in this line; None if its key is not to be taken."""
        key = None if self.key is None else self.key_of(row)
        if key is None and self.key is not None:
            return None
        return Rows(
            np.array([self.values(row)]),
            np.array([line]),
            [self._copy([self._get(row, name) for name in self.copied])] if self.copied else (),
            () if self.clock is None else [at(row, self.clock)],
            () if key is None else [key],
        )

    def _copy(self, row: Sequence[Any]) -> str:
        """The values of the columns to copy, as JSON."""
        # JSON has no NaN; Python reads it all the same.
        return json.dumps({n: None if value != value else value for n, value in zip(self.copied, row, strict=True)})

    def rows(self, count: int, column: Callable[[str], list[Any]], first: int) -> Rows:
        """Convert rows up to the first that is bad.

        Args:
            count: how many rows there are.
            column: from the name of a column to its values.
            first: the line of the first row.
        """
        keys = [] if self.key is None else converted(self.key.of, column(self.key.column))
        values = np.full((count if self.key is None else len(keys), self.columns), np.nan)
        fields = {}
        for place, (name, read) in enumerate(self.used):
            found = column(name)[: len(values)]
            if read is not number_of or not _write_plain(found, values[:, place]):
                fields[place] = found
        values = self._fill(values, fields)
        good = len(values)
        return Rows(
            values,
            np.arange(first, first + good),
            [self._copy(row) for row in zip(*(column(name)[:good] for name in self.copied), strict=True)],
            () if self.clock is None else column(self.clock)[:good][-REMEMBERED:],
            keys[:good],
        )

    def _fill(self, values: np.ndarray, fields: dict[int, list[Any]]) -> np.ndarray:
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
    with suppress(ValueError, RecursionError, msgspec.MsgspecError):
        for value in found:
            good.append(read(value))
    return good


def _write_plain(found: list[Any], column: np.ndarray) -> bool:
    """Write numbers into a column, if all are plainly those that `number_of` would read."""
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
