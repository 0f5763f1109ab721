"""Bias, variance and time of every method, on models that have learned aⁿbⁿ for a while: one figure.

python -m examples.frontier --out results/frontier            # everything; finished methods are kept
python -m examples.frontier --out results/frontier --report   # only the table and the figure, from the records
python -m examples.frontier --quick                           # small, short and too noisy for conclusions
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import Case, measure, use_one_core

# Cells with their numbers of units. In the sparse one, every unit reads four of them.
SUBJECTS = (("plain_lstm", 16), ("sparse elman", 32))
READS = 4
# Families of methods, by color in the figure.
FAMILIES = {
    "truncated": ("bptt", "sliding_bptt:4", "sliding_bptt:16"),
    "masked": ("rflo", "lstm97", "snap1", "snapn:order=2", "snapn:order=3", "rtrl"),
    "sketched": ("sketched:terms=2", "sketched:terms=8"),
    "rank one": ("uoro", "uoro:rank=8", "nobacktrack"),
    "Kronecker": ("kf_rtrl", "kronecker:terms=4"),
    "completed": (
        "unbiased:of=rflo", "unbiased:of=snap1", "unbiased:of=snap1,rank=8", "unbiased:of=lstm97",
        "unbiased:of=snapn,order=2", "unbiased:of=sketched,terms=2", "unbiased:of=sketched,terms=8",
    ),
    "shrunk": ("shrunk:of=snap1", "shrunk:of=snap1,carries=8"),
    "zeroth order": ("diffusion", "forward_gradient", "evolution"),
}  # fmt: skip


class Scale(NamedTuple):
    """The length of the study."""

    subjects: Sequence[tuple[str, int]]
    samples: int
    keys: int
    pretraining: int
    rounds: int


FULL = Scale(SUBJECTS, samples=300, keys=16, pretraining=10_000, rounds=5)
QUICK = Scale((("plain_lstm", 4), ("sparse elman", 8)), samples=50, keys=4, pretraining=200, rounds=1)
RATE = 3e-3
# What is drawn at the edge of the figure: a bias or a variance up to this.
EDGE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.frontier", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/frontier"))
    parser.add_argument("--report", action="store_true", help="only write the table and the figure")
    parser.add_argument("--quick", action="store_true", help="two small models and a short stream")
    arguments = parser.parse_args()
    use_one_core()
    from norewind.sweeps.record import read_records, versions, write_record

    scale = QUICK if arguments.quick else FULL
    for cell, hidden in () if arguments.report else scale.subjects:
        # One family after the other, so that an interrupted study loses little.
        for family in FAMILIES.values():
            methods = [method for method in family if is_defined(method, cell)]
            missing = [m for m in methods if f"{cell}-{hidden}/{m}" not in read_records(arguments.out)]
            for row in study(cell, hidden, missing, scale) if missing else ():
                write_record(arguments.out, f"{cell}-{hidden}/{row['method']}", row | {"versions": versions()})
    records = list(read_records(arguments.out).values())
    (arguments.out / "table.md").write_text(table(records, scale.subjects))
    figure(records, scale.subjects, arguments.out / "frontier.png")


def is_defined(method: str, cell: str) -> bool:
    """Whether a method is defined for a cell, and differs from all others there.

    Args:
        method: the name of the method.
        cell: the name of the cell.
    """
    inner = method.partition("of=")[2] or method
    if inner.startswith("lstm97"):
        return cell == "plain_lstm"
    if inner.startswith("snapn"):
        return cell == "sparse elman"
    # A sparse layer is not affine in the sense of the Kronecker methods.
    return inner not in FAMILIES["Kronecker"] or cell != "sparse elman"


def study(cell: str, hidden: int, methods: Sequence[str], scale: Scale) -> list[dict[str, Any]]:
    """Measure the methods on one model that was trained by RTRL.

    Args:
        cell: the name of the cell.
        hidden: the number of its units.
        methods: the names of the methods.
        scale: the length of the study.

    Returns:
        One record per method.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    import norewind

    task = norewind.tasks.anbn(1, 32)
    model = norewind.registry.cell(cell.removeprefix("sparse "))(3, hidden, 3)
    if cell.startswith("sparse"):
        order = np.random.default_rng(0).permuted(np.tile(np.arange(hidden), (hidden, 1)), axis=1)
        model = norewind.cells.sparse(model, np.eye(hidden, dtype=bool) | (order < READS - 1))
    loss = norewind.losses.cross_entropy
    learner = norewind.online(norewind.rtrl(model.transition, loss), norewind.adam(RATE))
    run = learner.init(model.init(jax.random.key(0)), model.initial_state(), jax.random.key(1))
    xs, targets = (np.asarray(part) for part in next(task.pairs(0, scale.pretraining + scale.samples)))
    run, _, _ = learner.scan(run, xs[: scale.pretraining], targets[: scale.pretraining])
    stream = xs[scale.pretraining :], targets[scale.pretraining :]

    report = norewind.diagnose(methods, (model.transition, loss, run.params, run.state), stream, keys=scale.keys)
    cases = []
    for name in methods:
        estimator = norewind.registry.parse_method(name).make(model.transition, loss, jnp.array(0))
        carry = estimator.init(run.params, run.state, jax.random.key(2))
        cases.append(Case(name, _timed(estimator, run.params, run.state, carry, stream), scale.samples))
    times = {row["case"]: row["us"] for row in measure(cases, rounds=scale.rounds)}
    return [
        {
            "method": finding.method,
            "cell": cell,
            "hidden": hidden,
            "settings": {
                "samples": scale.samples,
                "keys": finding.keys,
                "pretraining": scale.pretraining,
                "rate": RATE,
            },
            "microseconds": times[finding.method],
            "bias_squared": finding.bias_squared,
            "variance": finding.variance,
            "cosine": finding.cosine,
            "by_leaf": {leaf: part._asdict() for leaf, part in finding.by_leaf.items()},
            "reported": finding.reported,
        }
        for finding in report.findings
    ]


