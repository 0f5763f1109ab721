"""The two readings of t in the paper's learning rate η/(1 + √t), for updates from windows of T samples."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

from examples.paper.balancing import InfluenceRun, train_influence
from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, versions, write_record
from norewind.sweeps.sweep import finished_records


def clock_plan() -> dict[str, InfluenceRun]:
    """Plan influence balancing with truncated BPTT, T = 100 and 200, at three rates, with both readings of t."""
    cases = product((100, 200), (1e-3, 3e-4, 1e-4))
    before = [InfluenceRun(method=f"bptt:{window}", rate=rate) for window, rate in cases]
    return {run.name: run for one in before for run in (one, replace(one, clock="through"))}


def reproduce_clock(out: Path) -> str:
    """Train the runs of `clock_plan` that have no record yet.

    Args:
        out: the folder for the records.

    Returns:
        The table.
    """
    plan = clock_plan()
    for name in plan.keys() - finished_records(plan, out, "influence").keys():
        write_record(out, name, {**train_influence(plan[name], out), **versions()})
    return table(finished_records(plan, out, "influence"))


def table(records: Mapping[str, Record]) -> str:
    """Return a Markdown table: where θ ends under each reading.

    Args:
        records: the records of the runs, by name.
    """
    rows = {}
    for record in sorted(
        records.values(), key=lambda record: (record["influence"]["method"], -record["influence"]["rate"])
    ):
        run = record["influence"]
        rows.setdefault((run["method"].removeprefix("bptt:"), run["rate"]), {})[run["clock"]] = record["theta"]
    lines = [[*key, f"{row['before']:.4g}", f"{row['through']:.4g}"] for key, row in rows.items()]
    target = next(iter(records.values()))["target"]
    head = ["T", "η", "t: samples before the update", "t: samples through the update"]
    return markdown(head, lines) + f"\nWhere θ ends after 200,000 samples; θ* = {target:.4f}.\n"
