"""Rows of comma-separated values."""

import csv

from norewind.streams.numbers import BadRow
from norewind.streams.stream import StreamError


def check_delimiter(delimiter: str) -> None:
    """A delimiter is one character that cannot be part of anything else."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise StreamError(f"the delimiter must be one character and no quote, not {delimiter!r}; e.g. a comma.")


def fields_of(text: str, delimiter: str) -> list[str]:
    """The fields of one line; quoted ones may hold the delimiter, but not a line break."""
    if '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise BadRow(f"its quotes do not match ({error}); a quoted field may not go over the end of a line") from None


def names_of(fields: list[str]) -> list[str]:
    """The names of the columns in a header; a column without a name is called by its number, from 1."""
    names = [field.strip() or str(number) for number, field in enumerate(fields, 1)]
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise BadRow(f"the header names the column {twice!r} twice; every column needs a name of its own")
    return names
