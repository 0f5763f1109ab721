"""Rows from Python, as lines for the reader that files have: dicts, data frames and arrays."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from norewind.streams import StreamError
from norewind.streams.position import Mark

LINES = 200
"""Lines that are handed to the reader at a time."""


class Feed:
    """A source like `norewind.streams.Source`, whose lines come from an iterator and from `put`.

    With `lasts`, it does not end with the iterator: more may be put in.
    """

    name = "the rows"
    size = None

    def __init__(self, lines: Iterable[bytes] = (), *, lasts: bool = True):
        self._lines, self._more, self._lasts = iter(lines), [], lasts
        self.ended = False

    def put(self, line: bytes) -> None:
        self._more.append(line)

    def fragments(self, patience: float | None) -> Iterator[bytes]:
        while batch := [*islice(self._lines, LINES), *self._more]:
            self._more.clear()
            yield b"".join(batch)
        self.ended = not self._lasts

    def go_to(self, place: Mark) -> None:
        """Nothing to do: the lines start where the run stopped."""

    def close(self) -> None:
        pass


def rows_of(data: Any) -> Iterator[dict[str, Any]]:
    """Rows by column, from a pandas or Polars frame, an array, or any iterable of rows."""
    if isinstance(data, Mapping):
        raise StreamError("fit takes many rows; learn_one takes one. A dict of columns? Make a data frame of it first.")
    if hasattr(data, "iter_rows"):  # Polars
        return data.iter_rows(named=True)
    if hasattr(data, "itertuples"):  # pandas
        names = [str(name) for name in data.columns]
        return (dict(zip(names, values, strict=True)) for values in data.itertuples(index=False, name=None))
    if not isinstance(data, Iterable):
        raise StreamError(
            f"rows are a data frame, an array or an iterable of dicts, not a {type(data).__name__}. To read a file, "
            "give its path."
        )
    return map(row_of, data)


def row_of(row: Any) -> dict[str, Any]:
    """One row by column. The columns of an array are called 1, 2, ..., as in a file without a header."""
    if isinstance(row, Mapping):
        return {str(name): value for name, value in row.items()}
    if hasattr(row, "to_dict"):  # a row of pandas
        return {str(name): value for name, value in row.to_dict().items()}
    if isinstance(row, str | bytes) or np.ndim(row) > 1:
        raise StreamError(f"a row is a dict or a vector of numbers, not {_shown(row)}.")
    return {str(number): value for number, value in enumerate(np.atleast_1d(np.asarray(row)).tolist(), 1)}


def line_writer(format: str, columns: list[str], delimiter: str) -> Callable[[dict[str, Any]], bytes]:
    """How a row is written for a stream of this format; CSV needs the columns in their order."""
    return _json_line if format == "jsonl" else lambda row: _csv_line(row, columns, delimiter)


def _json_line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, default=_plain, ensure_ascii=True).encode() + b"\n"


def _csv_line(row: dict[str, Any], columns: list[str], delimiter: str) -> bytes:
    text = io.StringIO()
    values = (row.get(name) for name in columns)
    fields = [
        "" if value is None else value if isinstance(value, str | int | float) else _plain(value) for value in values
    ]
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerow(fields)
    return text.getvalue().encode()


def _plain(value: Any) -> Any:
    """What JSON has no word for: NumPy's and pandas's numbers, times, and missing values."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item") and np.ndim(value) == 0:
        return value.item()
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__float__"):
        return float(value)
    raise StreamError(f"a row holds {_shown(value)}: give numbers, text, times or None.")


def _shown(value: Any) -> str:
    text = f"{value!r} (a {type(value).__name__})"
    return text if len(text) <= 80 else f"a {type(value).__name__}"
