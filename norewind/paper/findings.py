"""What the records say, in sentences. Nothing here is typed by hand: every number comes from a run."""

from collections.abc import Mapping, Sequence

import numpy as np

from norewind.instruments.tables import markdown
from norewind.paper.groups import Group, agreement, influence_curves, of_paper
from norewind.paper.plans import SAMPLES, TABLE, method_words
from norewind.runs.record import Record

# Runs on one text, by method and cell.
Groups = Mapping[tuple[str, str], Group]

# Influence balancing starts from a loss of about 8: below this a run is on its way to the solution.
CONVERGED_LOSS = 0.1
# Many times what the text alone does to the loss of 10⁵ samples: such a rise is the model's.
REASCENT = 0.02
VERDICTS = {
    "agrees": "agree with the paper (p ≥ 0.05)",
    "differs (better)": "have a lower loss than the paper's (p < 0.05)",
    "differs (worse)": "have a higher loss than the paper's (p < 0.05)",
    "too few seeds": "have fewer than three seeds that did not diverge, too few to judge",
    "too short to conclude": f"have runs that are shorter than the paper's {SAMPLES:,} samples, too short to judge",
    "no run yet": "have no run yet",
}


def influence_findings(records: Sequence[Record]) -> list[str]:
    """How many runs converged, by method and learning rate."""
    sentences = []
    for method, curves in influence_curves(records).items():
        words = []
        for rate, runs in curves.items():
            converged = sum(run["loss"] is not None and run["loss"] < CONVERGED_LOSS for run in runs)
            words += [f"{converged} of {len(runs)} at η = {rate:g}"] if runs else []
        name = method_words(method)
        sentences.append(f"{name}: runs that ended with a loss below {CONVERGED_LOSS}: {', '.join(words)}.")
    return sentences