def _timed(estimator, params, state, carry, stream):
    """A call that runs the estimator along the stream, with frozen parameters, and returns when it is finished."""
    import jax

    def body(loop, sample):
        state, carry, estimate = estimator.step(params, *loop, *sample)
        return (state, carry), jax.tree.map(lambda leaf: leaf.ravel()[0], estimate.grad)

    compiled = jax.jit(lambda state, carry: jax.lax.scan(body, (state, carry), stream))
    return lambda: jax.block_until_ready(compiled(state, carry))


def table(records: Sequence[dict[str, Any]], subjects: Sequence[tuple[str, int]]) -> str:
    """Return a Markdown table: the methods of each model, fastest first.

    Args:
        records: the records of the study.
        subjects: the models.
    """
    from norewind.analysis.findings import Value
    from norewind.plotting.tables import markdown

    rows = []
    for cell, hidden in subjects:
        of_model = [record for record in records if (record["cell"], record["hidden"]) == (cell, hidden)]
        for record in sorted(of_model, key=lambda record: record["microseconds"]):
            bias, variance, cosine = (Value(*record[name]) for name in ("bias_squared", "variance", "cosine"))
            time = f"{record['microseconds']:.1f}"
            rows.append([f"{cell} {hidden}", record["method"], time, bias, variance, cosine])
    return markdown(["model", "method", "CPU µs per sample", "bias²", "variance", "cosine"], rows) + "\n"


