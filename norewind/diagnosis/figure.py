"""The figure of a diagnosis."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from norewind.diagnosis.findings import Diagnosis

PANELS = (
    ("variance", "relative variance", "log"),
    ("bias_squared", "relative squared bias", "linear"),
    ("cosine", "cosine to the exact gradient", "linear"),
)
MARKERS = "osD^vP*X<>"


def draw(diagnosis: "Diagnosis", path: Path) -> None:
    """One row of panels against time (for the largest size), and one against size where there are several."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes = sorted({finding.size for finding in diagnosis.findings if finding.size is not None})
    rows = 2 if len(sizes) > 1 else 1
    figure = Figure(figsize=(13, 4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_2d(figure.subplots(rows, 3))
    names = list(dict.fromkeys(finding.method for finding in diagnosis.findings))
    look = {name: {"color": f"C{i % 10}", "marker": MARKERS[i % len(MARKERS)]} for i, name in enumerate(names)}

    largest = sizes[-1] if sizes else None
    along = [finding for finding in diagnosis.findings if finding.size == largest]
    for axis, (what, label, scale) in zip(axes[0], PANELS, strict=True):
        for finding in along:
            ends = [span.end for span in finding.over_time]
            _curve(axis, ends, [getattr(span, what) for span in finding.over_time], finding.method, look, scale)
        _finish(axis, "step" if largest is None else f"step (size {largest})", label, scale)
    if rows == 2:
        for axis, (what, label, scale) in zip(axes[1], PANELS, strict=True):
            for name in names:
                own = [finding for finding in diagnosis.findings if finding.method == name]
                _curve(axis, [f.size for f in own], [getattr(f, what) for f in own], name, look, scale)
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, [str(size) for size in sizes], minor=False)
            _finish(axis, "size of the model", label, scale)
    handles, labels = axes[0, 2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(names)), frameon=False)
    kind = "moving" if diagnosis.moving else "frozen"
    models = diagnosis.findings[0].models
    over = f" over {models} models" if models > 1 else ""
    figure.suptitle(f"Gradient estimates against {diagnosis.reference}, {kind} parameters (bars: standard error{over})")
    figure.savefig(path, dpi=110)


def _curve(axis, xs, values, name, look, scale) -> None:
    ys, errors = [value.value for value in values], [value.error for value in values]
    if scale == "log":
        # A method without noise has no variance to draw.
        kept = [i for i, y in enumerate(ys) if y > 0]
        xs, ys, errors = ([column[i] for i in kept] for column in (xs, ys, errors))
    axis.errorbar(xs, ys, yerr=errors, label=name, markersize=4, linewidth=1.2, capsize=2, **look[name])


def _finish(axis, xlabel, label, scale) -> None:
    axis.set_yscale(scale)
    if scale == "linear":
        axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_xlabel(xlabel)
    axis.set_title(label, fontsize=10)
    axis.grid(alpha=0.3)
