"""How objects are displayed at a prompt and in a notebook: a few lines or a table, never a dump of numbers."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

BARS = "▁▂▃▄▅▆▇█"
WIDTH, HEIGHT = 240, 40


def sparkline(values: Iterable[float | None], width: int = 40, span: tuple[float, float] | None = None) -> str:
    """A curve as one line of text; long ones are averaged. It fills the height, or shows a `span` of values.

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
    points = points.clip(low, high)
    places = np.zeros(len(points)) if high == low else (points - low) / (high - low) * (len(BARS) - 1)
    return "".join(BARS[round(place)] for place in places.tolist())


def size(tree: Any) -> str:
    """How many numbers a tree holds."""
    leaves = jax.tree.leaves(tree)
    total = sum(int(np.size(leaf)) for leaf in leaves)
    return f"{total:,} numbers in {len(leaves)} array{'' if len(leaves) == 1 else 's'}"


def count(number: Any) -> str:
    """A count as it is written; inside a transformation, or for several runs, it is not one number."""
    return str(number) if isinstance(number, Tracer) or np.ndim(number) else f"{int(number):,}"


def lines(title: str, facts: dict[str, Any]) -> str:
    """A title, and indented facts."""
    return "\n".join([title, *(f"  {name}: {value}" for name, value in facts.items())])


def table(title: str, facts: dict[str, Any], curve: Sequence[float | None] = ()) -> str:
    """The same as HTML, with a curve."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(str(name))}</th>"
        f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<div><b>{html.escape(title)}</b><table>{cells}</table>{_drawn(curve)}</div>"


def markdown_as_html(text: str) -> str:
    r"""Markdown as HTML, with tables; HTML inside it is shown as text.

    >>> print(markdown_as_html("Note: **1 < 2**."), end="")
    <p>Note: <strong>1 &lt; 2</strong>.</p>
    """
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table").render(text)


def _drawn(curve: Sequence[float | None]) -> str:
    known = [value for value in curve if value is not None and np.isfinite(value)]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    points = " ".join(
        f"{WIDTH * place / (len(known) - 1):.1f},{HEIGHT - 2 - (HEIGHT - 4) * (value - low) / (high - low or 1):.1f}"
        for place, value in enumerate(known)
    )
    line = f"<polyline points='{points}' fill='none' stroke='currentColor'/>"
    return f"<svg width='{WIDTH}' height='{HEIGHT}' role='img' aria-label='loss'>{line}</svg>"
