"""Train a fleet in shards: each process learns its share of the keys, with its own run folder.

Keys that share nothing need no communication, so every process reads the whole stream and ignores
the keys of other shards. The shard of a key is determined by a checksum of the key, and the folder
of a shard has everything needed to continue it in any process.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from norewind.scoring.metrics import SIMPLE_FORECASTS
from norewind.scoring.number_score import worst_keys
from norewind.storage.checkpoint import checkpoints, read_metadata
from norewind.sweeps.workers import stop_check, train_in_processes
from norewind.training.folder import CHECKPOINTS, SHARDS, RunFolder
from norewind.training.hooks import Hooks
from norewind.training.log import METRICS, read_log
from norewind.training.open_stream import check_fleet
from norewind.training.progress import Progress
from norewind.training.settings import Settings, SettingsError, check_scopes
from norewind.training.train_folder import train_folder
from norewind.wording import counted


def shard_folders(path: Path, shards: int) -> list[Path]:
    """Return the run folders of all shards.

    Args:
        path: the run folder of the fleet.
        shards: the number of shards.
    """
    return [path / SHARDS / f"{number:04d}" for number in range(shards)]


def train_shards(
    settings: Settings,
    path: Path,
    progress: Progress,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    new: bool,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Train all shards of a fleet in a run folder, each in its own process.

    Args:
        settings: the settings of the fleet.
        path: its run folder.
        progress: shows the progress of the shards.
        jobs: the number of shards to train at the same time; by default one per core.
        ray: the address of a Ray cluster, or "auto"; None for processes on this machine.
        new: whether the run is new. Otherwise it is continued.
        stop: called while waiting. Once it returns True, all shards are saved and training ends.

    Raises:
        SettingsError: the settings do not fit together, or the folder already holds a run.
        SweepError: some shards have failed.
    """
    check_scopes(settings)
    check_fleet(settings)
    if settings.source == "-":
        raise SettingsError("shards: every process reads the source itself, so it must be a file, not a pipe.")
    if settings.predictions not in ("none", "file"):
        shared = "share standard output" if settings.predictions == "stdout" else "answer in one transaction"
        raise SettingsError(f'shards: several processes cannot {shared}: use predictions="file".')
    with RunFolder(path, mode="new" if new else "resume") as folder:
        folders = shard_folders(path, settings.shards)
        if new:
            folder.begin(settings)
        tasks = {shard.name: (replace(settings, shard=number), shard) for number, shard in enumerate(folders)}
        train_in_processes(_train_shard, tasks, progress, jobs=jobs, ray=ray, stop=stop)


def _train_shard(name: str, settings: Settings, path: Path) -> str:
    """Train one shard in its own process."""
    should_stop = stop_check()
    progress = Progress(quiet=True)
    with RunFolder(path, say=progress.say) as folder:
        fitted = train_folder(settings, folder, progress=progress, hooks=Hooks(should_stop=should_stop))[0]
    return "interrupted" if should_stop() else counted(fitted.samples, "sample")


def shard_summary(path: Path, shards: int, name: Callable[[bytes], Any]) -> str:
    """Return a summary of all shards, as text.

    Args:
        path: the run folder of the fleet.
        shards: the number of shards.
        name: a function from a key to its name.
    """
    begun = [shard for shard in shard_folders(path, shards) if (shard / METRICS).exists()]
    lines = [lines[-1] for shard in begun if (lines := read_log(shard / METRICS))]
    latest = [saved[-1] for shard in begun if (saved := checkpoints(shard / CHECKPOINTS))]

    def over_all(entry: str) -> float | None:
        known = [(line[entry], line["samples"]) for line in lines if line.get(entry) is not None]
        return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None

    names = {"mean": "mean loss", "loss": "in the last intervals", "baseline": SIMPLE_FORECASTS["baseline"]}
    losses = [f"{name} {loss:.4f}" for entry, name in names.items() if (loss := over_all(entry)) is not None]
    samples = counted(sum(read_metadata(path)["samples"] for path in latest), "sample")
    return f"{', '.join([samples, *losses])}.\n{worst_keys(begun, name)}"
