"""Words and numbers for messages: plurals, lists, and rounding."""

from collections.abc import Sequence
from math import isfinite
from typing import Any


def counted(number: int, word: str) -> str:
    """Format a number with its noun, in the singular or plural.

    Args:
        number: how many there are.
        word: the noun in the singular.

    >>> counted(1, "sample"), counted(1_000, "sample")
    ('1 sample', '1,000 samples')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def listed(things: Sequence[Any]) -> str:
    """Join items to an English list.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *first, last = map(str, things)
    return f"{', '.join(first)} and {last}" if first else last


def first_few(words: Sequence[str], most: int = 12) -> str:
    """Join the first words with commas, and say how many more there are.

    Args:
        words: the words.
        most: how many of them to show.

    >>> first_few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines of text, the first column to the left and the others to the right.

    Args:
        rows: the cells of each row, as many in all rows.

    >>> aligned([["a", "1"], ["bc", "22"]])
    ['a    1', 'bc  22']
    """
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def missing_package(package: str, extra: str) -> str:
    """Describe how to install a package that is needed here.

    Args:
        package: the name of the package.
        extra: the extra of norewind that includes it.

    >>> print(missing_package("ray", "ray"))
    the package ray is not installed: run pip install '.[ray]' in a clone of norewind
    """
    return f"the package {package} is not installed: run pip install '.[{extra}]' in a clone of norewind"


def digits(value: float | None) -> float | None:
    """Round a number to six significant digits; None if it is not finite."""
    return None if value is None or not isfinite(value) else float(f"{value:.6g}")


def seven_digits(value: float) -> float | None:
    """Round a number to seven significant digits, the precision of a forecast; None if it is not finite."""
    return float(f"{value:.7g}") if isfinite(value) else None
