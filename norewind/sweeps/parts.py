"""One stream trained in parts, each a separate run folder: shards of the keys, or partitions of a topic.

Shards are trained in processes. Keys that share nothing need no communication, so every
process reads the whole stream and ignores the keys of other shards. The shard of a key is
determined by a checksum of the key, and the folder of a shard has everything needed to continue
it in any process.

Partitions are trained in threads. Workers join a Kafka group only to divide the partitions among
themselves. The run of a partition is a folder on storage that all workers share. A worker that is
assigned a partition continues from its newest checkpoint, which holds its offset. A worker that
has to give up a partition saves it and releases the folder before the group assigns it to another
worker.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from norewind.scoring.metrics import SIMPLE_FORECASTS
from norewind.scoring.number_score import worst_keys
from norewind.storage.checkpoint import checkpoints, read_metadata
from norewind.storage.files import make_folder
from norewind.streams.base_source import SLICE_SECONDS
from norewind.streams.kafka.client import EACH_PARTITION, SCHEME, Client, error_text
from norewind.streams.stream import StreamError
from norewind.sweeps.workers import stop_check, train_in_processes
from norewind.training.fit import FitResult
from norewind.training.folder import CHECKPOINTS, SHARDS, FolderInUse, RunFolder
from norewind.training.hooks import Hooks
from norewind.training.log import METRICS, read_log
from norewind.training.open_stream import check_fleet
from norewind.training.progress import Progress
from norewind.training.settings import Settings, SettingsError, check_scopes
from norewind.training.train_folder import train_folder
from norewind.wording import counted

# How many seconds to wait for a folder that is still held by a worker which the group has excluded.
FOLDER_WAIT_SECONDS = 60.0


def _train_part(settings: Settings, path: Path, hooks: Hooks, progress: Progress | None = None) -> FitResult:
    """Train one part in its folder, from its newest checkpoint if it has one."""
    progress = progress or Progress(quiet=True)
    with RunFolder(path, say=progress.say) as folder:
        return train_folder(settings, folder, progress=progress, hooks=hooks)[0]


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
    fitted = _train_part(settings, path, Hooks(should_stop=should_stop))
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
    newest = [saved[-1] for shard in begun if (saved := checkpoints(shard / CHECKPOINTS))]

    def over_all(entry: str) -> float | None:
        known = [(line[entry], line["samples"]) for line in lines if line.get(entry) is not None]
        return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None

    names = {"mean": "mean loss", "loss": "in the last intervals", "baseline": SIMPLE_FORECASTS["baseline"]}
    losses = [f"{name} {loss:.4f}" for entry, name in names.items() if (loss := over_all(entry)) is not None]
    samples = counted(sum(read_metadata(path)["samples"] for path in newest), "sample")
    return f"{', '.join([samples, *losses])}.\n{worst_keys(begun, name)}"


class Partition(threading.Thread):
    """The run of one partition, in a thread.

    Args:
        settings: the settings of the run, with the partition as its source.
        path: its run folder.
        progress: shows its progress.

    Attributes:
        ending: set to ask the run to stop.
        begun: set once it trains.
        error: the error that ended the run; None if it has not failed.
    """

    def __init__(self, settings: Settings, path: Path, progress: Progress):
        super().__init__(name=path.name)
        self.settings = settings
        self.path = path
        self.progress = progress
        self.ending, self.begun = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._train()
        except BaseException as error:
            # A run that is stopped before its first message has nothing to save.
            if self.begun.is_set() or not self.ending.is_set():
                self.error = error
                self.progress.warn(f"{self.path} has failed.")

    def _train(self) -> None:
        deadline = time.monotonic() + FOLDER_WAIT_SECONDS
        hooks = Hooks(begin=lambda _: self.begun.set(), should_stop=self.ending.is_set)
        while True:
            try:
                _train_part(self.settings, self.path, hooks, self.progress)
                return
            except FolderInUse:
                if self.ending.wait(SLICE_SECONDS) or time.monotonic() > deadline:
                    raise


class Worker:
    """The partitions that are assigned to this process.

    Args:
        settings: the settings of the runs, with the topic as their source.
        path: the folder of their run folders.
        progress: shows their progress.
    """

    def __init__(self, settings: Settings, path: Path, progress: Progress):
        self.settings = settings
        self.path = path
        self.progress = progress
        self.topic = settings.source.removeprefix(SCHEME).removesuffix(EACH_PARTITION)
        self.runs: dict[int, Partition] = {}

    def assign(self, consumer: Any, partitions: list[Any]) -> None:
        """Start the runs of new partitions.

        Args:
            consumer: the consumer of the group.
            partitions: the partitions, as the client describes them.
        """
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)  # each run reads its partition itself
        for partition in partitions:
            name = f"partition-{partition.partition}"
            settings = replace(self.settings, source=f"{SCHEME}{self.topic}/{partition.partition}")
            self.runs[partition.partition] = run = Partition(settings, self.path / name, self.progress)
            run.start()

    def revoke(self, consumer: Any, partitions: list[Any], *, lost: bool = False) -> None:
        """Give up partitions.

        Args:
            consumer: the consumer of the group.
            partitions: the partitions, as the client describes them.
            lost: whether another worker may already have them. Errors are then ignored.
        """
        errors = self.end(partition.partition for partition in partitions)
        consumer.incremental_unassign(partitions)
        if errors and not lost:
            raise errors[0]

    def end(self, partitions: Iterable[int]) -> list[BaseException]:
        """Save partitions and release their folders.

        Args:
            partitions: the numbers of the partitions.

        Returns:
            The errors that occurred.
        """
        runs = [self.runs.pop(partition) for partition in list(partitions) if partition in self.runs]
        for run in runs:
            run.ending.set()
        for run in runs:
            run.join()
            self.progress.end(str(run.path), "saved and released")
        return [run.error for run in runs if run.error is not None]


def train_partitions(settings: Settings, path: Path, progress: Progress, stop: Callable[[], bool]) -> None:
    """Train the partitions that the group assigns to this process, each in its own run folder.

    Args:
        settings: the settings of the runs, with the topic as their source.
        path: the folder of the run folders.
        progress: shows their progress.
        stop: called while waiting. Once it returns True, all runs are saved and training ends.

    Raises:
        SettingsError: the settings do not fit together.
        StreamError: the topic cannot be read, or the group cannot be joined.
    """
    check_scopes(settings)
    if not settings.group:
        raise SettingsError(f"{settings.source}: name the group of the workers that share the partitions (group=).")
    if settings.final or settings.shards > 1:
        raise SettingsError(f"{settings.source}: workers run until they are stopped: leave out final= and shards=.")
    worker, client = Worker(settings, path, progress), Client(settings.brokers, settings.client)
    codes: Any = client.kafka.KafkaError
    # A separate group: brokers accept offsets from outside a group only while it has no members.
    options = {
        "group.id": f"{settings.group}-workers",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "cooperative-sticky",
        "queued.max.messages.kbytes": 1_024,
    }
    consumer = client.make("Consumer", options)
    try:
        client.partitions(consumer, worker.topic)
        make_folder(path)
        lost = partial(worker.revoke, lost=True)
        consumer.subscribe([worker.topic], on_assign=worker.assign, on_revoke=worker.revoke, on_lost=lost)
        # Temporary errors: each run waits for its brokers itself, for a limited time.
        passing = codes._ALL_BROKERS_DOWN, codes._TRANSPORT, codes._PARTITION_EOF, codes._MAX_POLL_EXCEEDED
        while not stop() and not any(run.error for run in worker.runs.values()):
            message = consumer.poll(SLICE_SECONDS)
            error = None if message is None else message.error()
            if error is not None and not error.retriable() and error.code() not in passing:
                raise StreamError(f"the group {options['group.id']!r} cannot be joined: {error_text(error)}.")
    finally:
        # In this order, so that the group reassigns only partitions that are saved and released.
        errors = worker.end(list(worker.runs))
        consumer.close()
    if errors:
        raise errors[0]
