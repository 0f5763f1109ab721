"""`norewind reproduce`: from plans to records, and from records to figures, tables and one self-contained page."""

import base64
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from norewind.paper.balancing import Balancing, train_influence
from norewind.paper.groups import RECENT, Agreement, Group, agreement, grouped, influence_curves, of_paper
from norewind.paper.plans import CELLS, SAMPLES, TABLE, method_words
from norewind.paper.plots import influence_figure, text_figure
from norewind.plotting.tables import markdown_as_html
from norewind.plotting.figures import save
from norewind.plotting.tables import comma_separated, markdown
from norewind.storage.files import write_atomically
from norewind.sweeps.record import Record, read_records
from norewind.sweeps.sweep import Plan, records, sweep
from norewind.tasks import influence_balancing

# For each text, the label of the level without memory, and how many characters the page shows.
TEXTS = {"brackets": ("memoryless", 72), "anbn": ("without counting", 140)}
# Influence balancing starts from a loss of about 8: a run below this is converging to the solution.
CONVERGED_LOSS = 0.1
# The columns of the paper's table, and of the table on brackets.
COLUMNS = ("method", "cell", "paper", "ours", "spread", "seeds", "diverged", "95% of runs", "p", "verdict")
BRACKETS_COLUMNS = ("method", "cell", "ours", "spread", "seeds", "diverged", "from memoryless to the optimum")


def reproduce(
    plan: Plan,
    influence: Mapping[str, Balancing],
    out: Path,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    report_only: bool = False,
) -> None:
    """Train the runs that have no record in `out` yet, and write figures, tables and a page about all records.

    Args:
        plan: the runs on text, by name.
        influence: the runs of influence balancing, by name.
        out: the folder for records, figures, tables and page.
        jobs: how many runs to train at the same time; by default one per core.
        ray: a Ray cluster to train in (see `sweep`).
        report_only: train nothing.
    """
    began = time.perf_counter()
    if threading.current_thread() is threading.main_thread():
        # A request to terminate is treated like Ctrl-C, even in the background.
        for request in (signal.SIGINT, signal.SIGTERM):
            signal.signal(request, signal.default_int_handler)
    try:
        if not report_only:
            sweep(influence, out, jobs=jobs, ray=ray, train=train_influence, entry="influence")
            sweep(plan, out, jobs=jobs, ray=ray)
    except KeyboardInterrupt:
        _say("interrupted: finished runs and checkpoints are kept; the same command continues from there")
        raise SystemExit(130) from None
    finally:
        finished = records(influence, out, "influence") | records(plan, out)
        written = write_report(out, [name for name in [*influence, *plan] if name not in finished])
    groups = grouped(read_records(out).values())
    for source in TEXTS:
        for words in (too_short(of_paper(groups, source)), verdicts(of_paper(groups, source))):
            if words:
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
    figures = {"influence": influence_figure(influence)} if influence else {}
    for source, (memoryless, _) in TEXTS.items():
        if chosen := of_paper(groups, source):
            figures[source] = text_figure(chosen, memoryless)
    kinds = product(figures, ("png", "pdf"))
    written = [save(figures[name], out / "figures" / f"{name}.{kind}") for name, kind in kinds]
    rows = group_rows(of_paper(groups, "anbn").values())
    texts = {
        "table.md": table(rows),
        "table.csv": comma_separated([*COLUMNS, "runs"], [[row[name] for name in (*COLUMNS, "runs")] for row in rows]),
        "index.html": page(found, out, missing),
    }
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
    return [*written, *(out / name for name in texts)]


