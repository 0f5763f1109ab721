"""Fields of a row as numbers."""

import math
from typing import Any

from norewind.streams.place import LARGEST

# Beside NaN itself, however it is written.
MISSING = frozenset(["", "na", "null"])


class BadRow(ValueError):
    """What is wrong with a row; the reader adds where it is."""

    counted_as = "bad rows"


class MissingValue(BadRow):
    """A row lacks a value that it may not lack."""

    counted_as = "rows with missing values"


def number_of(value: Any) -> float:
    """A field of a row as a number; NaN if it is missing."""
    if type(value) is float or (type(value) is str and "_" not in value):  # Python, and nobody else, reads 1_000
        try:
            number = float(value)
        except ValueError:
            return _missing(str(value))
    elif value is None:
        return math.nan
    elif type(value) is int:
        number = _converted(value)
    else:
        raise BadRow(f"{_shown(value)} is not a number")
    if abs(number) > LARGEST:
        raise BadRow(f"{_shown(value)} is too large: numbers may go to ±{LARGEST:g}")
    return number


def is_known_number(value: Any) -> bool:
    """Whether a field is a number, neither missing nor anything else."""
    try:
        return not math.isnan(number_of(value))
    except BadRow:
        return False


def _missing(text: str) -> float:
    if text.strip().lower() not in MISSING:
        raise BadRow(f"{_shown(text)} is not a number")
    return math.nan


def _converted(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LARGEST:
        return "it"  # thousands of digits, which Python may even refuse to print
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
