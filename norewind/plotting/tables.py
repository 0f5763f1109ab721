"""Tables and curves as text: Markdown, CSV and HTML."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

BARS, SPARKLINE_WIDTH = "▁▂▃▄▅▆▇█", 40
# The cells of a row, in the order of the header or by the names in it.
TableRow = Sequence[Any] | Mapping[str, Any]


def markdown(header: Sequence[str], rows: Iterable[TableRow], *, numbers: bool = False) -> str:
    r"""Format a Markdown table.

    Args:
        header: the names of the columns.
        rows: the rows. None is an empty cell.
        numbers: align all columns but the first to the right.

    >>> print(markdown(["method", "bits"], [["uoro", 0.15], {"bits": None, "method": "a|b"}], numbers=True), end="")
    | method | bits |
    |---|---:|
    | uoro | 0.15 |
    | a\|b |  |
    """

    def line(cells: Sequence[Any]) -> str:
        texts = ("" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
        return "| " + " | ".join(texts) + " |\n"

    rule = ["---", *["---:" if numbers else "---"] * (len(header) - 1)]
    return "".join([line(header), "|" + "|".join(rule) + "|\n", *map(line, _cells(header, rows))])


def comma_separated(header: Sequence[str], rows: Iterable[TableRow]) -> str:
    """Format a table as CSV.

    Args:
        header: the names of the columns.
        rows: the rows. None is an empty cell.
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *_cells(header, rows)])
    return buffer.getvalue()


def _cells(header: Sequence[str], rows: Iterable[TableRow]) -> list[Sequence[Any]]:
    return [[row[name] for name in header] if isinstance(row, Mapping) else row for row in rows]


def sparkline(values: Iterable[float | None], span: tuple[float, float] | None = None) -> str:
    """Draw a curve as one line of text, averaging the points of a long one.

    Args:
        values: the points of the curve; unknown ones are left out.
        span: the values at the bottom and at the top; by default the smallest and the largest point.

    >>> sparkline([4, 3, 2, None, 1, 1])
    '█▆▃▁▁'
    >>> sparkline([0.9, 1.0, -0.1], span=(0, 1))
    '▇█▁'
    """
    known = np.array([value for value in values if value is not None and np.isfinite(value)])
    if not len(known):
        return ""
    points = np.array([part.mean() for part in np.array_split(known, min(SPARKLINE_WIDTH, len(known)))])
    low, high = span or (points.min(), points.max())
    places = (points.clip(low, high) - low) / ((high - low) or 1) * (len(BARS) - 1)
    return "".join(BARS[round(place)] for place in places.tolist())


def markdown_as_html(text: str) -> str:
    r"""Render Markdown with tables as HTML; HTML inside it is shown as text.

    >>> print(markdown_as_html("Note: **1 < 2**."), end="")
    <p>Note: <strong>1 &lt; 2</strong>.</p>
    """
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
