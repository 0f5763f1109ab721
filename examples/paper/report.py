"""From plans to records, and from records to figures, tables and one self-contained page."""

import base64
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from examples.paper.balancing import InfluenceRun, influence_curves, train_influence
from examples.paper.figures import influence_figure, text_figure
from examples.paper.influence import InfluenceBalancing
from examples.paper.text_runs import RECENT, SeedGroup, agreement, as_range, grouped, method_words, paper_runs
from norewind.plotting import figures
from norewind.plotting.tables import comma_separated, markdown, markdown_as_html
from norewind.storage.files import write_atomically
from norewind.sweeps.record import Record, read_records
from norewind.sweeps.sweep import SweepPlan, finished_records, sweep

# The columns of the paper's table, and of the table on brackets.
COLUMNS = ("method", "cell", "paper", "ours", "spread", "seeds", "diverged", "95% of runs", "p", "verdict")
BRACKETS_COLUMNS = ("method", "cell", "ours", "spread", "seeds", "diverged", "from memoryless to the optimum")
# For each text: the label of the level without memory, how many characters the page shows, the columns of its table.
TEXTS = {"brackets": ("memoryless", 72, BRACKETS_COLUMNS), "anbn": ("without counting", 140, COLUMNS)}
# Influence balancing starts from a loss of about 8: a run below this is converging to the solution.
CONVERGED_LOSS = 0.1


