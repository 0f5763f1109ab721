"""Streams of rows that belong to keys."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from norewind.streams.base_source import BaseSource
from norewind.streams.stream import Samples
from norewind.streams.table.conversion import Rows
from norewind.streams.table.moment import Moment
from norewind.streams.table.row_stream import RowStream


class KeyedStream(RowStream):
    """Rows of numbers that belong to keys, not standardised: a fleet standardises every key by its own past.

    A key is the JSON text of the column's value, as bytes: in CSV always that of a text, in JSON lines of a text, a
    number, true or false. A row without a key is a bad row.

    Samples have `keys`; `xs` are the values of all columns in use, in float64 and NaN where missing, and `targets`
    those of the targets. Categories are numbered by a checksum, modulo 16.

    Args:
        source: the source of the rows. It is closed with the stream.
        key: the name of the column that holds the key.
        shard: a pair such as (2, 8) to take only the keys of the third of eight parts.
        options: the other arguments of `RowStream`.

    >>> from norewind.streams.table.python_rows import PythonRows
    >>> rows = [{"sensor": "a", "power": 10}, {"sensor": "b", "power": 20}, {"sensor": "a", "power": 40}]
    >>> stream = KeyedStream(PythonRows(rows), "sensor")
    >>> samples = stream.take(1000)
    >>> samples.keys.tolist(), samples.targets.tolist()
    ([b'"a"', b'"b"', b'"a"'], [[10.0], [20.0], [40.0]])
    """

    def __init__(self, source: BaseSource, key: str, *, shard: tuple[int, int] = (0, 1), **options: Any):
        self.key, self.shard = key, shard
        super().__init__(source, **options)

    def peek(self, rows: Sequence[dict[str, Any]], moment: Moment | None = None) -> Samples:
        """Return each of the rows as a sample, with its key. The stream does not change.

        Args:
            rows: the rows, as dicts by column.
            moment: ignored, since the rows are not standardised.
        """
        parsed = self._reader.from_dicts(rows)
        converted, _ = self._reader.conversion.convert(parsed, None, new=False)
        return self._samples(converted, self._copies(converted))

    @staticmethod
    def key_name(key: bytes) -> Any:
        """Return the form in which a key is written as JSON."""
        try:
            value = json.loads(key)
        except ValueError:
            return key.decode("latin-1")
        # An unpaired surrogate cannot be encoded.
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    def _samples(self, rows: Rows, copied: np.ndarray | None, ahead: np.ndarray | None = None) -> Samples:
        keys = np.array(rows.keys, object)
        return Samples(rows.values, rows.values[:, self.layout.targets], lines=rows.lines, copied=copied, keys=keys)
