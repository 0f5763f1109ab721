"""The display of objects at a prompt and in a notebook: a few lines or a table, never a dump of numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from norewind.plotting.tables import markdown

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float | None], width: int = 40, span: tuple[float, float] | None = None) -> str:
    """Draw a curve as one line of text.

    Args:
        values: the points of the curve; unknown ones are left out.
        width: the largest number of characters; the points of a longer curve are averaged.
        span: the values at the bottom and at the top; by default the smallest and the largest point.

    >>> sparkline([4, 3, 2, None, 1, 1])
    '█▆▃▁▁'
    >>> sparkline([0.9, 1.0, -0.1], span=(0, 1))
    '▇█▁'
    """
    known = np.array([value for value in values if value is not None and np.isfinite(value)])
    if not len(known):
        return ""
    points = np.array([part.mean() for part in np.array_split(known, min(width, len(known)))])
    low, high = span or (points.min(), points.max())
    places = (points.clip(low, high) - low) / ((high - low) or 1) * (len(BARS) - 1)
    return "".join(BARS[round(place)] for place in places.tolist())


def facts_as_text(title: str, facts: Mapping[str, Any]) -> str:
    """Format facts as text: a title, and one indented line per fact.

    Args:
        title: the title.
        facts: values by name.
    """
    return "\n".join([title, *(f"  {name}: {value}" for name, value in facts.items())])


def facts_as_html(title: str, facts: Mapping[str, Any]) -> str:
    """Format facts as an HTML table.

    Args:
        title: the title.
        facts: values by name.
    """
    return markdown_as_html(markdown([title, ""], facts.items()))


def markdown_as_html(text: str) -> str:
    r"""Render Markdown with tables as HTML; HTML inside it is shown as text.

    >>> print(markdown_as_html("Note: **1 < 2**."), end="")
    <p>Note: <strong>1 &lt; 2</strong>.</p>
    """
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