def figure(records: Sequence[dict[str, Any]], subjects: Sequence[tuple[str, int]], path: Path) -> None:
    """Draw variance against bias, and the squared error against time, for every model.

    Args:
        records: the records of the study.
        subjects: the models to draw.
        path: the figure.
    """
    from norewind.plotting import figures

    models = [s for s in subjects if any((r["cell"], r["hidden"]) == s for r in records)]
    drawing, axes = figures.new_figure(len(models), 2, panel=(6.4, 5.2))
    labels = []
    for (cell, hidden), (trade, cost) in zip(models, axes, strict=True):
        points = [record for record in records if (record["cell"], record["hidden"]) == (cell, hidden)]
        trade.set_title(f"{cell}, {hidden} units: what a method pays in bias and in noise", fontsize=10)
        cost.set_title(f"{cell}, {hidden} units: what a small error costs in time", fontsize=10)
        labels += [(trade, _draw_trade(trade, points)), (cost, _draw_cost(cost, points))]
    figures.legend(drawing, axes.flat, columns=len(FAMILIES))
    drawing.suptitle("Gradients on a model that has learned aⁿbⁿ, relative to ‖exact gradient‖²", fontsize=11)
    # The layout must be final before labels can be placed.
    drawing.draw_without_rendering()
    for ax, of_axes in labels:
        _place_labels(ax, of_axes)
    figures.save(drawing, path)


# Where a label may stand, in points from the point that it names: the nearest first.
OFFSETS = [(x, sign * y) for y in range(0, 60, 5) for sign in (-1, 1) for x in (8 + y / 2, -8 - y / 2)]
# A point of the figure: x, y and the record of its method.
Point = tuple[float, float, dict[str, Any]]


