"""The figures of the paper's experiments, drawn from records."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from norewind.paper.groups import Group, influence_curves
from norewind.paper.plans import SAMPLES, method_words
from norewind.plotting.figures import LINES, count_axis, legend, level, median_and_range, new_figure
from norewind.sweeps.curves import losses
from norewind.sweeps.record import Record

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


def text_figure(groups: Mapping[tuple[str, str], Group], memoryless: str) -> Figure:
    """Draw learning curves on a text: one column per cell, the mean loss from the start above, the recent one below.

    Args:
        groups: the runs by method and cell.
        memoryless: the label of the level without memory.
    """
    cells = [cell for cell in ("lstm", "gru") if any(cell == of for _, of in groups)]
    figure, axes = new_figure(2, len(cells), panel=(5.2, 3.2), sharex=True, sharey="row")
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
            level(ax, text.floor, f"{text.floor:.3f}\nentropy rate" if last else "")
            level(ax, text.memoryless, f"{text.memoryless:.3f}\n{memoryless}" if last else "")
            highest = text.unigram if longest < SAMPLES / 10 else text.memoryless + gap * (1.1 if cumulative else 0.45)
            ax.set(ylim=(text.floor - 0.12 * gap, highest + 0.12 * gap), xlim=(0, longest))
            count_axis(ax)
        axes[0, column].set_title(f"{cell.upper()}, {first.settings['hidden']} units")
        axes[1, column].set_xlabel("samples")
    axes[0, 0].set_ylabel("bits, mean from the start")
    axes[1, 0].set_ylabel("bits, recent mean")
    counts = sorted({len(group.records) for group in groups.values()})
    over = " to ".join(map(str, sorted({counts[0], counts[-1]})))
    figure.suptitle(f"{text.name}: {'one seed' if counts == [1] else f'median and range over {over} seeds'}")
    legend(figure, axes.flat)
    return figure


def influence_figure(records: Sequence[Record]) -> Figure:
    """Draw influence balancing: the loss above and θ below, one column per learning rate."""
    methods = influence_curves(records)
    rates = list(next(iter(methods.values())))
    figure, axes = new_figure(2, len(rates), panel=(3.8, 3.1), sharex=True, sharey="row")
    for column, rate in enumerate(rates):
        seeds = methods.get("uoro", {}).get(rate, [])
        truncated = [(name, run) for name, curves in methods.items() if name != "uoro" for run in curves[rate]]
        for ax, entry in zip(axes[:, column], ("losses", "thetas"), strict=True):
            for record in seeds:
                ax.plot(record["time"], losses(record, entry), color=BLUE, lw=0.5, alpha=0.35)
            if seeds:
                label = f"UORO: median of {len(seeds)} seeds (thin: each)" if len(seeds) > 1 else "UORO, one seed"
                shortest = min(len(record["time"]) for record in seeds)
                median = np.median([losses(record, entry)[:shortest] for record in seeds], axis=0)
                ax.plot(seeds[0]["time"][:shortest], median, color=BLUE, lw=1.8, label=label)
            for number, (method, record) in enumerate(truncated):
                look = {"color": SHADES[number % len(SHADES)], "linestyle": LINES[(number + 1) % len(LINES)], "lw": 1.8}
                ax.plot(record["time"], losses(record, entry), label=method_words(method), **look)
        title = f"η = {rate:g} / (1 + √t)"
        axes[0, column].set(xscale="log", xlim=(5, None), yscale="log", ylim=(1e-13, 1e13), title=title)
        axes[1, column].set_yscale("symlog", linthresh=1, linscale=1.2)
        axes[1, column].set(ylim=(-1e4, 1e4), xlabel="sample")
        target = records[0]["target"]
        level(axes[1, column], target, f"θ* = {target:.4f}" if column == len(rates) - 1 else "")
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("θ")
    first = records[0]["influence"]
    figure.suptitle(f"Influence balancing, {first['n']} units, {first['minus']} minus")
    legend(figure, axes[0])
    return figure
