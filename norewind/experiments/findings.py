"""What the records say, in sentences. Nothing here is typed by hand: every number comes from a run."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from norewind.experiments.groups import Group, Record, find, text_of, usual
from norewind.experiments.paper import TABLE, method_name
from norewind.experiments.table import agreement, tolerance
from norewind.tasks import influence_balancing

CONVERGED_LOSS = 0.1
"""Influence balancing starts from a loss of about 8: below this a run is on its way to the solution."""

REASCENT = 0.02
"""Many times what the text alone does to the loss of 10⁵ characters: such a rise is the model's."""


def influence_findings(records: Sequence[Record]) -> list[str]:
    """For which T the truncated gradient has the wrong sign, exactly, and how many runs converged."""
    setting = records[0]["setting"]
    task = influence_balancing(setting["n"], setting["minus"])
    last = task.last_wrong_window()
    windows = sorted({1, 10, 100, last, last + 1, 200} - {0})
    sentences = [
        f"The influence of θ on s₁ goes to {task.influence_limit} in the end, so the solution is "
        f"θ* = {task.limit:.4f}. Around a state at rest, T-truncated BPTT follows (s₁ − 1) times the sum of the "
        f"truncated influences of a block. Computed exactly in rational numbers, this sum has the wrong sign for "
        f"T = 1 ... {last} and the right one from T = {last + 1} on "
        f"({', '.join(f'T = {window}: {float(task.block_influence(window)):.4g}' for window in windows)})."
    ]
    for (truncated, window), runs in _by(records, "method", "window"):
        words = []
        for (rate,), of_rate in _by(runs, "rate"):
            ended = sum(_converged(record) for record in of_rate)
            words.append(f"{ended} of {len(of_rate)} at η = {rate:g}")
        name = f"truncated BPTT with T = {window}" if truncated == "bptt" else "UORO"
        sentences.append(f"Runs of {name} that ended with a loss below {CONVERGED_LOSS}: {', '.join(words)}.")
    return sentences


def influence_table(records: Sequence[Record]) -> str:
    """θ and loss in the end, as a Markdown table with a column for every learning rate."""
    rates = sorted({record["setting"]["rate"] for record in records}, reverse=True)
    steps = records[0]["setting"]["steps"]
    lines = [f"| after {steps:,} steps | " + " | ".join(f"η = {rate:g}" for rate in rates) + " |"]
    lines.append("|---" * (len(rates) + 1) + "|")
    for (method, window), runs in _by(records, "method", "window"):
        entries = [f"truncated BPTT, T = {window}" if method == "bptt" else "UORO"]
        for rate in rates:
            of_rate = [record for record in runs if record["setting"]["rate"] == rate]
            entries.append(_ended(of_rate) if of_rate else "")
        lines.append("| " + " | ".join(entries) + " |")
    return "\n".join(lines) + "\n"


def _ended(runs: Sequence[Record]) -> str:
    losses = sorted(float("inf") if record["loss"] is None else record["loss"] for record in runs)
    thetas = sorted(record["theta"] for record in runs)
    if len(runs) == 1:
        return f"θ = {thetas[0]:.4g}, loss {losses[0]:.2g}"
    middle = len(runs) // 2
    return (
        f"θ from {thetas[0]:.5g} to {thetas[-1]:.5g}, median loss {losses[middle]:.2g}, worst {losses[-1]:.2g} "
        f"({len(runs)} seeds)"
    )


def _converged(record: Record) -> bool:
    return record["loss"] is not None and record["loss"] < CONVERGED_LOSS


def _by(records: Sequence[Record], *names: str):
    """Records grouped by entries of their setting, UORO before BPTT, smaller before larger."""

    def key(record):
        entries = [record["setting"][name] for name in names]
        return [entry != "uoro" if isinstance(entry, str) else entry for entry in entries]

    for _, group in groupby(sorted(records, key=key), key):
        runs = list(group)
        yield tuple(runs[0]["setting"][name] for name in names), runs


def brackets_findings(groups: Sequence[Group]) -> list[str]:
    """How far each curve came between the memoryless level and the optimum."""
    sentences = []
    for group in usual(groups):
        text, setting = text_of(group), group.setting
        if not group.values:
            sentences.append(f"{_name(group)}: all {group.diverged} seeds diverged.")
            continue
        way = (text.naive - group.mean) / (text.naive - text.floor)
        sentences.append(
            f"{_name(group)} ended at {group.text} bits per character recently: {way:.0%} of the way from "
            f"memoryless ({text.naive:.3f}) to the optimum ({text.floor:.3f}) after "
            f"{setting['characters']:,} characters."
        )
    for cell in ("lstm", "gru"):
        pair = [
            find(usual(groups), cell=cell, method="uoro", memory=1),
            find(usual(groups), cell=cell, method="bptt", memory=4),
        ]
        if None not in pair and all(group.values for group in pair if group):
            sentences.append(_crossing(cell, *[group for group in pair if group]))
    return sentences


