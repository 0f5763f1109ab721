"""Sweeps: lists of runs, trained side by side, one process and one core each, with finished ones kept."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from norewind.runs.progress import Progress
from norewind.runs.record import Record, read_record, record_path, versions, write_record
from norewind.runs.settings import Settings
from norewind.runs.workers import SweepError, Workers, stopping

__all__ = ["Plan", "SweepError", "records", "sweep"]

# The runs of a sweep: a name and settings for each.
Plan = Mapping[str, Settings]


def records(plan: Plan, out: Path) -> dict[str, Record]:
    """The records of the runs in a plan that are finished."""
    found = {name: read_record(record_path(out, name)) for name in plan}
    return {name: record for name, record in found.items() if record and _was_made_with(record, plan[name])}


def _was_made_with(record: Record, settings: Settings) -> bool:
    """Whether a record has these settings. It may be older than some of them, which then had their defaults."""
    made_with = record["settings"]
    return made_with.keys() <= settings.as_json().keys() and Settings(**made_with) == settings


def sweep(
    plan: Plan, out: Path | str, *, jobs: int | None = None, ray: str | None = None, quiet: bool = False
) -> dict[str, Record]:
    """Train every run of a plan that has no record yet, and return the records of all.

    Records go to `out`/runs, one JSON file per run. While a run is being trained it has a
    run folder in `out`/folders; an interrupted sweep continues from there when it is called
    again. `jobs` runs are trained at the same time, by default one per core. `ray` is the
    address of a Ray cluster that shares the folder `out`, or "auto" for the one that is
    there, or else one on this machine. `quiet` shows no progress.
    """
    out = Path(out)
    finished = records(plan, out)
    waiting = [name for name in plan if name not in finished]
    with Progress(max(2, len(waiting)), quiet=quiet) as progress:
        if finished:
            progress.say(f"{len(finished)} of {len(plan)} runs were finished before.")
        if waiting:
            tasks = {name: (plan[name], out, out / "folders" / name) for name in waiting}
            Workers(_work, progress, jobs, ray).run(tasks)
    return records(plan, out)


def _work(name: str, settings: Settings, out: Path, folder: Path) -> str:
    """Train one run in its own process, write its record, and say how it ended."""
    from norewind.runs.fit import Hooks
    from norewind.runs.train import Clock, trial

    clock = Clock()
    hooks = Hooks(chunk=clock.chunk, should_stop=stopping())
    record = trial(settings, folder, hooks, clock)
    if record is None:
        return "interrupted"
    write_record(record_path(out, name), {**record, **versions()})
    shutil.rmtree(folder, ignore_errors=True)
    if record["problem"]:
        return record["problem"]
    last = next((loss for loss in reversed(record["curve"]) if loss is not None), None)
    return "finished" if last is None else f"finished, {last:.4f} {record['unit']}"
