"""Rows of many series in one stream, distinguished by a key."""

import json
import zlib
from math import isfinite
from typing import Any

import numpy as np

from norewind.streams.columns import BadRow, at
from norewind.streams.parsing import CATEGORIES
from norewind.streams.reading import Source, closed_on_error
from norewind.streams.rows import UNREAD, RowStream
from norewind.streams.stream import Samples, StreamError, check_count


class Buckets(dict):
    """Categories by a checksum of their text, so that no key depends on what other keys have sent before."""

    def __contains__(self, category: object) -> bool:
        return True

    def get(self, category: str, default: Any = None) -> int:
        return zlib.crc32(category.encode("utf-8", "surrogatepass")) % CATEGORIES


class KeyedStream(RowStream):
    """Rows of numbers that belong to keys, as they are: a fleet standardises every key by its own past.

    The arguments are those of `RowStream`, and two more: `key`, the name of the column that
    holds the key, and `shard`, a pair such as (2, 8) to take only the keys of the third of
    eight parts. A key is the JSON text of the column's value, as bytes: in CSV always that of
    a text, in JSON lines of a text, a number, true or false. A row without a key is a bad row.

    Samples have `keys`; `xs` are the values of all columns in use, in float64 and NaN where
    missing, and `targets` those of the targets. Categories are told apart by a checksum, in 16
    parts. A source of another kind can supply such samples too: that is all a fleet needs.

    >>> import os
    >>> reader, writer = os.pipe()
    >>> size = os.write(writer, b"sensor,power\\na,10\\nb,20\\na,40\\n")
    >>> os.close(writer)
    >>> stream = KeyedStream(Source(reader), "sensor")
    >>> samples = stream.take(1000)
    >>> samples.keys.tolist(), samples.targets.tolist()
    ([b'"a"', b'"b"', b'"a"'], [[10.0], [20.0], [40.0]])
    """

    def __init__(self, source: Source, key: str, *, shard: tuple[int, int] = (0, 1), **options: Any):
        with closed_on_error(source):
            self.key, self.shard = key, shard
            if len(horizons := np.atleast_1d(options.get("horizon", 1))) > 1:
                raise StreamError(f"rows with keys have one horizon, not {len(horizons)}.")
            if key in [*(options.get("inputs") or []), *(options.get("targets") or [])]:
                raise StreamError(f"column {key!r} is the key, so it cannot be an input or a target.")
            super().__init__(source, **options)
            if key not in self._reader.columns:
                columns = ", ".join(map(repr, self._reader.columns[:20]))
                raise StreamError(f"{source.name} has no column {key!r} to take keys from. It has {columns}.")
            self._reader.key_of = self._key_of
            self._reader.categories = {name: Buckets() for name in self._reader.categories}

    def _key_of(self, row: dict[str, Any]) -> bytes | None:
        """The key of a row; None if it is in another shard."""
        assert self.key is not None
        value = row.get(self.key) if self._format == "csv" else at(row, self.key)
        is_infinite = isinstance(value, float) and not isfinite(value)
        if value is None or value == "" or isinstance(value, dict | list) or is_infinite:
            raise BadRow(f"column {self.key!r} has no key")
        key = json.dumps(value).encode()
        number, shards = self.shard
        return key if shards == 1 or shard_of(key, shards) == number else None

    @staticmethod
    def key_name(key: bytes) -> Any:
        """What a key is called where it is written down as JSON."""
        try:
            value = json.loads(key)
        except ValueError:
            return key.decode("latin-1")
        # Half a character cannot be written down.
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    @property
    def layout(self) -> Any:
        """How the columns of a row become inputs and targets."""
        return self._layout

    @property
    def times(self) -> tuple[tuple[int, int], ...]:
        """Columns that hold times, and those for the time since the key's row before."""
        return tuple(zip(self._times, range(len(self.kinds), self._layout.columns), strict=True))

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        check_count(count)
        rows, problem = [], None
        gaps = [np.nan] * len(self._times)
        try:
            for row in self._reader.rows(self._source.fragments(patience)):
                row.values.extend(gaps)
                rows.append(row)
                self._progress.mark()
                if len(rows) == count:
                    break
        except StreamError as error:
            # What came before is returned first; the next call finds the same problem again.
            problem = error
        self._progress.hand_out(len(rows), problem)
        if not rows and self._source.ended:
            if self._progress.start == UNREAD and self.shard[1] == 1:
                raise self._reader.too_short()
            return self._progress.end()
        values = np.array([row.values for row in rows], np.float64).reshape(len(rows), self._layout.columns)
        copied = np.array([row.copied for row in rows], object) if self._copied else None
        lines = np.array([row.number for row in rows], np.int64)
        keys = np.array([row.key for row in rows], object)
        return Samples(values, values[:, self._layout.targets], lines=lines, copied=copied, keys=keys)


def shard_of(key: bytes, shards: int) -> int:
    return zlib.crc32(key) % shards