def anbn_findings(groups: Sequence[Group]) -> list[str]:
    """Which cells of the table agree with the paper within the spread of our seeds, and which do not."""
    table = usual(groups)
    verdicts: dict[str, list[str]] = {"agrees": [], "better": [], "worse": [], "open": []}
    for (method, memory, cell), paper in TABLE.items():
        group = find(table, method=method, memory=memory, cell=cell)
        name = f"{cell.upper()} {method_name(method, memory)}"
        if group is None:
            verdicts["open"].append(f"{name} (no run yet)")
            continue
        verdict = agreement(group, paper)
        allowed = "" if verdict == "open" else f", allowed difference {tolerance(group):.4f}"
        verdicts[verdict].append(f"{name} (paper {paper:.3f}, ours {group.text}{allowed})")
    words = {
        "agrees": "agree with the paper within the spread of our seeds",
        "better": "have a lower loss than the paper's, by more than the spread",
        "worse": "have a higher loss than the paper's, by more than the spread",
        "open": "cannot be judged yet (fewer than two converged seeds)",
    }
    return [
        f"{len(names)} of {len(TABLE)} cells {words[verdict]}: {'; '.join(names)}."
        for verdict, names in verdicts.items()
        if names
    ] + [reascents(table), divergence(table)]


def reascents(groups: Sequence[Group]) -> str:
    """Which runs had been clearly better before: the paper's "gradient reascent in the long run"."""
    found = []
    for group in groups:
        characters, rows = group.curves(cumulated=False)
        for record, row in zip(group.records, rows, strict=True):
            best = int(np.nanargmin(row))
            if record["diverged_at"] is None and row[-1] - row[best] > REASCENT:
                found.append(
                    f"{_name(group)}, seed {record['setting']['seed']}, from {row[best]:.3f} at "
                    f"{characters[best]:,} characters to {row[-1]:.3f} at the end"
                )
    runs = sum(len(group.records) for group in groups)
    end = ": " + "; ".join(found) if found else ""
    return (
        f"{len(found)} of {runs} runs ended more than {REASCENT} above a recent loss that they had reached before{end}."
    )


def divergence(groups: Sequence[Group]) -> str:
    """How many runs of each setting diverged: a result of its own."""
    runs = sum(len(group.records) for group in groups)
    total = sum(group.diverged for group in groups)
    details = [
        f"{_name(group)}: {group.diverged} of {len(group.records)}, at "
        + ", ".join(
            f"{record['diverged_at']:,} (seed {record['setting']['seed']})"
            for record in group.records
            if record["diverged_at"] is not None
        )
        + " characters"
        for group in groups
        if group.diverged
    ]
    end = ": " + "; ".join(details) if details else ""
    return f"{total} of {runs} runs of the table's settings diverged{end}."


def control_findings(groups: Sequence[Group]) -> list[str]:
    """Each control beside the cell of the table that it changes in one thing."""
    table = usual(groups)
    sentences = []
    for group in groups:
        if group in table:
            continue
        setting = group.setting
        base = find(table, **{name: setting[name] for name in ("cell", "method", "memory")})
        paper = TABLE.get((setting["method"], setting["memory"], setting["cell"]))
        if base is None or paper is None:
            continue
        changed = [
            f"{name} {setting[name]:,}" if isinstance(setting[name], int) else f"{name} {setting[name]}"
            for name in ("characters", "precision", "rho")
            if setting[name] != base.setting[name]
        ]
        verdict = agreement(group, paper)
        reaches = {
            "agrees": "reaches the paper's value within the spread",
            "better": "is below the paper's value",
            "worse": "does not reach the paper's value",
            "open": "has too few seeds to judge",
        }[verdict]
        sentences.append(
            f"{_name(group)} with {' and '.join(changed)}: {group.text}, beside {base.text} in the table and "
            f"{paper:.3f} in the paper. It {reaches}."
        )
    return sentences


def _name(group: Group) -> str:
    return f"{group.setting['cell'].upper()} {method_name(group.setting['method'], group.setting['memory'])}"


def _crossing(cell: str, uoro: Group, bptt: Group) -> str:
    """From when on UORO's median of the cumulated loss stays below truncated BPTT's."""
    characters, ours = uoro.curves(cumulated=True)
    _, theirs = bptt.curves(cumulated=True)
    length = min(ours.shape[1], theirs.shape[1])
    below = np.median(ours[:, :length], axis=0) < np.median(theirs[:, :length], axis=0)
    if below.all():
        return f"{cell.upper()}: UORO's cumulated loss is the lower one all along."
    if not below[-1]:
        return f"{cell.upper()}: UORO's cumulated loss is still above truncated BPTT's at the end."
    last_above = int(np.nonzero(~below)[0][-1])
    return (
        f"{cell.upper()}: UORO's cumulated loss falls below truncated BPTT's at {characters[last_above]:,} characters."
    )
