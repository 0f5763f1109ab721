"""A fleet in parts: each shard of the keys is a separate run with its own checkpoints, trained by its own process.

Keys that share nothing need no communication, so every process reads the whole stream and
ignores the keys of other shards. The shard of a key is determined by a checksum of the key,
and the folder of a shard has everything needed to continue it in any process.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from norewind.scoring.metrics import counted
from norewind.scoring.number_score import worst_keys
from norewind.storage.checkpoint import checkpoints, glance
from norewind.sweeps.workers import Workers, stopping
from norewind.training.fleet_build import check_fleet
from norewind.training.folder import METRICS, RunFolder
from norewind.training.log import read_log
from norewind.training.progress import Progress
from norewind.training.settings import Settings, SettingsError


def shard_folders(path: Path, shards: int) -> list[Path]:
    """Return the run folders of all shards.

    Args:
        path: the run folder of the fleet.
        shards: the number of shards.
    """
    return [path / "shards" / f"{number:04d}" for number in range(shards)]


def train_shards(
    settings: Settings, path: Path, progress: Progress, *, jobs: int | None = None, ray: str | None = None, new: bool
) -> None:
    """Train all shards of a fleet in a run folder, each in its own process.

    Args:
        settings: the settings of the fleet.
        path: its run folder.
        progress: shows the progress of the shards.
        jobs: the number of shards to train at the same time; by default one per core.
        ray: the address of a Ray cluster, or "auto"; None for processes on this machine.
        new: whether the run is new. Otherwise it is continued.

    Raises:
        SettingsError: the settings do not fit together, or the folder already holds a run.
        SweepError: some shards have failed.
    """
    check_fleet(settings)
    if settings.source == "-":
        raise SettingsError("--shards: every process reads the source itself, so it must be a file, not a pipe.")
    if settings.predictions not in ("none", "file"):
        shared = "share standard output" if settings.predictions == "stdout" else "answer in one transaction"
        raise SettingsError(f"--shards: several processes cannot {shared}: use --predictions file.")
    with RunFolder(path, new=new) as folder:
        folders = shard_folders(path, settings.shards)
        if new and any(one.exists() for one in folders):
            raise SettingsError(f"{path} already holds a run: norewind resume {path}, or another --out.")
        if new:
            folder.begin(settings)
        tasks = {one.name: (replace(settings, shard=place), one) for place, one in enumerate(folders)}
        Workers(_train, progress, jobs, ray).run(tasks)


def _train(name: str, settings: Settings, path: Path) -> str:
    """Train one shard in its own process."""
    from norewind.training.fit import Hooks
    from norewind.training.train import train

    should_stop = stopping()
    with RunFolder(path) as folder:
        folder.new = folder.saved is None
        fitted, _ = train(settings, folder, hooks=Hooks(should_stop=should_stop))
    return "interrupted" if should_stop() else counted(fitted.samples, "sample")


def shard_words(path: Path, shards: int, name: Callable[[bytes], Any]) -> str:
    """Return a summary of all shards, as text.

    Args:
        path: the run folder of the fleet.
        shards: the number of shards.
        name: a function from a key to its name.
    """
    begun = [one for one in shard_folders(path, shards) if (one / METRICS).exists()]
    lines = [lines[-1] for one in begun if (lines := read_log(one / METRICS))]
    newest = [found[-1] for one in begun if (found := checkpoints(one / "checkpoints"))]

    def over_all(entry: str) -> float | None:
        known = [(line[entry], line["samples"]) for line in lines if line.get(entry) is not None]
        return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None

    words = {"mean": "mean loss", "loss": "in the last intervals", "baseline": "the mean so far"}
    losses = [f"{words[entry]} {loss:.4f}" for entry in words if (loss := over_all(entry)) is not None]
    samples = counted(sum(glance(one)["samples"] for one in newest), "sample")
    return f"{', '.join([samples, *losses])}.\n{worst_keys(begun, name)}"