def _in_order(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records in the order of the families, which is that of the legend."""
    order = [method for family in FAMILIES.values() for method in family]
    return sorted(points, key=lambda record: order.index(record["method"]))


def _draw_trade(ax: Any, points: Sequence[dict[str, Any]]) -> list[Point]:
    """Draw variance against bias, with methods without bias or noise at the edges."""
    drawn = []
    for record in _in_order(points):
        (bias, resolved), variance = bias_of(record), max(record["variance"][0], EDGE)
        drawn.append((max(bias, EDGE), variance, record))
        ax.plot(*drawn[-1][:2], **_style(record["method"]), fillstyle="full" if resolved else "none")
    ax.axvspan(EDGE / 2, EDGE * 1.6, color="0.93", zorder=0)
    ax.axhspan(EDGE / 2, EDGE * 1.6, color="0.93", zorder=0)
    xs, ys, _ = zip(*drawn, strict=True)
    ax.set(xscale="log", yscale="log", xlim=(EDGE / 2, 3 * max(xs)), ylim=(EDGE / 2, 3 * max(ys)))
    ax.set(xlabel="bias² (hollow: at most this)", ylabel="variance")
    _name_edge(ax.xaxis)
    _name_edge(ax.yaxis)
    return drawn


def _draw_cost(ax: Any, points: Sequence[dict[str, Any]]) -> list[Point]:
    """Draw the squared error of one step against time, and the frontier: no method is both faster and better."""
    from matplotlib.ticker import LogLocator, NullFormatter

    from norewind.plotting import figures

    drawn = []
    for record in _in_order(points):
        bias, resolved = bias_of(record)
        drawn.append((record["microseconds"], max(bias * resolved + record["variance"][0], EDGE), record))
        ax.plot(*drawn[-1][:2], **_style(record["method"]))
    best, front = float("inf"), []
    for time, error, _ in sorted(drawn, key=lambda point: point[:2]):
        if error < best:
            front += [(time, best), (time, error)]
            best = error
    xs, ys = zip(*front[1:], strict=True)
    ax.plot(xs, ys, color=figures.GRAY, linewidth=1, zorder=0)
    ax.axhspan(EDGE / 2, EDGE * 1.6, color="0.93", zorder=0)
    ax.set(xscale="log", yscale="log", ylim=(EDGE / 2, None))
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set(xlabel="CPU µs per sample", ylabel="bias² + variance of one step")
    _name_edge(ax.yaxis)
    return drawn


def _name_edge(axis: Any) -> None:
    """Label the ticks of a logarithmic axis, of which the lowest stands for everything below it."""
    low, high = axis.get_view_interval()
    exponents = [e for e in range(-4, 7) if low <= 10.0**e <= high]
    axis.set_ticks([10.0**e for e in exponents], ["0" if 10.0**e <= EDGE else f"$10^{{{e}}}$" for e in exponents])


def _place_labels(ax: Any, points: Sequence[Point]) -> None:
    """Label every point near it, where no label or point is yet if there is such a place."""
    from matplotlib.patheffects import withStroke

    taken = []
    for x, y, _ in points:
        at = ax.transData.transform((x, y))
        taken.append((*(at - 4), *(at + 4)))
    inside = ax.get_window_extent()
    # From top to bottom, so that the labels of a column keep its order.
    for x, y, record in sorted(points, key=lambda point: -point[1]):
        best = None
        for dx, dy in OFFSETS:
            note = ax.annotate(
                _short(record["method"]), (x, y), (dx, dy), textcoords="offset points", fontsize=7.5, va="center",
                ha="left" if dx > 0 else "right", color=_style(record["method"])["color"],
                arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": "0.6"} if abs(dy) > 5 else None,
            )  # fmt: skip
            note.set_path_effects([withStroke(linewidth=2, foreground="white")])
            # Otherwise labels that are tried would change the layout.
            note.set_in_layout(False)
            box = _box_of(note)
            hidden = sum(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)
            outside = box[0] < inside.x0 or box[2] > inside.x1 or box[1] < inside.y0 or box[3] > inside.y1
            cost = hidden + 2 * outside
            if best is None or cost < best[0]:
                if best is not None:
                    best[1].remove()
                best = cost, note, box
            else:
                note.remove()
            if cost == 0:
                break
        if best is not None:
            taken.append(tuple(best[2]))


def bias_of(record: dict[str, Any]) -> tuple[float, bool]:
    """Return the squared bias of a method, or a bound where its noise hides it, and whether it is not a bound.

    Args:
        record: the record of the method.

    >>> bias_of({"method": "uoro", "bias_squared": (0.2, 0.3)}), bias_of({"method": "dni", "bias_squared": (0.1, 0.3)})
    ((0.0, True), (0.7, False))
    """
    value, error = record["bias_squared"]
    if is_unbiased(record):
        return 0.0, True
    return (value, True) if value > 2 * error else (max(value, 0) + 2 * error, False)


def is_unbiased(record: dict[str, Any]) -> bool:
    """Whether the method of a record is proved to be unbiased, so that its measured bias is only scatter."""
    return record["method"].split(":")[0] in ("unbiased", "uoro", "nobacktrack", "kf_rtrl", "kronecker", "rtrl")


def _style(method: str) -> dict[str, Any]:
    from norewind.plotting import figures

    number, family = next((i, name) for i, (name, group) in enumerate(FAMILIES.items()) if method in group)
    marker = figures.MARKERS[number % len(figures.MARKERS)]
    return {"color": figures.COLORS[number], "marker": marker, "linestyle": "", "label": family, "markersize": 7}


def _box_of(note: Any) -> Any:
    """The corners of the text of an annotation, without its line to the point."""
    from matplotlib.text import Text

    note.update_positions(note.figure.canvas.get_renderer())
    return Text.get_window_extent(note).padded(1.5).extents


def _short(method: str) -> str:
    """The label of a method: unbiased:of=snap1,rank=8 is U(snap1) ×8."""
    name, _, rest = method.partition(":")
    options = dict(part.split("=") for part in rest.split(",") if "=" in part)
    inner = options.get("of", name) + "".join(f" {options[key]}" for key in ("terms", "order") if key in options)
    inner = {"unbiased": f"U({inner})", "shrunk": f"S({inner})", "sliding_bptt": f"bptt {rest}"}.get(name, inner)
    return inner + "".join(f" ×{options[key]}" for key in ("rank", "carries") if key in options)


if __name__ == "__main__":
    main()
