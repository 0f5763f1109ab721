"""Parquet files as sources of rows."""

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any

from norewind.streams.position import Mark
from norewind.streams.stream import StreamError
from norewind.streams.table.python_rows import PythonRows, Row, as_row
from norewind.wording import missing_package

ROWS_AT_ONCE = 10_000


class ParquetRows(PythonRows):
    """The rows of a Parquet file, read a few thousand at a time. In positions, each counts as a line of JSON.

    Args:
        path: the path of the file.
        continues: the file starts exactly at the position of the stream, so nothing is skipped or checked.
        stop: called between rows. Once it returns True, nothing more is read.

    Raises:
        StreamError: the file cannot be read, or neither polars nor pyarrow is installed.
    """

    def __init__(self, path: str, *, continues: bool = False, stop: Callable[[], bool] = lambda: False):
        self.name, self._continues, self._stop = path, continues, stop
        super().__init__(map(as_row, _rows_of(path)))

    def peek(self, count: int = 1) -> list[Row]:
        return [] if self._stop() else super().peek(count)

    def catch_up(self) -> None:
        """Skip the rows up to the position, and check that they equal the rows read before."""
        here, place = Mark(), self.progress.here
        while not self._continues and here.lines < place.lines:
            rows = list(islice(self._rows, min(ROWS_AT_ONCE, place.lines - here.lines)))
            here = here.after(_as_lines(rows))
            if not rows:
                raise StreamError(f"{self.name} has only {here.lines} rows, but the run has read {place.lines}.")
        if not self._continues and here.crc != place.crc:
            raise StreamError(f"{self.name} is not the file that the run has read: its first {here.lines} rows differ.")

    def drop(self, records: Sequence[Row]) -> None:
        for _ in records:
            self._waiting.popleft()
        self.progress.read(_as_lines(records))


def _as_lines(rows: Sequence[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _rows_of(path: str) -> Iterator[dict[str, Any]]:
    """Return the rows of a Parquet file. The file is opened at once, so that problems are reported before training."""
    try:
        if find_spec("pyarrow"):
            from pyarrow.parquet import ParquetFile  # pyright: ignore[reportMissingImports]

            file = ParquetFile(path)
            return (row for batch in file.iter_batches(ROWS_AT_ONCE) for row in batch.to_pylist())
        if find_spec("polars"):
            import polars

            table = polars.scan_parquet(path)
            count = table.select(polars.len()).collect().item()
            parts = (table.slice(start, ROWS_AT_ONCE).collect() for start in range(0, count, ROWS_AT_ONCE))
            return (row for part in parts for row in part.iter_rows(named=True))
    except Exception as error:  # each package has its own kinds
        raise StreamError(f"{path} cannot be read: {error}.") from None
    raise StreamError(f"{path} cannot be read: {missing_package('polars', 'parquet')}.")
