"""The weights of the members of a mixture over time, and the marks of drift in all figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from norewind.plotting.figures import COLORS, as_dates, count_axis, date_axis, drawable, legend, mark_drift, new_figure

WEIGHTS_FIGURE = "weights.png"
# The number of members that have their own area. The others are drawn together.
SHOWN = 8


def weights_figure(lines: Sequence[dict[str, Any]]) -> Figure:
    """Draw the mean weights of the members between lines of metrics, one above the other, and the alarms of drift.

    Args:
        lines: the lines of metrics. Those without weights are left out.
    """
    shown = [line for line in lines if line.get("weights")]
    figure, axes = new_figure(panel=(8, 4.5))
    ax: Axes = axes[0, 0]
    lengths = np.diff([line["samples"] for line in shown], prepend=0)
    totals: dict[str, float] = {}
    for line, length in zip(shown, lengths.tolist(), strict=True):
        for name, weight in line["weights"].items():
            totals[name] = totals.get(name, 0.0) + length * weight
    names = sorted(totals, key=lambda name: -totals[name])[:SHOWN]
    weights = np.array([[line["weights"].get(name, 0.0) for line in shown] for name in names])
    others = np.maximum(1 - weights.sum(axis=0), 0)
    places = as_dates([line.get("time") for line in shown])
    # A weight holds from the line before to its own line.
    ends = np.array([line["samples"] for line in shown]) if places is None else places
    starts = np.concatenate([[0] if places is None else ends[:1], ends[:-1]])
    edges = np.stack([starts, ends], axis=1).ravel()
    colors = [*COLORS[: len(names)], "0.8"]
    ax.stackplot(
        edges, np.repeat([*weights, others], 2, axis=1), labels=[*map(drawable, names), "others"], colors=colors
    )
    mark_drift(ax, shown, as_dates([line.get("time") for line in shown]) is not None)
    if places is None:
        ax.set_xlabel("row")
        count_axis(ax)
    else:
        date_axis(ax)
    ax.set(ylabel="mean weight", ylim=(0, 1), xlim=(edges[0], edges[-1]))
    ax.set_title("Weights of the members of the mixture")
    legend(figure, [ax], columns=2)
    return figure