def group_rows(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """Describe each group of runs as a row of a table, with the paper's value if there is one."""
    rows = []
    for group in groups:
        text, paper = group.text(), group.paper
        judged = Agreement("") if paper is None else agreement(group, paper)
        mean, spread = ("" if isnan(value) else f"{value:.4f}" for value in (group.mean, group.spread))
        way = (text.memoryless - group.mean) / (text.memoryless - text.floor)
        row = {
            "change": " and ".join(group.changes),
            "method": method_words(group.method),
            "cell": group.cell.upper(),
            "paper": "" if paper is None else f"{paper:.3f}",
            "ours": mean,
            "spread": spread,
            "seeds": len(group.records),
            "diverged": group.diverged,
            "95% of runs": judged.interval,
            "p": "" if judged.p is None else f"{judged.p:.2g}",
            "verdict": judged.verdict + (f" ({group.samples:,} samples)" if group.is_short else ""),
            "from memoryless to the optimum": f"{way:z.0%}" if group.values else "",
            "runs": " ".join(f"{value:.5f}" for value in group.values),
        }
        rows.append(row)
    return rows


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Format rows as a Markdown table.

    Args:
        rows: cells by column.
        columns: the columns to show; by default those of the paper's table.
    """
    return markdown(columns, [[row[name] for name in columns] for row in rows])


def influence_table(runs: Sequence[Record]) -> str:
    """A table of θ and the loss at the end of influence balancing over all seeds, with a column per learning rate."""

    def cell(runs: Sequence[Record]) -> str:
        if not runs:
            return ""
        losses = sorted(float("inf") if run["loss"] is None else run["loss"] for run in runs)
        thetas = sorted(run["theta"] for run in runs)
        converged = sum(loss < CONVERGED_LOSS for loss in losses)
        return (
            f"θ {_range(thetas[0], thetas[-1], '.5g')}, loss {_range(losses[0], losses[-1], '.2g')} "
            f"({converged} of {len(runs)} below {CONVERGED_LOSS})"
        )

    methods = influence_curves(runs)
    rates = [f"η = {rate:g}" for rate in next(iter(methods.values()))]
    rows = [[method_words(method), *map(cell, curves.values())] for method, curves in methods.items()]
    return markdown([f"after {runs[0]['influence']['samples']:,} samples", *rates], rows)


def _range(low: float, high: float, digits: str) -> str:
    return " to ".join(dict.fromkeys([format(low, digits), format(high, digits)]))


def too_short(groups: Mapping[tuple[str, str], Group]) -> str:
    """A sentence about runs that are too short to draw conclusions from; empty if all are long enough."""
    lengths = sorted({group.samples for group in groups.values() if group.is_short})
    if not lengths:
        return ""
    return (
        f"Too short to conclude: there are runs of {_range(lengths[0], lengths[-1], ',')} samples. The runs of "
        f"`norewind reproduce` without `--quick` are {SAMPLES:,} samples long, with at least three seeds."
    )


def verdicts(groups: Mapping[tuple[str, str], Group]) -> str:
    """Count the cells of the paper's table by their verdict."""
    judged = Counter(agreement(group, group.paper).verdict for group in groups.values() if group.paper)
    return "; ".join(f"{count} of {len(TABLE)} cells: {verdict}" for verdict, count in judged.items())


def crossings(groups: Mapping[tuple[str, str], Group]) -> list[str]:
    """One sentence per cell on when UORO's mean loss from the start falls below that of truncated BPTT."""
    sentences = []
    for cell in CELLS:
        if ("uoro", cell) in groups and ("bptt:4", cell) in groups:
            curves = [groups[method, cell].curves(cumulative=True) for method in ("uoro", "bptt:4")]
            shortest = min(rows.shape[1] for _, rows in curves)
            ours, theirs = (np.median(rows[:, :shortest], axis=0) for _, rows in curves)
            above = np.flatnonzero(~(ours < theirs))
            after = curves[0][0][above[-1]] if len(above) else 0
            when = f"below that of truncated BPTT after {after:,} samples"
            if len(above) and above[-1] == shortest - 1:
                when = "still above that of truncated BPTT at the end"
            sentences.append(f"{cell.upper()}: UORO's mean loss from the start is {when}.")
    return sentences


def run_table(found: Mapping[str, Record]) -> str:
    """A table of all runs, with the final loss and the lowest recent loss along the way."""
    rows = []
    for name, record in found.items():
        final, lowest = record.get("loss"), ""
        if "settings" in record:
            group = Group([record])
            final = "".join(f"{value:.5f}" for value in group.values)
            samples, (recent,) = group.curves(cumulative=False)
            if not np.isnan(recent).all():
                best = int(np.nanargmin(recent))
                lowest = f"{recent[best]:.3f} at {samples[best]:,} samples"
        rows.append([name, final, lowest, record["problem"], f"{record['seconds']:.0f}"])
    return markdown(["run", "final loss", "lowest recent loss", "problem", "seconds"], rows)


def page(found: Mapping[str, Record], out: Path, missing: Sequence[str]) -> str:
    """Fill in report.md, and render it as one HTML file with embedded figures.

    A paragraph whose values are missing is left out, and so is a section without any values.

    Args:
        found: all records, by name.
        out: the folder with the figures and optional notes.md.
        missing: the names of planned runs that have no record.
    """
    folder = resources.files("norewind.paper")
    values = {name: value for name, value in _values(found, out, missing).items() if value}
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


def _values(found: Mapping[str, Record], out: Path, missing: Sequence[str]) -> dict[str, Any]:
    """The values to fill in report.md with; those without a record are empty or missing."""
    groups, notes, every = grouped(found.values()), out / "notes.md", found.values()
    influence = [record for record in every if "influence" in record]
    made_with = ("norewind", "commit", "jax", "python")
    values: dict[str, Any] = {
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
    if influence:
        first = influence[0]["influence"]
        task = influence_balancing(first["n"], first["minus"])
        last = task.last_wrong_window()
        windows = sorted({1, 10, 100, last, last + 1, 200} - {0})
        sums = ", ".join(f"T = {window}: {float(task.block_influence(window)):.4g}" for window in windows)
        values |= {"task": task, "last_wrong": str(last), "first_right": last + 1, "block_influences": sums}
        values["influence_table"] = influence_table(influence)
    for source, (_, length) in TEXTS.items():
        if chosen := of_paper(groups, source):
            values[source] = text = next(iter(chosen.values())).text()
            values[f"{source}_text"] = text.decode(next(text.chunks(0, length)))
            values[f"{source}_too_short"] = too_short(chosen)
            values[f"{source}_table"] = table(
                group_rows(chosen.values()), COLUMNS if source == "anbn" else BRACKETS_COLUMNS
            )
            values[f"{source}_crossings"] = "\n".join(f"- {sentence}" for sentence in crossings(chosen))
            values[f"{source}_verdicts"] = verdicts(chosen)
    if controls := [group for group in groups if group.changes and group.paper]:
        values["control_table"] = table(group_rows(controls), ("change", *COLUMNS))
    return values
