"""`norewind reproduce`: from plans to records, and from records to figures, the table and one self-contained page."""

import base64
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from norewind.files import write_atomically
from norewind.instruments.curves import losses
from norewind.instruments.figures import LINES, count_axis, legend, level, median_and_range, new_figure, save
from norewind.instruments.tables import comma_separated, markdown
from norewind.paper import findings
from norewind.paper.balancing import Balancing, influence_records, run_influence
from norewind.paper.groups import RECENT, Group, agreement, grouped, influence_curves, of_paper
from norewind.paper.plans import SAMPLES, TABLE, method_words
from norewind.runs.record import Record, read_record
from norewind.runs.sweep import Plan, records, sweep
from norewind.shown import markdown_as_html
from norewind.tasks import influence_balancing

# What the level without memory is called in a text's figure, how much of the text the page shows, and what it says.
TEXTS: dict[str, tuple[str, int, Callable]] = {
    "brackets": ("memoryless", 72, findings.brackets_findings),
    "anbn": ("without counting", 140, findings.anbn_findings),
}
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


def reproduce(
    plan: Plan,
    influence: Sequence[Balancing],
    out: Path,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    report_only: bool = False,
) -> None:
    """Make the runs that have no record in `out` yet, and write figures, table and page about all that have one.

    Args:
        plan: the runs on text.
        influence: the runs of influence balancing.
        out: the folder for records, figures, table and page.
        jobs: how many runs on text to train at the same time; by default one per core.
        ray: a Ray cluster to train in (see `sweep`).
        report_only: train nothing.
    """
    began = time.perf_counter()
    if threading.current_thread() is threading.main_thread():
        # A request to end is treated as Ctrl-C, also in the background.
        for request in (signal.SIGINT, signal.SIGTERM):
            signal.signal(request, signal.default_int_handler)
    try:
        if influence and not report_only:
            run_influence(influence, out, _say)
        if plan and not report_only:
            sweep(plan, out, jobs=jobs, ray=ray)
    except KeyboardInterrupt:
        _say("interrupted: finished runs and checkpoints are kept, the same command continues from there")
        raise SystemExit(130) from None
    finally:
        wanted = [*(run.name for run in influence), *plan]
        found = {**influence_records(influence, out), **records(plan, out)}
        written = write_report(out, [name for name in wanted if name not in found])
    of_influence, of_text = load_records(out)
    for sentence in findings.influence_findings(of_influence) if of_influence else ():
        _say(f"influence balancing: {sentence}")
    for source in TEXTS:
        chosen = of_paper(grouped(of_text), source)
        if short := findings.too_short(chosen):
            _say(f"{source}: {short}")
        elif source == "anbn" and chosen:
            # The details are on the page.
            for sentence in findings.anbn_findings(chosen):
                _say(f"anbn: {sentence.partition(': ')[0].rstrip('.')}")
    _say(f"done in {time.perf_counter() - began:.0f} s: see {written[-1]}" if written else f"no records in {out}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def write_report(out: Path, missing: Sequence[str] = ()) -> list[Path]:
    """Write figures, table and page about all records in a folder. `missing` names planned runs that have none."""
    influence, runs = load_records(out)
    if not influence and not runs:
        return []
    groups = grouped(runs)
    figures = {"influence": influence_figure(influence)} if influence else {}
    for source, (words, *_) in TEXTS.items():
        if chosen := of_paper(groups, source):
            figures[source] = text_figure(chosen, words)
    kinds = product(figures, ("png", "pdf"))
    written = [save(figures[name], out / "figures" / f"{name}.{kind}") for name, kind in kinds]
    texts = {
        "table.md": markdown(*table(of_paper(groups, "anbn"))),
        "table.csv": comma_separated(*table(of_paper(groups, "anbn"), every_run=True)),
        "index.html": page(influence, runs, out, missing),
    }
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
    return [*written, *(out / name for name in texts)]


def load_records(out: Path) -> tuple[list[Record], list[Record]]:
    """All records in a folder: those of influence balancing, and those of runs on text."""
    found = [record for path in sorted((out / "runs").glob("*.json")) if (record := read_record(path))]
    return [record for record in found if "influence" in record], [record for record in found if "settings" in record]


def text_figure(groups: Mapping[tuple[str, str], Group], memoryless: str) -> Figure:
    """Learning curves on a text: one column per cell, the loss from the start above, the recent one below.

    `memoryless` is what the level without memory is called.
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
    """Influence balancing: the loss above and θ below, one column per learning rate."""
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


def table(groups: Mapping[tuple[str, str], Group], *, every_run: bool = False) -> tuple[list[str], list[list]]:
    """Header and rows of the table on aⁿbⁿ, the paper's value beside ours."""
    header = ["method", "cell", "paper", "ours", "spread", "seeds", "diverged", "95% of runs", "p", "verdict"]
    rows = []
    for (method, cell), paper in TABLE.items():
        group = groups.get((method, cell))
        judged = agreement(group, paper)
        numbers, values, length = ["", "", 0, 0], [], ""
        if group is not None:
            mean, spread = ("" if isnan(value) else f"{value:.4f}" for value in (group.mean, group.spread))
            numbers, values = [mean, spread, len(group.records), group.diverged], group.values
            length = f" ({group.samples:,} samples)" if group.is_short else ""
        p = "" if judged.p is None else f"{judged.p:.2g}"
        verdict = judged.interval, p, judged.verdict + length
        row = [method_words(method), cell.upper(), f"{paper:.3f}", *numbers, *verdict]
        rows.append([*row, " ".join(f"{value:.5f}" for value in values)] if every_run else row)
    return [*header, "runs"] if every_run else header, rows


def page(influence: Sequence[Record], runs: Sequence[Record], out: Path, missing: Sequence[str]) -> str:
    """The page: report.md filled in, as one HTML file with its pictures inside.

    A paragraph for which values are missing is left out, and a section in which no values are left as well.
    """
    folder = resources.files("norewind.paper")
    values = {name: value for name, value in _values(influence, runs, out, missing).items() if value}
    values |= {
        name: "\n".join(f"- {one}" for one in value) for name, value in values.items() if isinstance(value, list)
    }
    kept = []
    for section in re.split(r"^(?=##)", (folder / "report.md").read_text("utf-8"), flags=re.MULTILINE):
        needs = {part: set(re.findall(r"{(\w+)", part)) for part in section.split("\n\n")}
        known = [part for part, names in needs.items() if names <= values.keys()]
        if any(needs[part] for part in known):
            kept += [part.format(**values) for part in known]

    def inside(match: re.Match) -> str:
        return f'src="data:image/png;base64,{base64.b64encode((out / match[1]).read_bytes()).decode()}"'

    body = re.sub(r'src="([^":]+\.png)"', inside, markdown_as_html("\n\n".join(kept)))
    return (folder / "report.html").read_text("utf-8").replace("[page]", body)


def _values(influence: Sequence[Record], runs: Sequence[Record], out: Path, missing: Sequence[str]) -> dict[str, Any]:
    """The values that report.md is filled in with, lists for sentences; those without a record are empty or missing."""
    every, groups, notes = [*influence, *runs], grouped(runs), out / "notes.md"
    made_with = ("norewind", "commit", "jax", "python")
    values: dict[str, Any] = {
        **{name: ", ".join(sorted({record[name][:12] for record in every})) for name in made_with},
        "runs": len(every),
        "hours": f"{sum(record['seconds'] for record in every) / 3600:.2f}",
        "recent": RECENT,
        "all_runs": _run_table(influence, runs),
        "converted": sum("converted" in record for record in every),
        "missing": len(missing),
        "missing_names": ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else ""),
        # Its headings are one level below ours.
        "notes": re.sub("^#", "###", notes.read_text(), flags=re.MULTILINE) if notes.exists() else "",
    }
    if influence:
        first = influence[0]["influence"]
        task = influence_balancing(first["n"], first["minus"])
        last = task.last_wrong_window()
        windows = sorted({1, 10, 100, last, last + 1, 200} - {0})
        sums = ", ".join(f"T = {window}: {float(task.block_influence(window)):.4g}" for window in windows)
        values |= {"task": task, "last_wrong": str(last), "first_right": last + 1, "block_influences": sums}
        values["influence_findings"] = findings.influence_findings(influence)
        values["influence_table"] = findings.influence_table(influence)
    for source, (_, length, judge) in TEXTS.items():
        if chosen := of_paper(groups, source):
            values[source] = text = next(iter(chosen.values())).text()
            values[f"{source}_text"] = text.decode(next(text.chunks(0, length)))
            values[f"{source}_too_short"] = findings.too_short(chosen)
            values[f"{source}_findings"] = judge(chosen)
    if "anbn" in values:
        values["anbn_table"] = markdown(*table(of_paper(groups, "anbn")))
        values["control_findings"] = findings.control_findings(groups)
    return values


def _run_table(influence: Sequence[Record], runs: Sequence[Record]) -> str:
    rows = []
    for record in [*runs, *influence]:
        if "settings" in record:
            s, values = record["settings"], Group([record]).values
            kind = f"{s['source']} {s['cell']} {s['method']}, {s['samples']:g} samples, {s['precision']}"
            loss = f"{values[0]:.5f}" if values else ""
        else:
            s, loss = record["influence"], record["loss"]
            kind = f"influence {s['method']}, η {s['rate']:g}"
        rows.append([f"{kind}, seed {s['seed']}", loss, record["problem"], f"{record['seconds']:.0f}"])
    return markdown(["run", "final loss", "problem", "seconds"], rows)
