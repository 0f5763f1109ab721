"""The figures of the study."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.paper.balancing import influence_curves
from examples.paper.text_runs import SAMPLES, TextRuns, method_words
from norewind.plotting import figures
from norewind.sweeps.record import Record, loss_curve

BLUE = "#08306b"
# UORO in blue, BPTT in orange; longer windows are lighter.
LOOKS = {
    "uoro": (BLUE, "-"),
    "uoro:window=2": ("#2171b5", (0, (7, 1.5, 1.5, 1.5))),
    "uoro:window=16": ("#7fb8de", "-"),
    "bptt:1": ("#7f2704", (0, (4, 1.6))),
    "bptt:2": ("#d94801", (0, (1, 1))),
    "bptt:4": ("#d94801", (0, (4, 1.6))),
    "bptt:16": ("#fdae6b", (0, (4, 1.6))),
}
# BPTT on influence balancing, shorter windows darker.
SHADES = ("#662506", "#cc4c02", "#fe9929", "#e0b030", "#8c6d31", "#b15928")


def text_figure(groups: TextRuns, memoryless: str) -> Figure:
    """Draw learning curves on a text: one column per cell, the mean loss from the start above, the recent one below.

    Args:
        groups: the runs by method and cell.
        memoryless: the label of the level without memory.
    """
    cells = [cell for cell in ("lstm", "gru") if any(cell == of for _, of in groups)]
    figure, axes = figures.new_figure(2, len(cells), panel=(5.2, 3.2), sharex=True, sharey="row")
    first = next(iter(groups.values()))
    text, longest = first.text(), max(group.samples for group in groups.values())
    gap = text.memoryless - text.floor
    for column, cell in enumerate(cells):
        for ax, cumulative in zip(axes[:, column], (True, False), strict=True):
            for method, (colour, line) in LOOKS.items():
                if (method, cell) in groups:
                    samples, rows = groups[method, cell].curves(cumulative=cumulative)
                    # A figure of a few inches shows a few hundred points.
                    every = max(1, len(samples) // 400)
                    style = {"color": colour, "linestyle": line, "lw": 1.7, "label": method_words(method)}
                    median_and_range(ax, samples[::every], rows[:, ::every], **style)
            last = column == len(cells) - 1
            reference_line(ax, text.floor, f"{text.floor:.3f}\nentropy rate" if last else "")
            reference_line(ax, text.memoryless, f"{text.memoryless:.3f}\n{memoryless}" if last else "")
            highest = text.unigram if longest < SAMPLES / 10 else text.memoryless + gap * (1.1 if cumulative else 0.45)
            ax.set(ylim=(text.floor - 0.12 * gap, highest + 0.12 * gap), xlim=(0, longest))
            figures.count_axis(ax)
        axes[0, column].set_title(f"{cell.upper()}, {first.settings['hidden']} units")
        axes[1, column].set_xlabel("samples")
    axes[0, 0].set_ylabel("bits, mean from the start")
    axes[1, 0].set_ylabel("bits, recent mean")
    counts = sorted({len(group.records) for group in groups.values()})
    over = " to ".join(map(str, sorted({counts[0], counts[-1]})))
    figure.suptitle(f"{text.name}: {'one seed' if counts == [1] else f'median and range over {over} seeds'}")
    figures.legend(figure, axes.flat)
    return figure


def influence_figure(records: Sequence[Record]) -> Figure:
    """Draw influence balancing: the loss above and θ below, one column per learning rate."""
    methods = influence_curves(records)
    rates = list(next(iter(methods.values())))
    figure, axes = figures.new_figure(2, len(rates), panel=(3.8, 3.1), sharex=True, sharey="row")
    for column, rate in enumerate(rates):
        seeds = methods.get("uoro", {}).get(rate, [])
        truncated = [(name, run) for name, curves in methods.items() if name != "uoro" for run in curves[rate]]
        for ax, entry in zip(axes[:, column], ("losses", "thetas"), strict=True):
            for record in seeds:
                ax.plot(record["time"], loss_curve(record, entry), color=BLUE, lw=0.5, alpha=0.35)
            if seeds:
                label = f"UORO: median of {len(seeds)} seeds (thin: each)" if len(seeds) > 1 else "UORO, one seed"
                shortest = min(len(record["time"]) for record in seeds)
                median = np.median([loss_curve(record, entry)[:shortest] for record in seeds], axis=0)
                ax.plot(seeds[0]["time"][:shortest], median, color=BLUE, lw=1.8, label=label)
            for number, (method, record) in enumerate(truncated):
                color, line = SHADES[number % len(SHADES)], figures.LINES[(number + 1) % len(figures.LINES)]
                style = {"color": color, "linestyle": line, "lw": 1.8, "label": method_words(method)}
                ax.plot(record["time"], loss_curve(record, entry), **style)
        title = f"η = {rate:g} / (1 + √t)"
        axes[0, column].set(xscale="log", xlim=(5, None), yscale="log", ylim=(1e-13, 1e13), title=title)
        axes[1, column].set_yscale("symlog", linthresh=1, linscale=1.2)
        axes[1, column].set(ylim=(-1e4, 1e4), xlabel="sample")
        target = records[0]["target"]
        reference_line(axes[1, column], target, f"θ* = {target:.4f}" if column == len(rates) - 1 else "")
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("θ")
    first = records[0]["influence"]
    figure.suptitle(f"Influence balancing, {first['n']} units, {first['minus']} minus")
    figures.legend(figure, axes[0])
    return figure


def reference_line(ax: Axes, value: float, label: str = "") -> None:
    """Draw a horizontal line, with its label to the right of the axes.

    Args:
        ax: the axes.
        value: the height of the line.
        label: the label.
    """
    ax.axhline(value, color="black", linewidth=1, linestyle=(0, (1, 1)))
    ax.annotate(label, (1.01, value), xycoords=("axes fraction", "data"), va="center", fontsize=8)


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
