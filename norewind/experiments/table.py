"""The table on aⁿbⁿ, the paper's value beside ours, as Markdown and CSV."""

import csv
import io
from collections.abc import Sequence
from math import isnan, sqrt

from norewind.experiments.groups import Group, anbn_text_noise, find
from norewind.experiments.paper import TABLE, method_name

CELLS = ("lstm", "gru")
ROWS = tuple(dict.fromkeys((method, memory) for method, memory, _ in TABLE))


def agreement(group: Group, paper: float) -> str:
    """Whether the paper's single run could be one more of ours: `agrees`, `better`, `worse` or `open`.

    It agrees when it is at most two standard deviations of (one run − our mean) away,
    2 σ √(1 + 1/n), with σ over our n seeds but not less than what the text alone
    makes of it, plus half a digit of the paper's rounding. `better` and `worse` are
    said of us. `open` is a cell with fewer than two runs that converged.
    """
    if len(group.values) < 2:
        return "open"
    if abs(paper - group.mean) <= tolerance(group):
        return "agrees"
    return "better" if group.mean < paper else "worse"


def tolerance(group: Group) -> float:
    """How far the paper's value may be from our mean."""
    k, l = group.setting["task_arguments"]  # noqa: E741 (the paper's letters)
    noise = anbn_text_noise(k, l, group.records[0]["recent_characters"])
    return 2 * max(group.spread, noise) * sqrt(1 + 1 / len(group.values)) + 0.0005


def markdown(groups: Sequence[Group]) -> str:
    """The table, with a mark where the paper's value is outside our spread."""
    lines = [
        "| | LSTM, paper | LSTM, ours | GRU, paper | GRU, ours |",
        "|---|---|---|---|---|",
    ]
    for method, memory in ROWS:
        entries = [method_name(method, memory)]
        for cell in CELLS:
            group = find(groups, method=method, memory=memory, cell=cell)
            paper = TABLE[method, memory, cell]
            entries += [f"{paper:.3f}", "no run yet" if group is None else f"{group.text}, {agreement(group, paper)}"]
        lines.append("| " + " | ".join(entries) + " |")
    return "\n".join(lines) + "\n"


def comma_separated(groups: Sequence[Group]) -> str:
    """The same numbers, and each run's, one line per cell of the table."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["cell", "method", "memory", "paper", "mean", "spread", "seeds", "diverged", "verdict", "tolerance", "runs"]
    )
    for (method, memory, cell), paper in TABLE.items():
        group = find(groups, method=method, memory=memory, cell=cell)
        if group is None:
            writer.writerow([cell, method, memory, paper, "", "", 0, 0, "open", "", ""])
            continue
        verdict = agreement(group, paper)
        writer.writerow(
            [
                cell,
                method,
                memory,
                paper,
                _digits(group.mean),
                _digits(group.spread),
                len(group.records),
                group.diverged,
                verdict,
                "" if verdict == "open" else _digits(tolerance(group)),
                " ".join(f"{record['recent']}" for record in group.records),
            ]
        )
    return buffer.getvalue()


def _digits(value: float) -> str:
    return "" if isnan(value) else f"{value:.5f}"
