"""Fields of a row as numbers."""

import math
from typing import Any

from norewind.streams.place import LARGEST

MISSING = frozenset(["", "na", "nan", "null"])


class BadRow(ValueError):
    """What is wrong with a row; the reader adds where it is."""

    counted_as = "bad rows"


class MissingValue(BadRow):
    """A row lacks a value that it may not lack."""

    counted_as = "rows with missing values"


def number_of(value: Any) -> float:
    """A field of a row as a number; NaN if it is missing."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        number = _parsed(value.strip())
    elif isinstance(value, int | float) and not isinstance(value, bool):
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


def _parsed(text: str) -> float:
    if text.lower() in MISSING:
        return math.nan
    try:
        if "_" in text:  # Python reads 1_000 as a number, but nobody else does
            raise ValueError
        return float(text)
    except ValueError:
        raise BadRow(f"{_shown(text)} is not a number") from None


def _converted(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LARGEST:
        return "it"  # thousands of digits, which Python may even refuse to print
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
