"""The figure at the top of docs/real-data.md: every method on every stream, relative to the best baseline."""

from pathlib import Path
from typing import Any

from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from examples.real_data.plan import KINDS
from norewind.plotting import figures

# Losses of more than this many times the best baseline are drawn at the edge.
WORST = 4.0


def draw(found: list[Any], path: Path) -> None:
    """Draw a line per stream, with auto and single methods by colour and marker, and the baselines in grey.

    Args:
        found: the results on each stream.
        path: the figure; .png, .pdf or .svg.
    """
    figure, axes = figures.new_figure(panel=(10, 0.62 * len(found) + 1.6))
    ax = axes[0, 0]
    ax.axvline(1, color="black", linewidth=1)
    labels = ["auto", *(kind.name.replace("-{}", "") for kind in KINDS)]
    for y, one in enumerate(found):
        best = one.best_baseline.whole
        others = [min(WORST, entry.whole / best) for entry in one.entries if entry.is_baseline]
        ax.plot(others, [y] * len(others), "|", color=figures.GRAY, markersize=13, label="baselines", zorder=1)
        for number, entry in enumerate(one.entries[: len(labels)]):
            if entry.records:
                style = {"markersize": 11 if number == 0 else 7, "markeredgecolor": "white", "zorder": 5 - bool(number)}
                marker, color = figures.MARKERS[number], figures.COLORS[(number + 5) % len(figures.COLORS)]
                x = min(WORST, entry.whole / best)
                # Markers at different heights can be distinguished where they are close together.
                height = y + (0 if number == 0 else 0.11 * (number - 3))
                ax.plot([x], [height], marker, color=color, label=labels[number], clip_on=False, **style)
        words = f"{one.best_baseline.name}: {best:.3g}"
        ax.annotate(words, (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    low = min(0.8, *(0.95 * entry.whole / one.best_baseline.whole for one in found for entry in one.entries))
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator([0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4]))
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xticklabels([*(f"{x:g}" for x in (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3)), "≥ 4"])
    ax.set(xlim=(low, WORST * 1.02), ylim=(len(found) - 0.5, -0.5))
    ax.set_yticks(range(len(found)), [one.stream.title for one in found])
    ax.set_xlabel("loss over the whole stream, relative to the best baseline (named on the right); lower is better")
    figures.legend(figure, [ax], columns=4)
    figures.save(figure, path)
