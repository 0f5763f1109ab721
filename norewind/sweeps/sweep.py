"""Sweeps: plans of runs, trained at the same time, each in its own process. Finished runs are kept as records."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax

from norewind.core.checks import ModelError
from norewind.core.trees import Tree
from norewind.errors import Diverged
from norewind.scoring.metrics import TILES
from norewind.sweeps.record import Record, read_records, versions, write_record
from norewind.sweeps.workers import stop_check, train_in_processes
from norewind.training.folder import RunFolder
from norewind.training.hooks import Hooks
from norewind.training.log import METRICS, read_log
from norewind.training.open_stream import loss_description
from norewind.training.progress import Progress
from norewind.training.settings import SETTINGS, Settings, SettingsError, read_toml
from norewind.training.train_folder import train_folder
from norewind.wording import digits

# Settings that do not change what a run learns.
BOOKKEEPING = ("checkpoint_every", "checkpoint_seconds", "keep")
# The minimum number of samples in a chunk whose CPU time counts.
MIN_TIMED_SAMPLES = 256
# The number of samples between points of a curve. Curves can be compared only if their points are at the same samples.
EVERY = 10_000

# The runs of a sweep: a name and the settings of each, which are a dataclass.
SweepPlan = Mapping[str, Any]


class Clock:
    """CPU time per sample: the best of all chunks, since other processes can only increase it."""

    best: float | None = None
    _last: tuple[float, int] | None = None

    def chunk(self, samples: int, loss: float) -> None:
        """Note the time after a chunk. This is a hook of `fit`.

        Args:
            samples: the total number of samples.
            loss: ignored.
        """
        now = time.process_time()
        # The first chunk includes compilation, and the time of a short one is mostly overhead.
        if self._last is not None and samples - self._last[1] >= MIN_TIMED_SAMPLES:
            spent = (now - self._last[0]) / (samples - self._last[1])
            self.best = spent if self.best is None else min(self.best, spent)
        self._last = time.process_time(), samples


def train_run(settings: Settings, path: Path) -> Record | None:
    """Train one run of a sweep to its end.

    If a method rejects the model or a run diverges, there is a record too: its `problem`
    says what happened.

    Args:
        settings: the settings of the run.
        path: its run folder.

    Returns:
        The record of the run, without versions; None if it was interrupted.
    """
    clock = Clock()
    hooks = Hooks(chunk=clock.chunk, should_stop=stop_check())
    trained = replace(settings, metrics_every=settings.metrics_every or EVERY)
    if (path / SETTINGS).exists() and read_toml(path / SETTINGS) != trained:
        shutil.rmtree(path)  # left by another plan that used the same name
    problem = diverged_at = carried = None
    with RunFolder(path) as folder:
        resumed = not folder.is_new
        try:
            carried = _bytes(train_folder(trained, folder, hooks=hooks)[0].carry)
        except (ModelError, SettingsError) as error:
            problem = f"rejected: {error}"
        except Diverged as error:
            problem = f"diverged: {error.reason}"
            diverged_at = error.samples
            carried = None if error.run is None else _bytes(error.run.carry)
    if hooks.should_stop():
        return None
    lines = read_log(path / METRICS)
    last = lines[-1] if lines else {}
    loss = loss_description(settings)
    # Every method has a carry, and every loss a baseline; the rest is there only in some runs.
    others = [name for name in (*loss.simple_forecasts, *TILES) if name == "baseline" or name in last]
    curves = {"curve": "loss", **dict(zip(others, others, strict=True)), "carry": "carry"}
    return {
        "settings": settings.as_json(),
        "seconds": last.get("seconds", 0.0),
        "cpu_seconds": None if resumed else round(time.process_time(), 1),
        "microseconds": None if clock.best is None else digits(1e6 * clock.best),
        "carried_bytes": carried,
        "samples": last.get("samples", 0),
        "problem": problem,
        "diverged_at": diverged_at,
        "unit": loss.unit,
        "mean": digits(last.get("mean")),
        "every": trained.metrics_every,
        **{name: [digits(line.get(entry)) for line in lines] for name, entry in curves.items()},
    }


def _bytes(carry: Tree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(carry))


def finished_records(plan: SweepPlan, out: Path, entry: str = "settings") -> dict[str, Record]:
    """Read the records of the finished runs in a plan.

    Args:
        plan: the settings of each run, by name.
        out: the folder of the study.
        entry: the entry of a record that holds the settings of its run. Settings added after the record was written are
            taken to have had their defaults.

    Returns:
        The records by name, in the order of the plan. Records made with other settings are ignored.
    """
    records, finished = read_records(out), {}
    for name, run in plan.items():
        names = {field.name for field in fields(run)}
        recorded = records.get(name, {}).get(entry, {})
        if not recorded or not recorded.keys() <= names:
            continue
        before = type(run)(**recorded)
        if all(getattr(before, field) == getattr(run, field) for field in names.difference(BOOKKEEPING)):
            finished[name] = records[name]
    return finished


def sweep(
    plan: SweepPlan,
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
    finished = finished_records(plan, out, entry)
    tasks = {name: (run, out / "folders" / name, out, train) for name, run in plan.items() if name not in finished}
    with Progress(max(2, len(tasks)), quiet=quiet) as progress:
        if finished:
            progress.say(f"{len(finished)} of {len(plan)} runs were finished before.")
        if tasks:
            train_in_processes(_train_and_record, tasks, progress, jobs=jobs, ray=ray)
    return finished_records(plan, out, entry)


def _train_and_record(
    name: str, settings: Any, folder: Path, out: Path, train: Callable[[Any, Path], Record | None]
) -> str:
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
