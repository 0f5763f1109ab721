"""Tables as Markdown and CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: bool = False) -> str:
    r"""Format a Markdown table.

    Args:
        header: the names of the columns.
        rows: the cells, row by row. None is an empty cell.
        numbers: align all columns but the first to the right.

    >>> print(markdown(["method", "bits"], [["uoro", 0.15], ["a|b", None]], numbers=True), end="")
    | method | bits |
    |---|---:|
    | uoro | 0.15 |
    | a\|b |  |
    """

    def line(cells: Sequence[Any]) -> str:
        words = ("" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
        return "| " + " | ".join(words) + " |\n"

    rule = ["---", *["---:" if numbers else "---"] * (len(header) - 1)]
    return "".join([line(header), "|" + "|".join(rule) + "|\n", *map(line, rows)])


def comma_separated(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format a table as CSV.

    Args:
        header: the names of the columns.
        rows: the cells, row by row.
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
    return buffer.getvalue()
