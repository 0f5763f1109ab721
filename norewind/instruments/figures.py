"""Figures, all in one style: made here, saved here. Line styles and markers tell curves apart without colour."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from norewind.files import write_atomically

COLOURS = ("#08519c", "#d94801", "#238b45", "#6a51a3", "#b8860b", "#cb181d", "#41b6c4", "#525252", "#dd3497", "#7a5230")
LINES = ("-", (0, (4, 1.6)), (0, (7, 1.5, 1.5, 1.5)), (0, (1, 1)), (0, (9, 2)))
MARKERS = "osD^vP*X<>"
GREY = "0.5"

# Without dates and versions the same numbers give the same file.
METADATA = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def new_figure(rows: int = 1, columns: int = 1, *, panel: tuple[float, float] = (4.5, 3.3), **subplots: Any):
    """A figure and its axes, as a 2-D array; `panel` is the size of one of them in inches.

    >>> figure, axes = new_figure(1, 2)
    >>> axes.shape
    (1, 2)
    """
    figure = Figure(figsize=(panel[0] * columns, panel[1] * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    for ax in axes.flat:
        ax.grid(alpha=0.25)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path | str) -> Path:
    """Write a figure as .png, .pdf or .svg, and return its path."""
    path = Path(path)
    path = path if path.suffix else path.with_suffix(".png")
    write_atomically(path, _content(figure, path.suffix))
    return path


def as_png(figure: Figure) -> bytes:
    return _content(figure, ".png")


def _content(figure: Figure, suffix: str) -> bytes:
    content = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "norewind"}):
        figure.savefig(content, format=suffix[1:], dpi=120, bbox_inches="tight", metadata=METADATA.get(suffix))
    return content.getvalue()


def look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number % len(LINES)], "linewidth": 1.6}


def legend(figure: Figure, axes: Iterable[Axes], columns: int = 3) -> None:
    """One legend for all axes, below them, each name once."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    columns = max(1, min(columns, len(entries)))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False)


def level(ax: Axes, value: float, words: str = "") -> None:
    """A horizontal line with its name outside, at the right end, where no curve can be."""
    ax.axhline(value, color="black", linewidth=1, linestyle=(0, (1, 1)))
    ax.annotate(words, (1.01, value), xycoords=("axes fraction", "data"), va="center", fontsize=8)


def median_and_range(ax: Axes, xs: Any, rows: np.ndarray, **style: Any) -> None:
    """The median over the rows, and a band from the smallest to the largest; what is not known counts as infinite."""
    rows = np.where(np.isnan(rows), np.inf, rows)
    band = {"color": style["color"], "alpha": 0.15, "lw": 0}
    ax.fill_between(xs, rows.min(axis=0), np.minimum(rows.max(axis=0), 1e3), **band)
    ax.plot(xs, np.median(rows, axis=0), **style)


def count_axis(ax: Axes) -> None:
    """Large numbers on the horizontal axis, in short: 50k, 2M."""
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def plain_log(ax: Axes) -> None:
    """A logarithmic vertical axis with plain numbers."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if high < 300 * low else (1,)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


# The smallest number of samples that a point of a learning curve is about: the error of a single one says little.
FEWEST = 20
SIMPLE = {"persistence": ("the last value", ":"), "seasonal": ("one period ago", "-."), "baseline": ("trivial", "--")}


def draw_curves(
    runs: Sequence[tuple[str, Sequence[dict[str, Any]]]], unit: str, path: Path | str, trivial: str = "baseline"
) -> Path:
    """Write the figure of `curves_figure`."""
    return save(curves_figure(runs, unit, trivial), path)


def curves_figure(runs: Sequence[tuple[str, Sequence[dict[str, Any]]]], unit: str, trivial: str = "baseline") -> Figure:
    """The loss of every line of metrics against samples; of a single run, what simple forecasts cost as well.

    `trivial` is what the baseline is called.
    """
    figure, axes = new_figure(panel=(8, 4.5))
    ax, drawn = axes[0, 0], 0
    for number, (name, lines) in enumerate(runs):
        points = _points(lines, "loss")
        drawn += points.shape[1]
        ax.plot(*points, label=name, marker="o", markersize=2.5, **look(number))
    if len(runs) == 1:
        for entry, (words, style) in SIMPLE.items():
            samples, values = _points(runs[0][1], entry)
            if len(values):
                words = trivial if entry == "baseline" else words
                marker = {"marker": "s", "markersize": 2} if len(values) < 5 else {}
                ax.plot(samples, values, style, color=GREY, linewidth=1, label=words, **marker)
    if not drawn:
        words = "Nothing to draw yet: no sample with a known target was predicted."
        ax.annotate(words, (0.5, 0.5), xycoords="axes fraction", ha="center", va="center")
    heights = np.concatenate([line.get_ydata() for line in ax.get_lines()]) if drawn else np.ones(1)
    if heights.min() > 0 and heights.max() > 20 * heights.min():
        plain_log(ax)  # the first rows would flatten the rest
    ax.set(
        xlabel="samples learned from", ylabel=f"mean {unit} of {FEWEST} samples or more", title="how well it predicts"
    )
    count_axis(ax)
    legend(figure, [ax], columns=1 if len(runs) > 1 else 4)
    return figure


def _points(lines: Sequence[dict[str, Any]], entry: str) -> np.ndarray:
    """Samples and values: means over at least `FEWEST` samples, of a line or, early in a run, of several."""
    known = [(line["samples"], line[entry]) for line in lines if line.get(entry) is not None]
    samples, values = np.array(known).reshape(-1, 2).T
    if not len(samples):
        return np.zeros((2, 0))
    # Sums of the losses up to each line; before the first, nothing was known.
    first = next((line["samples"] for line in reversed(lines) if line["samples"] < samples[0]), 0)
    edges = np.concatenate([[first], samples])
    sums = np.concatenate([[0], np.cumsum(np.diff(edges) * values)])
    starts = np.minimum(np.searchsorted(edges, samples - FEWEST, side="right") - 1, np.arange(len(samples)))
    starts = np.maximum(starts, 0)
    wide = np.arange(len(samples)) > starts
    means = (sums[1:] - sums[starts]) / (samples - edges[starts])
    return np.stack([samples, np.where(wide, means, values)])
