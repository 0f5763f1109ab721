"""Bias, variance and time of every method, on models that have learned aⁿbⁿ for a while: one figure.

python -m examples.frontier --out results/frontier            # everything; finished models are kept
python -m examples.frontier --out results/frontier --report   # only the table and the figure, from the records
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import Case, measure, use_one_core

# Cells with their numbers of units.
SUBJECTS = (("elman", 16), ("plain_lstm", 16), ("elman", 32), ("elman", 64))
# Families of methods, by color in the figure.
FAMILIES = {
    "truncated": ("bptt", "rtrl"),
    "traces": ("rflo", "snap1", "lstm97"),
    "sketched": ("sketched:terms=2", "sketched:terms=8"),
    "rank one": ("uoro", "uoro:rank=8", "nobacktrack"),
    "Kronecker": ("kf_rtrl", "kronecker:terms=4"),
    "completed": (
        "unbiased:of=rflo", "unbiased:of=snap1", "unbiased:of=snap1,rank=8", "unbiased:of=lstm97",
        "unbiased:of=sketched,terms=2", "unbiased:of=sketched,terms=8",
    ),
    "shrunk": ("shrunk:of=snap1",),
}  # fmt: skip
ONLY_LSTM = ("lstm97", "unbiased:of=lstm97")
SAMPLES, KEYS, PRETRAINING, ROUNDS = 500, 20, 10_000, 5
RATE = 3e-3
# What is drawn at the edge of the figure: a bias or a variance up to this.
EDGE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.frontier", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/frontier"))
    parser.add_argument("--report", action="store_true", help="only write the table and the figure")
    arguments = parser.parse_args()
    use_one_core()
    from norewind.sweeps.record import read_records, versions, write_record

    for cell, hidden in () if arguments.report else SUBJECTS:
        # One family after the other, so that an interrupted study loses little.
        for family in FAMILIES.values():
            methods = [method for method in family if method not in ONLY_LSTM or cell == "plain_lstm"]
            missing = [m for m in methods if f"{cell}-{hidden}/{m}" not in read_records(arguments.out)]
            for row in study(cell, hidden, missing) if missing else ():
                write_record(arguments.out, f"{cell}-{hidden}/{row['method']}", row | {"versions": versions()})
    records = list(read_records(arguments.out).values())
    (arguments.out / "table.md").write_text(table(records))
    figure(records, arguments.out / "frontier.png")


def study(cell: str, hidden: int, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Measure the methods on one model that was trained by RTRL.

    Args:
        cell: the name of the cell.
        hidden: the number of its units.
        methods: the names of the methods.

    Returns:
        One record per method.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    import norewind

    task = norewind.tasks.anbn(1, 32)
    model = norewind.registry.cell(cell)(3, hidden, 3)
    loss = norewind.losses.cross_entropy
    learner = norewind.online(norewind.rtrl(model.transition, loss), norewind.adam(RATE))
    run = learner.init(model.init(jax.random.key(0)), model.initial_state(), jax.random.key(1))
    xs, targets = (np.asarray(part) for part in next(task.pairs(0, PRETRAINING + SAMPLES)))
    run, _, _ = learner.scan(run, xs[:PRETRAINING], targets[:PRETRAINING])
    stream = xs[PRETRAINING:], targets[PRETRAINING:]

    report = norewind.diagnose(methods, (model.transition, loss, run.params, run.state), stream, keys=KEYS)
    cases = []
    for name in methods:
        estimator = norewind.registry.parse_method(name).make(model.transition, loss, jnp.array(0))
        carry = estimator.init(run.params, run.state, jax.random.key(2))
        cases.append(Case(name, _timed(estimator, run.params, run.state, carry, stream), SAMPLES))
    times = {row["case"]: row["us"] for row in measure(cases, rounds=ROUNDS)}
    return [
        {
            "method": finding.method,
            "cell": cell,
            "hidden": hidden,
            "settings": {"samples": SAMPLES, "keys": finding.keys, "pretraining": PRETRAINING, "rate": RATE},
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


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table: the methods of each model, fastest first.

    Args:
        records: the records of the study.
    """
    from norewind.analysis.findings import Value
    from norewind.plotting.tables import markdown

    rows = []
    for cell, hidden in SUBJECTS:
        of_model = [record for record in records if (record["cell"], record["hidden"]) == (cell, hidden)]
        for record in sorted(of_model, key=lambda record: record["microseconds"]):
            bias, variance, cosine = (Value(*record[name]) for name in ("bias_squared", "variance", "cosine"))
            time = f"{record['microseconds']:.1f}"
            rows.append([f"{cell} {hidden}", record["method"], time, bias, variance, cosine])
    return markdown(["model", "method", "CPU µs per sample", "bias²", "variance", "cosine"], rows) + "\n"


