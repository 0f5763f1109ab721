"""Figures in one common style. Curves also differ in line style and marker, so that they need no colour."""

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

from norewind.storage.files import write_atomically

COLOURS = ("#08519c", "#d94801", "#238b45", "#6a51a3", "#b8860b", "#cb181d", "#41b6c4", "#525252", "#dd3497", "#7a5230")
LINES = ("-", (0, (4, 1.6)), (0, (7, 1.5, 1.5, 1.5)), (0, (1, 1)), (0, (9, 2)))
MARKERS = "osD^vP*X<>"
GREY = "0.5"

# Without dates and versions, the same numbers produce the same file.
METADATA = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def new_figure(rows: int = 1, columns: int = 1, *, panel: tuple[float, float] = (4.5, 3.3), **subplots: Any):
    """Create a figure and its axes.

    Args:
        rows: the number of rows of panels.
        columns: the number of columns of panels.
        panel: width and height of a panel, in inches.
        subplots: further arguments of Matplotlib's `Figure.subplots`.

    Returns:
        The figure, and its axes as a 2-D array.

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
    """Write a figure to a file.

    Args:
        figure: the figure.
        path: the file; .png, .pdf or .svg. Without a suffix, it is .png.

    Returns:
        The path with its suffix.
    """
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
    """Add one legend for all axes below them, with each label once.

    Args:
        figure: the figure.
        axes: the axes.
        columns: the largest number of columns of the legend.
    """
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    columns = max(1, min(columns, len(entries)))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False)


def level(ax: Axes, value: float, words: str = "") -> None:
    """Draw a horizontal line, with its label to the right of the axes.

    Args:
        ax: the axes.
        value: the height of the line.
        words: the label.
    """
    ax.axhline(value, color="black", linewidth=1, linestyle=(0, (1, 1)))
    ax.annotate(words, (1.01, value), xycoords=("axes fraction", "data"), va="center", fontsize=8)


def median_and_range(ax: Axes, xs: Any, rows: np.ndarray, **style: Any) -> None:
    """Draw the median over rows, and a band from the smallest to the largest value.

    Args:
        ax: the axes.
        xs: the horizontal positions.
        rows: one curve per row. NaN counts as infinite.
        style: the style of the line; it must contain `color`.
    """
    rows = np.where(np.isnan(rows), np.inf, rows)
    band = {"color": style["color"], "alpha": 0.15, "lw": 0}
    ax.fill_between(xs, rows.min(axis=0), np.minimum(rows.max(axis=0), 1e3), **band)
    ax.plot(xs, np.median(rows, axis=0), **style)


def count_axis(ax: Axes) -> None:
    """Abbreviate large numbers on the horizontal axis: 50k, 2M."""
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def plain_log(ax: Axes) -> None:
    """Make the vertical axis logarithmic, labelled with plain numbers."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if high < 300 * low else (1,)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


# A point of a learning curve is the mean of at least this many samples: a single error is too noisy.
FEWEST = 20
SIMPLE = {"persistence": ("the last value", ":"), "seasonal": ("one period ago", "-."), "baseline": ("trivial", "--")}


def draw_curves(
    runs: Sequence[tuple[str, Sequence[dict[str, Any]]]], unit: str, path: Path | str, trivial: str = "baseline"
) -> Path:
    """Draw the learning curves of runs, and write the figure to a file.

    Args:
        runs: names and lines of metrics.
        unit: the unit of the loss.
        path: the figure; .png, .pdf or .svg.
        trivial: the label of the baseline.

    Returns:
        The path of the figure.
    """
    return save(curves_figure(runs, unit, trivial), path)


def curves_figure(runs: Sequence[tuple[str, Sequence[dict[str, Any]]]], unit: str, trivial: str = "baseline") -> Figure:
    """Draw the learning curves of runs: the loss in every line of metrics against samples.

    For a single run, the losses of simple forecasts are drawn as well.

    Args:
        runs: names and lines of metrics.
        unit: the unit of the loss.
        trivial: the label of the baseline.
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
        plain_log(ax)  # on a linear axis, the first rows would flatten the rest
    ax.set(
        xlabel="samples learned from", ylabel=f"mean {unit} of {FEWEST} samples or more", title="how well it predicts"
    )
    count_axis(ax)
    legend(figure, [ax], columns=1 if len(runs) > 1 else 4)
    return figure


def _points(lines: Sequence[dict[str, Any]], entry: str) -> np.ndarray:
    """Samples and values. A value is the mean over at least `FEWEST` samples: of one line or, early on, of several."""
    known = [(line["samples"], line[entry]) for line in lines if line.get(entry) is not None]
    samples, values = np.array(known).reshape(-1, 2).T
    if not len(samples):
        return np.zeros((2, 0))
    # Sums of the losses up to each line, from the first line with a known value on.
    first = next((line["samples"] for line in reversed(lines) if line["samples"] < samples[0]), 0)
    edges = np.concatenate([[first], samples])
    sums = np.concatenate([[0], np.cumsum(np.diff(edges) * values)])
    starts = np.minimum(np.searchsorted(edges, samples - FEWEST, side="right") - 1, np.arange(len(samples)))
    starts = np.maximum(starts, 0)
    wide = np.arange(len(samples)) > starts
    means = (sums[1:] - sums[starts]) / (samples - edges[starts])
    return np.stack([samples, np.where(wide, means, values)])
