"""Figures, in one style."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

STYLES = ("-", "--", "-.", ":")


def draw_curves(curves: Sequence[tuple[str, list[dict[str, Any]]]], unit: str, path: Path) -> None:
    """The mean loss per interval against samples; for a single run, its baselines as well."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for i, (name, lines) in enumerate(curves):
        axes.plot(*_points(lines, "loss"), STYLES[i % len(STYLES)], label=name)
    if len(curves) == 1:
        lines = curves[0][1]
        for entry, words, style in (("persistence", "persistence", ":"), ("baseline", "baseline", "--")):
            samples, values = _points(lines, entry)
            if len(values):
                axes.plot(samples, values, style, color="0.5", linewidth=1, label=words)
    axes.set_xlabel("samples")
    axes.set_ylabel(unit)
    axes.set_title("mean loss per interval", fontsize=10, loc="left")
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    # Below the curves, never on them, however long the names.
    figure.legend(loc="outside lower left", frameon=False, fontsize=9, ncols=1 if len(curves) > 1 else 3)
    figure.savefig(path, dpi=120)


def _points(lines: list[dict[str, Any]], entry: str) -> tuple[np.ndarray, np.ndarray]:
    known = [(line["samples"], line[entry]) for line in lines if line.get(entry) is not None]
    samples, values = np.array(known).reshape(-1, 2).T
    return samples, values
