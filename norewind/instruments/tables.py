"""Tables: the only place that builds them."""

import csv
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from norewind.shown import markdown_as_html


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: bool = False) -> str:
    r"""A Markdown table; with `numbers`, all columns but the first are aligned to the right. None is an empty cell.

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


def table_as_html(table: str, curves: Mapping[str, str], title: str = "") -> str:
    """A Markdown table as HTML, with a line for each named sparkline."""
    lines = "".join(f"<div>{html.escape(name)} {curve}</div>" for name, curve in curves.items())
    return markdown_as_html(table) + title + lines


def comma_separated(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The same as CSV."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
    return buffer.getvalue()


def mean_and_spread(values: Sequence[float], digits: int = 4) -> str:
    """The mean and the standard deviation over several values.

    >>> mean_and_spread([0.15, 0.16]), mean_and_spread([0.15]), mean_and_spread([])
    ('0.1550 ± 0.0071', '0.1500', '–')
    """
    if not values:
        return "–"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"
