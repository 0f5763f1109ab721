"""Rows of many series in one stream, distinguished by a key."""

import json
from typing import Any

import numpy as np

from norewind.streams.conversion import Rows
from norewind.streams.reading import Source, closed_on_error
from norewind.streams.rows import RowStream
from norewind.streams.stream import Samples, StreamError


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
            if key in [*(options.get("inputs") or []), *(options.get("targets") or [])]:
                raise StreamError(f"column {key!r} is the key, so it cannot be an input or a target.")
            super().__init__(source, **options)
            if key not in self._reader.columns:
                columns = ", ".join(map(repr, self._reader.columns[:20]))
                raise StreamError(f"{source.name} has no column {key!r} to take keys from. It has {columns}.")

    def key_of(self, row: dict[str, Any]) -> bytes | None:
        """The key of a row; None if it is in another shard."""
        return self._reader.conversion.key_of(row)

    @staticmethod
    def key_name(key: bytes) -> Any:
        """What a key is called where it is written down as JSON."""
        try:
            value = json.loads(key)
        except ValueError:
            return key.decode("latin-1")
        # Half a character cannot be written down.
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    def _samples(self, rows: Rows, copied: np.ndarray | None) -> Samples:
        keys = np.empty(len(rows.keys), object)
        keys[:] = rows.keys
        return Samples(rows.values, rows.values[:, self.layout.targets], lines=rows.lines, copied=copied, keys=keys)