def influence_table(records: Sequence[Record]) -> str:
    """θ and loss at the end, with a column for every learning rate."""

    def cell(runs: Sequence[Record]) -> str:
        losses = sorted(float("inf") if record["loss"] is None else record["loss"] for record in runs)
        thetas = sorted(record["theta"] for record in runs)
        if len(runs) < 2:
            return f"θ = {thetas[0]:.4g}, loss {losses[0]:.2g}" if runs else ""
        middle, worst = losses[len(runs) // 2], losses[-1]
        course = f"θ from {thetas[0]:.5g} to {thetas[-1]:.5g}, median loss {middle:.2g}, worst {worst:.2g}"
        return f"{course} ({len(runs)} seeds)"

    methods = influence_curves(records)
    rates = [f"η = {rate:g}" for rate in next(iter(methods.values()))]
    rows = [[method_words(method), *map(cell, curves.values())] for method, curves in methods.items()]
    return markdown([f"after {records[0]['influence']['samples']:,} samples", *rates], rows)


def too_short(groups: Groups) -> str | None:
    """What the runs on a text would need before anything could be concluded; None if they are long enough."""
    short = [group for group in groups.values() if group.is_short]
    if not short:
        return None
    lengths = " to ".join(f"{count:,}" for count in sorted({group.samples for group in short}))
    as_paper = ", as the paper's are" if short[0].settings["source"] == "anbn" else ""
    return (
        f"Too short to conclude: {len(short)} of {len(groups)} curves have {lengths} samples. The runs of `norewind "
        f"reproduce` without `--quick` are {SAMPLES:,} samples long{as_paper}, with at least three seeds."
    )


def brackets_findings(groups: Groups) -> list[str]:
    """How far each curve came between the memoryless level and the optimum, and when UORO's crosses BPTT's."""
    sentences = []
    for key, group in groups.items():
        text, name = group.text(), _name(*key)
        if not group.values:
            sentences.append(f"{name}: all {group.diverged} seeds diverged.")
            continue
        way = (text.memoryless - group.mean) / (text.memoryless - text.floor)
        where = f"{way:.0%} of the way from memoryless ({text.memoryless:.3f}) to the optimum ({text.floor:.3f})"
        if round(way, 2) < 0:
            where = f"still above the memoryless level ({text.memoryless:.3f})"
        sentences.append(f"{name} ended at a recent loss of {group} bits: {where} after {group.samples:,} samples.")
    for cell in ("lstm", "gru"):
        uoro, bptt = groups.get(("uoro", cell)), groups.get(("bptt:4", cell))
        if not (uoro and bptt and uoro.values and bptt.values):
            continue
        (samples, ours), (_, theirs) = (group.curves(cumulative=True) for group in (uoro, bptt))
        length = min(ours.shape[1], theirs.shape[1])
        below = np.median(ours[:, :length], axis=0) < np.median(theirs[:, :length], axis=0)
        if below.all():
            course = "is the lower one all along"
        elif not below[-1]:
            course = "is still above truncated BPTT's at the end"
        else:
            course = f"falls below truncated BPTT's at {samples[int(np.nonzero(~below)[0][-1])]:,} samples"
        sentences.append(f"{cell.upper()}: UORO's mean loss from the start {course}.")
    return sentences


def anbn_findings(groups: Groups) -> list[str]:
    """Which cells of the table agree with the paper, which do not, and which runs rose again or diverged."""
    verdicts: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for key, paper in TABLE.items():
        group = groups.get(key)
        judged, detail = agreement(group, paper), ""
        if judged.verdict.startswith("differs"):
            detail = f" (paper {paper:.3f}, ours {group}, 95% from {judged.interval}, p = {judged.p:.2g})"
        verdicts[judged.verdict].append(_name(*key) + detail)
    return [
        f"{len(cells)} of {len(TABLE)} cells {VERDICTS[verdict]}: {'; '.join(cells)}."
        for verdict, cells in verdicts.items()
        if cells
    ] + [reascents(groups), divergence(groups)]


def reascents(groups: Groups) -> str:
    """Which runs had been clearly better before: the paper's "gradient reascent in the long run"."""
    found = []
    for key, group in groups.items():
        samples, rows = group.curves(cumulative=False)
        for record, row in zip(group.records, rows, strict=True):
            if record["problem"] is None and row[-1] - row[best := int(np.nanargmin(row))] > REASCENT:
                course = f"from {row[best]:.3f} at {samples[best]:,} samples to {row[-1]:.3f} at the end"
                found.append(f"{_name(*key)}, seed {record['settings']['seed']}, {course}")
    return _share(
        groups, len(found), f"ended more than {REASCENT} above a recent loss that they had reached before", found
    )


def divergence(groups: Groups) -> str:
    """How many runs of each kind diverged: a result of its own."""
    details = []
    for key, group in groups.items():
        lost = [record for record in group.records if record["diverged_at"] is not None]
        if lost:
            places = ", ".join(f"{record['diverged_at']:,} (seed {record['settings']['seed']})" for record in lost)
            details.append(f"{_name(*key)}: {len(lost)} of {len(group.records)}, at {places} samples")
    return _share(groups, sum(group.diverged for group in groups.values()), "of the table diverged", details)


def control_findings(groups: Sequence[Group]) -> list[str]:
    """Each control beside the cell of the table that it changes in one thing."""
    table, sentences = of_paper(groups, "anbn"), []
    for group in groups:
        key = group.settings["method"].partition(":rho")[0], group.settings["cell"]
        if group.changes and key in table and key in TABLE:
            judged, paper = agreement(group, TABLE[key]), TABLE[key]
            meets = f"cannot be compared ({judged.verdict})"
            if judged.p is not None:
                meets = f"{judged.verdict} (p = {judged.p:.2g}, 95% from {judged.interval})"
            sentences.append(
                f"{_name(*key)} with {' and '.join(group.changes)}: {group}, beside {table[key]} in the table and "
                f"{paper:.3f} in the paper, with which it {meets}."
            )
    return sentences


def _share(groups: Groups, count: int, words: str, details: Sequence[str]) -> str:
    runs = sum(len(group.records) for group in groups.values())
    return f"{count} of {runs} runs {words}{': ' if details else ''}{'; '.join(details)}."


def _name(method: str, cell: str) -> str:
    return f"{cell.upper()} {method_words(method)}"
