"""The figure of a comparison."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from norewind.comparison.report import Comparison

MARKERS = "osD^vP*X<>"


def draw(comparison: "Comparison", path: Path) -> None:
    """The curves (mean over seeds), and the final level against time per character and memory carried."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(13, 5), layout="constrained")
    FigureCanvasAgg(figure)
    curves, costs, memories = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    rows = {row["method"]: row for row in comparison.rows()}
    for i, (method, results) in enumerate(comparison.methods().items()):
        look = {"color": f"C{i % 10}"}
        length = min(len(result.curve) for result in results)
        if length:
            mean = np.mean([result.curve[:length] for result in results], axis=0)
            curves.plot(comparison.chunk * np.arange(1, length + 1), mean, label=method, linewidth=1.3, **look)
        row = rows[method]
        if row["bits_per_character"] is None:
            continue
        marker = {"marker": MARKERS[i % len(MARKERS)], "linestyle": "", **look}
        points = {costs: row["cpu_microseconds_per_character"], memories: max(1, row["carried_bytes"])}
        for axis, x in points.items():
            axis.errorbar(x, row["bits_per_character"], yerr=row["standard_error"], **marker)
    for level, name, style in ((comparison.naive, "without memory", "--"), (comparison.floor, "floor", ":")):
        curves.axhline(level, color="black", linestyle=style, linewidth=1, label=name)
    curves.set_xlabel("characters")
    curves.set_ylabel("bits per character")
    curves.set_yscale("log")
    curves.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    curves.yaxis.set_major_formatter("{x:g}")
    curves.yaxis.set_minor_formatter(NullFormatter())
    handles, labels = curves.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)), frameon=False)
    costs.set_xlabel("CPU µs per character")
    memories.set_xlabel("bytes carried (0 drawn at 1)")
    memories.set_xscale("log")
    costs.set_xlim(left=0)
    for axis in (costs, memories):
        axis.set_ylabel("final bits per character")
    for axis in (curves, costs, memories):
        axis.grid(alpha=0.3)
    figure.suptitle(f"{comparison.task}, {comparison.cell} of {comparison.units}, {comparison.optimizer}", fontsize=11)
    figure.savefig(path, dpi=110)
