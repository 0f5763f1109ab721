"""Sweeps: lists of runs, trained side by side, one process and one core each, with finished ones kept."""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from norewind.runs.progress import Progress
from norewind.runs.record import Record, read_record, record_path, versions, write_record
from norewind.runs.settings import Settings

Plan = Mapping[str, Settings]
"""The runs of a sweep: a name and settings for each."""
SECONDS_BETWEEN_LOOKS = 0.5


class SweepError(RuntimeError):
    """Some runs of a sweep broke off. The message says which, and why."""


def records(plan: Plan, out: Path) -> dict[str, Record]:
    """The records of the runs in a plan that are finished."""
    found = {name: read_record(record_path(out, name)) for name in plan}
    return {name: record for name, record in found.items() if record and _was_made_with(record, plan[name])}


def _was_made_with(record: Record, settings: Settings) -> bool:
    """Whether a record has these settings. It may be older than some of them, which then had their defaults."""
    unknown = record["settings"].keys() - settings.as_json().keys()
    return not unknown and Settings(**record["settings"]) == settings


def sweep(plan: Plan, out: Path | str, *, jobs: int | None = None, quiet: bool = False) -> dict[str, Record]:
    """Train every run of a plan that has no record yet, and return the records of all.

    Records go to `out`/runs, one JSON file per run. While a run is being trained it has a
    run folder in `out`/folders; an interrupted sweep continues from there when it is called
    again. `jobs` runs are trained at the same time, by default one per core. `quiet` shows
    no progress.
    """
    out = Path(out)
    finished = records(plan, out)
    waiting = [name for name in plan if name not in finished]
    with Progress(max(2, len(waiting)), quiet=quiet) as progress:
        if finished:
            progress.say(f"{len(finished)} of {len(plan)} runs were finished before.")
        if waiting:
            _Workers(plan, out, progress, jobs).run(waiting)
    return records(plan, out)


class _Workers:
    """Runs under way, each in a pool of its own, so that one that is killed does not take others with it."""

    def __init__(self, plan: Plan, out: Path, progress: Progress, jobs: int | None):
        self.plan, self.out, self.progress = plan, out, progress
        # Fresh interpreters: JAX does not survive a fork, and precision is set per process.
        self.context = multiprocessing.get_context("spawn")
        self.stop = self.context.Event()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
        self.free = (cores * (jobs or len(cores)))[: jobs or len(cores)]
        self.active: dict[Future, tuple[str, int, ProcessPoolExecutor]] = {}

    def run(self, waiting: list[str]) -> None:
        failed = []
        try:
            while waiting or self.active:
                while waiting and self.free:
                    self.start(waiting.pop(0))
                done, _ = wait(self.active, timeout=SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
                self.look()
                for future in done:
                    failed += self.finish(future)
        finally:
            self.stop.set()
            for _, _, pool in self.active.values():
                pool.shutdown()
        if failed:
            raise SweepError("\n".join(failed))

    def start(self, name: str) -> None:
        core = self.free.pop(0)
        pool = ProcessPoolExecutor(1, self.context, initializer=_begin, initargs=(core, self.stop))
        settings = self.plan[name]
        self.active[pool.submit(_work, name, settings, self.out)] = name, core, pool
        total = None if settings.samples is None else int(settings.samples)
        self.progress.begin(name, "", 0, total)

    def look(self) -> None:
        """Show how far each run is, by its newest line of metrics."""
        for name, _, _ in self.active.values():
            line = _last_line(self.out / "folders" / name / "metrics.jsonl")
            if line and line["samples"] > self.progress.lines[name].samples and line["loss"] is not None:
                self.progress.advance(name, line["samples"], line["loss"])

    def finish(self, future: Future) -> list[str]:
        name, core, pool = self.active.pop(future)
        pool.shutdown()
        self.free.append(core)
        try:
            ended = future.result()
        except Exception as error:
            self.progress.end(name, "failed")
            return [f"{name}: {type(error).__name__}: {error}"]
        self.progress.end(name, ended)
        return []


_stop: Any = None


def _begin(core: int, stop: Any) -> None:
    global _stop
    _stop = stop
    # Ctrl-C reaches all processes; the first one decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def _work(name: str, settings: Settings, out: Path) -> str:
    """Train one run in a process of its own, write its record, and say how it ended."""
    from norewind.runs.fit import Hooks
    from norewind.runs.train import Clock, trial

    parent = os.getppid()
    clock = Clock()
    hooks = Hooks(chunk=clock.chunk, should_stop=lambda: _stop.is_set() or os.getppid() != parent)
    folder = out / "folders" / name
    record = trial(settings, folder, hooks, clock)
    if record is None:
        return "interrupted"
    write_record(record_path(out, name), {**record, **versions()})
    shutil.rmtree(folder, ignore_errors=True)
    if record["problem"]:
        return record["problem"]
    last = next((loss for loss in reversed(record["curve"]) if loss is not None), None)
    return "finished" if last is None else f"finished, {last:.4f} {record['unit']}"


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last complete line of a log that is being written."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 10_000))
            lines = file.read().split(b"\n")
        return json.loads(lines[-2]) if len(lines) > 1 else None
    except (OSError, ValueError):
        return None
