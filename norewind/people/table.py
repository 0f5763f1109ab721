"""Rows from data frames, arrays and iterables."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from norewind.streams import StreamError
from norewind.streams.given import SIMPLE, plain

Row = dict[str, Any]


def rows_of(data: Any) -> Iterator[Row]:
    """Rows by column, from a pandas or Polars frame or series, an array, or any iterable of rows."""
    if hasattr(data, "to_frame"):  # a series, which is named as its column would be, or as that of an array
        data = data.to_frame(name=data.name or "1")
    if isinstance(data, Mapping):
        raise StreamError("fit takes many rows; learn_one takes one. A dict of columns? Make a data frame of it first.")
    if hasattr(data, "iter_rows"):  # Polars
        return map(row_of, data.iter_rows(named=True))
    if hasattr(data, "itertuples"):  # pandas
        names = [str(name) for name in data.columns]
        return (row_of(dict(zip(names, values, strict=True))) for values in data.itertuples(index=False, name=None))
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        raise StreamError(
            f"rows are a data frame, an array or an iterable of dicts, not a {type(data).__name__}. To read a file, "
            "give its path."
        )
    return map(row_of, data)


def row_of(row: Any) -> Row:
    """One row by column. The columns of an array are called 1, 2, ..., as in a file without a header."""
    if isinstance(row, Mapping):
        return {
            name if type(name) is str else str(name): value if type(value) in SIMPLE else plain(value)
            for name, value in row.items()
        }
    if hasattr(row, "to_dict"):  # a row of pandas
        return row_of(row.to_dict())
    if isinstance(row, str | bytes) or not (hasattr(row, "__len__") or hasattr(row, "__float__")) or np.ndim(row) > 1:
        raise StreamError(f"a row is a dict or a vector of numbers, not a {type(row).__name__}.")
    values = np.atleast_1d(np.asarray(row)).tolist()
    return {str(number): plain(value) for number, value in enumerate(values, 1)}