def figure(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw variance against bias, and the squared error against time, for every model.

    Args:
        records: the records of the study.
        path: the figure.
    """
    from norewind.plotting import figures

    models = [s for s in SUBJECTS[:3] if any((r["cell"], r["hidden"]) == s for r in records)]
    drawing, axes = figures.new_figure(2, len(models), panel=(5.6, 4.6))
    for column, (cell, hidden) in enumerate(models):
        points = [record for record in records if (record["cell"], record["hidden"]) == (cell, hidden)]
        trade, cost = axes[0][column], axes[1][column]
        for record in points:
            bias = max(record["bias_squared"][0], EDGE) if not is_unbiased(record) else EDGE
            variance = max(record["variance"][0], EDGE)
            style = _style(record["method"])
            trade.plot(bias, variance, **style)
            # Methods without noise stand in one line, so their labels would overlap.
            tilt = 60 if variance <= EDGE else 0
            trade.annotate(_short(record["method"]), (bias, variance), rotation=tilt, **_beside(style))
            total = bias * (bias > EDGE) + variance * (variance > EDGE)
            cost.plot(record["microseconds"], max(total, EDGE), **style)
            cost.annotate(_short(record["method"]), (record["microseconds"], max(total, EDGE)), **_beside(style))
        best, front = float("inf"), []
        for record in sorted(points, key=lambda record: record["microseconds"]):
            bias, variance = record["bias_squared"][0] * (not is_unbiased(record)), record["variance"][0]
            if bias + variance < best:
                front += [(record["microseconds"], min(best, 1e3)), (record["microseconds"], bias + variance)]
                best = bias + variance
        xs, ys = zip(*front[1:], strict=True)
        cost.plot(xs, [max(y, EDGE) for y in ys], color=figures.GRAY, linewidth=1, zorder=0)
        trade.axvspan(EDGE / 2, EDGE * 1.6, color="0.93", zorder=0)
        trade.axhspan(EDGE / 2, EDGE * 1.6, color="0.93", zorder=0)
        trade.set(xscale="log", yscale="log", xlabel="bias² (left edge: none)", ylabel="variance (lower edge: none)")
        trade.set(xlim=(EDGE / 2, None), ylim=(EDGE / 2, None))
        trade.set_title(f"{cell}, {hidden} units", fontsize=11)
        cost.set(xscale="log", yscale="log", xlabel="CPU µs per sample", ylabel="bias² + variance of one step")
        cost.set(ylim=(EDGE / 2, None))
    figures.legend(drawing, axes.flat, columns=len(FAMILIES))
    drawing.suptitle("Every method on models that have learned aⁿbⁿ, relative to ‖exact gradient‖²")
    figures.save(drawing, path)


def is_unbiased(record: dict[str, Any]) -> bool:
    """Whether the method of a record is proved to be unbiased, so that its measured bias is only scatter."""
    return record["method"].split(":")[0] in ("unbiased", "uoro", "nobacktrack", "kf_rtrl", "kronecker", "rtrl")


def _style(method: str) -> dict[str, Any]:
    from norewind.plotting import figures

    number, family = next((i, name) for i, (name, group) in enumerate(FAMILIES.items()) if method in group)
    marker = figures.MARKERS[number % len(figures.MARKERS)]
    return {"color": figures.COLORS[number], "marker": marker, "linestyle": "", "label": family, "markersize": 7}


def _beside(style: dict[str, Any]) -> dict[str, Any]:
    return {"xytext": (5, 4), "textcoords": "offset points", "fontsize": 7.5, "color": style["color"]}


def _short(method: str) -> str:
    """The label of a method: unbiased:of=snap1,rank=8 is U(snap1) ×8."""
    name, _, rest = method.partition(":")
    options = dict(part.split("=") for part in rest.split(",") if part)
    inner = options.get("of", name)
    inner += f" {options['terms']}" if "terms" in options else ""
    inner = {"unbiased": f"U({inner})", "shrunk": f"S({inner})"}.get(name, inner)
    return inner + (f" ×{options['rank']}" if "rank" in options else "")


if __name__ == "__main__":
    main()
