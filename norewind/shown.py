"""How things show themselves at a prompt and in a notebook: a few lines or a table, never a dump of numbers."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

BARS = "▁▂▃▄▅▆▇█"
WIDTH, HEIGHT = 240, 40


def sparkline(values: Iterable[float | None], width: int = 40) -> str:
    """A curve as one line of text; long ones are averaged.

    >>> sparkline([4, 3, 2, None, 1, 1])
    '█▆▃▁▁'
    """
    known = np.array([value for value in values if value is not None and np.isfinite(value)])
    if not len(known):
        return ""
    points = np.array([part.mean() for part in np.array_split(known, min(width, len(known)))])
    low, high = points.min(), points.max()
    places = np.zeros(len(points)) if high == low else (points - low) / (high - low) * (len(BARS) - 1)
    return "".join(BARS[round(place)] for place in places.tolist())


def lines(title: str, facts: dict[str, Any]) -> str:
    """A title, and indented facts."""
    return "\n".join([title, *(f"  {name}: {value}" for name, value in facts.items())])


def table(title: str, facts: dict[str, Any], curve: Sequence[float | None] = ()) -> str:
    """The same as HTML, with a curve."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<div><b>{html.escape(title)}</b><table>{cells}</table>{_drawn(curve)}</div>"


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
