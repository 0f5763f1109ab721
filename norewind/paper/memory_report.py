"""The figure and the table of the runs on long memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from norewind.instruments.figures import count_axis, legend, level, look, new_figure, save
from norewind.instruments.tables import markdown
from norewind.paper.memory import KINDS, SEEDS, Remembering, late_bits, memory_records, repeats, run_memory, tries
from norewind.runs.record import Record

EXACT = {"lru", "elstm"}
"""Cells for which SnAp-1 is exact."""
PUBLISHED = (36, 45)
"""The lengths that KF-RTRL and OK reached after two million samples, with 128 units (Benzing et al., 2019)."""
TITLES = {
    "pause": ("two letters of four, again after 50 to 100 blanks", "bits per letter"),
    "grow": ("sequences that grow by a letter below 0.15 bits", "length reached"),
}


def reproduce_memory(
    out: Path,
    *,
    samples: int | None = None,
    seeds: int = SEEDS,
    jobs: int | None = None,
    ray: str | None = None,
    report_only: bool = False,
) -> str:
    """Make the runs that have no record yet, draw figure.png, and write and return table.md."""
    get = memory_records if report_only else lambda plan, out: run_memory(plan, out, jobs, ray)
    first = get(tries(samples), out)
    again = repeats(first, samples, seeds)
    found = {**first, **get(again, out)}
    best = repeats(first, samples, 2)  # one of each kind, also if there is no other seed
    groups = {run.kind: [] for run in best}
    for run in [*tries(samples), *again]:
        same_rate = any(other.kind == run.kind and other.rate == run.rate for other in best)
        if run.name in found and same_rate:
            groups[run.kind].append(found[run.name])
    if not groups:
        raise SystemExit(f"There are no records of runs on long memory in {out}.")
    draw([groups[kind] for kind in KINDS if kind in groups], out / "figure.png")
    text = table([groups[kind] for kind in KINDS if kind in groups], list(found.values()))
    (out / "table.md").write_text(text, encoding="utf-8")
    return text


def name_of(record: Record) -> str:
    run = Remembering(**record["memory"])
    exact = " (exact)" if run.method == "snap1" and run.cell in EXACT else ""
    return f"{run.method}, {run.cell}-{run.hidden}{exact}"


def reached(record: Record) -> float:
    return record["lengths"][-1] if record["memory"]["task"] == "grow" else late_bits(record)


def table(groups: Sequence[Sequence[Record]], every: Sequence[Record]) -> str:
    """What each method reached, over its seeds."""
    lines = []
    for group in groups:
        run, values = Remembering(**group[0]["memory"]), sorted(map(reached, group))
        diverged = sum(record["problem"] is not None for record in group)
        form = "{:.0f}" if run.task == "grow" else "{:.3f}"
        lines.append(
            [
                TITLES[run.task][0],
                name_of(group[0]),
                f"{run.rate:g}",
                form.format(float(np.median(values))),
                f"{form.format(values[0])} to {form.format(values[-1])}"
                + (f" ({diverged} of {len(group)} diverged)" if diverged else ""),
                f"{min(record['microseconds'] for record in group):.0f}",
            ]
        )
    header = ["task", "method", "rate", "reached (median)", "single runs", "µs a sample"]
    made = sorted({f"norewind {one['norewind']}, JAX {one['jax']}" for one in every})
    problems = sum(one["problem"] is not None for one in every)
    return f"{markdown(header, lines)}\n{len(every)} runs; {problems} diverged. {'; '.join(made)}.\n"


def draw(groups: Sequence[Sequence[Record]], path: Path) -> None:
    figure, axes = new_figure(1, 2, panel=(5.4, 3.8))
    names = list(dict.fromkeys(name_of(group[0]).rpartition("-")[0] for group in groups))
    for ax, task in zip(axes[0], TITLES, strict=True):
        for group in groups:
            if group[0]["memory"]["task"] == task:
                _draw_group(ax, group, names.index(name_of(group[0]).rpartition("-")[0]))
        ax.set(xlabel="samples", ylabel=TITLES[task][1], title=TITLES[task][0], xlim=(0, None))
        count_axis(ax)
    level(axes[0, 0], 2.0, "chance")
    axes[0, 1].set_yscale("log")
    axes[0, 1].yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
    axes[0, 1].yaxis.set_major_formatter(ScalarFormatter())
    axes[0, 1].yaxis.set_minor_formatter(NullFormatter())
    axes[0, 1].axhspan(*PUBLISHED, color="0.85", label="KF-RTRL and OK, 128 units, as published, at 2M samples")
    legend(figure, axes.flat, columns=3)
    save(figure, path)


def _draw_group(ax, group: Sequence[Record], number: int) -> None:
    entry = "lengths" if group[0]["memory"]["task"] == "grow" else "bits"
    shortest = min(len(record[entry]) for record in group)
    rows = np.array([record[entry][:shortest] for record in group])
    style, time = look(number), group[0]["time"][:shortest]
    ax.fill_between(time, rows.min(axis=0), rows.max(axis=0), color=style["color"], alpha=0.15, lw=0)
    ax.plot(time, np.median(rows, axis=0), label=name_of(group[0]), **style)
