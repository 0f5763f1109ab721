"""Sweeps: plans of runs, trained at the same time, each in its own process. Finished runs are kept."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from norewind.sweeps.record import Record, read_records, versions, write_record
from norewind.sweeps.workers import SweepError, Workers, stopping
from norewind.training.progress import Progress
from norewind.training.settings import Settings

__all__ = ["Plan", "SweepError", "records", "sweep"]

# Settings that do not change what a run learns.
WITHOUT_EFFECT = ("checkpoint_every", "checkpoint_seconds", "keep")

# The runs of a sweep: a name and the settings of each.
Plan = Mapping[str, Settings]


def records(plan: Mapping[str, Any], out: Path, entry: str = "settings") -> dict[str, Record]:
    """Read the records of the finished runs in a plan.

    Args:
        plan: the settings of each run by name; a dataclass.
        out: the folder of the study.
        entry: the entry of a record that holds the settings of its run. Settings added after the record was written are
            taken to have had their defaults.

    Returns:
        The records by name, in the order of the plan. Records made with other settings are ignored.
    """
    found = read_records(out)
    finished = {}
    for name, run in plan.items():
        names = {field.name for field in fields(run)}
        made_with = found.get(name, {}).get(entry, {})
        if not made_with or not made_with.keys() <= names:
            continue
        made = type(run)(**made_with)
        if all(getattr(made, field) == getattr(run, field) for field in names.difference(WITHOUT_EFFECT)):
            finished[name] = found[name]
    return finished


def train_run(settings: Settings, folder: Path) -> Record | None:
    """Train one run of a sweep, in its own process.

    Args:
        settings: the settings of the run.
        folder: its run folder.

    Returns:
        The record of the run; None if it was interrupted.
    """
    from norewind.sweeps.trial import Clock, trial
    from norewind.training.fit import Hooks

    clock = Clock()
    return trial(settings, folder, Hooks(chunk=clock.chunk, should_stop=stopping()), clock)


def sweep(
    plan: Mapping[str, Any],
    out: Path | str,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    quiet: bool = False,
    train: Callable[[Any, Path], Record | None] = train_run,
    entry: str = "settings",
) -> dict[str, Record]:
    """Train every run of a plan that has no record yet.

    While a run is being trained, it has a run folder in `out`/folders. An interrupted sweep continues from there when
    it is called again.

    Args:
        plan: the settings of each run, by name.
        out: the folder of the study.
        jobs: the number of runs to train at the same time; by default one per core.
        ray: the address of a Ray cluster that shares the folder `out`, or "auto" for a running one, or else a new one
            on this machine.
        quiet: show no progress.
        train: the function that trains one run in its own process, from settings and run folder to its record.
        entry: the entry of a record that holds the settings of its run.

    Returns:
        The records of all runs in the plan, by name.

    Raises:
        SweepError: some runs have failed.
    """
    out = Path(out)
    finished = records(plan, out, entry)
    waiting = [name for name in plan if name not in finished]
    with Progress(max(2, len(waiting)), quiet=quiet) as progress:
        if finished:
            progress.say(f"{len(finished)} of {len(plan)} runs were finished before.")
        if waiting:
            tasks = {name: (plan[name], out / "folders" / name, out, train) for name in waiting}
            Workers(_work, progress, jobs, ray).run(tasks)
    return records(plan, out, entry)


def _work(name: str, settings: Any, folder: Path, out: Path, train: Callable[[Any, Path], Record | None]) -> str:
    """Train one run in its own process, write its record, and return how it ended."""
    record = train(settings, folder)
    if record is None:
        return "interrupted"
    write_record(out, name, {**record, **versions()})
    shutil.rmtree(folder, ignore_errors=True)
    if record["problem"]:
        return record["problem"]
    last = next((loss for loss in reversed(record.get("curve", [])) if loss is not None), None)
    return "finished" if last is None else f"finished, {last:.4f} {record['unit']}"