def reproduce(
    plan: SweepPlan, influence: Mapping[str, InfluenceRun], out: Path, *, report_only: bool = False, **processes: Any
) -> None:
    """Train the runs that have no record in `out` yet, and write figures, tables and a page about all records.

    Args:
        plan: the runs on text, by name.
        influence: the runs of influence balancing, by name.
        out: the folder for records, figures, tables and page.
        report_only: train nothing.
        processes: how many runs to train at the same time, and where (`jobs` and `ray` of `sweep`).
    """
    began = time.perf_counter()
    if threading.current_thread() is threading.main_thread():
        # A request to terminate is treated like Ctrl-C, even in the background.
        for request in (signal.SIGINT, signal.SIGTERM):
            signal.signal(request, signal.default_int_handler)
    try:
        if not report_only:
            sweep(influence, out, train=train_influence, entry="influence", **processes)
            sweep(plan, out, **processes)
    except KeyboardInterrupt:
        _say("interrupted: finished runs and checkpoints are kept; the same command continues from there")
        raise SystemExit(130) from None
    finally:
        finished = finished_records(influence, out, "influence") | finished_records(plan, out)
        written = write_report(out, [name for name in [*influence, *plan] if name not in finished])
    groups = grouped(read_records(out).values())
    for source in TEXTS:
        runs = paper_runs(groups, source)
        for words in filter(None, (runs.too_short(), runs.verdicts())):
            _say(f"{source}: {words}")
    _say(f"done in {time.perf_counter() - began:.0f} s: see {written[-1]}" if written else f"no records in {out}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def write_report(out: Path, missing: Sequence[str] = ()) -> list[Path]:
    """Write figures, tables and a page about all records in a folder.

    Args:
        out: the folder.
        missing: the names of planned runs that have no record, for the page.

    Returns:
        The files, the page last; none if there are no records.
    """
    found = read_records(out)
    if not found:
        return []
    groups, influence = grouped(found.values()), [one for one in found.values() if "influence" in one]
    drawn, values = {}, _about_all(found, out, missing)
    if influence:
        drawn["influence"] = influence_figure(influence)
        values |= _about_influence(influence)
    for source, (memoryless, length, columns) in TEXTS.items():
        if chosen := paper_runs(groups, source):
            drawn[source] = text_figure(chosen, memoryless)
            values[source] = text = next(iter(chosen.values())).text()
            values[f"{source}_text"] = text.decode(next(text.chunks(0, length)))
            values[f"{source}_too_short"] = chosen.too_short()
            values[f"{source}_table"] = markdown(columns, map(table_row, chosen.values()))
            values[f"{source}_crossings"] = "\n".join(f"- {sentence}" for sentence in chosen.crossings())
            values[f"{source}_verdicts"] = chosen.verdicts()
    if controls := [group for group in groups if group.changes and group.paper]:
        values["control_table"] = markdown(("change", *COLUMNS), map(table_row, controls))
    kinds = product(drawn, ("png", "pdf"))
    written = [figures.save(drawn[name], out / "figures" / f"{name}.{kind}") for name, kind in kinds]
    rows = [table_row(group) for group in paper_runs(groups, "anbn").values()]
    texts = {
        "table.md": markdown(COLUMNS, rows),
        "table.csv": comma_separated([*COLUMNS, "runs"], rows),
        "index.html": page(values, out),
    }
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
    return [*written, *(out / name for name in texts)]


def table_row(group: SeedGroup) -> dict[str, Any]:
    """Describe a group of runs as a row of a table, with the paper's value if there is one."""
    text, paper = group.text(), group.paper
    judged = agreement(group, paper)
    mean, spread = ("" if isnan(value) else f"{value:.4f}" for value in (group.mean, group.spread))
    way = (text.memoryless - group.mean) / (text.memoryless - text.floor)
    return {
        "change": " and ".join(group.changes),
        "method": method_words(group.method),
        "cell": group.cell.upper(),
        "paper": "" if paper is None else f"{paper:.3f}",
        "ours": mean,
        "spread": spread,
        "seeds": len(group.records),
        "diverged": group.diverged,
        "95% of runs": "" if judged.low is None else f"{judged.low:.3f} to {judged.high:.3f}",
        "p": "" if judged.p is None else f"{judged.p:.2g}",
        "verdict": judged.verdict + (f" ({group.samples:,} samples)" if group.is_short else ""),
        "from memoryless to the optimum": f"{way:z.0%}" if group.values else "",
        "runs": " ".join(f"{value:.5f}" for value in group.values),
    }


def influence_table(runs: Sequence[Record]) -> str:
    """A table of θ and the loss at the end of influence balancing over all seeds, with a column per learning rate."""

    def cell(runs: Sequence[Record]) -> str:
        if not runs:
            return ""
        losses = sorted(float("inf") if run["loss"] is None else run["loss"] for run in runs)
        thetas = sorted(run["theta"] for run in runs)
        converged = sum(loss < CONVERGED_LOSS for loss in losses)
        return (
            f"θ {as_range(thetas[0], thetas[-1], '.5g')}, loss {as_range(losses[0], losses[-1], '.2g')} "
            f"({converged} of {len(runs)} below {CONVERGED_LOSS})"
        )

    methods = influence_curves(runs)
    rates = [f"η = {rate:g}" for rate in next(iter(methods.values()))]
    rows = [[method_words(method), *map(cell, curves.values())] for method, curves in methods.items()]
    return markdown([f"after {runs[0]['influence']['samples']:,} samples", *rates], rows)


def run_table(found: Mapping[str, Record]) -> str:
    """A table of all runs, with the final loss and the lowest recent loss along the way."""
    rows = []
    for name, record in found.items():
        final, lowest = record.get("loss"), ""
        if "settings" in record:
            group = SeedGroup([record])
            final = "".join(f"{value:.5f}" for value in group.values)
            samples, (recent,) = group.curves(cumulative=False)
            if not np.isnan(recent).all():
                best = int(np.nanargmin(recent))
                lowest = f"{recent[best]:.3f} at {samples[best]:,} samples"
        rows.append([name, final, lowest, record["problem"], f"{record['seconds']:.0f}"])
    return markdown(["run", "final loss", "lowest recent loss", "problem", "seconds"], rows)


def page(values: Mapping[str, Any], out: Path) -> str:
    """Fill in report.md, and render it as one HTML file with embedded figures.

    A paragraph whose values are missing or empty is left out, and so is a section without any values.

    Args:
        values: the values by their names in report.md.
        out: the folder with the figures.
    """
    folder = Path(__file__).parent
    values = {name: value for name, value in values.items() if value}
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


def _about_all(found: Mapping[str, Record], out: Path, missing: Sequence[str]) -> dict[str, Any]:
    """The values for report.md that are about all runs together."""
    notes, every = out / "notes.md", found.values()
    made_with = ("norewind", "commit", "jax", "python")
    return {
        **{name: ", ".join(sorted({record[name][:12] for record in every})) for name in made_with},
        "runs": len(every),
        "hours": f"{sum(record['seconds'] for record in every) / 3600:.2f}",
        "recent": RECENT,
        "all_runs": run_table(found),
        "missing": len(missing),
        "missing_names": ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else ""),
        # Headings become subsections of "Notes".
        "notes": re.sub("^#", "###", notes.read_text(), flags=re.MULTILINE) if notes.exists() else "",
    }


def _about_influence(runs: Sequence[Record]) -> dict[str, Any]:
    """The values for report.md that are about influence balancing."""
    first = runs[0]["influence"]
    task = InfluenceBalancing(first["n"], first["minus"])
    last = task.last_wrong_window()
    windows = sorted({1, 10, 100, last, last + 1, 200} - {0})
    return {
        "task": task,
        "last_wrong": str(last),
        "first_right": last + 1,
        "block_influences": ", ".join(f"T = {window}: {float(task.block_influence(window)):.4g}" for window in windows),
        "influence_table": influence_table(runs),
    }
