"""Train the partitions of a Kafka topic: each in a thread, with its own run folder.

Workers join a Kafka group only to divide the partitions among themselves. The run of a partition is
a folder on storage that all workers share. A worker that is assigned a partition continues from its
latest checkpoint, which holds its offset. A worker that has to give up a partition saves it and
releases the folder before the group assigns it to another worker.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from norewind.storage.files import make_folder
from norewind.streams.base_source import POLL_SECONDS
from norewind.streams.kafka.client import EACH_PARTITION, SCHEME, Client, error_text
from norewind.streams.stream import StreamError
from norewind.training.folder import FolderInUse, RunFolder
from norewind.training.hooks import Hooks
from norewind.training.progress import Progress
from norewind.training.settings import Settings, SettingsError, check_scopes
from norewind.training.train_folder import train_folder

# How many seconds to wait for a folder that is still held by a worker which the group has excluded.
FOLDER_WAIT_SECONDS = 60.0


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
                with RunFolder(self.path, say=self.progress.say) as folder:
                    train_folder(self.settings, folder, progress=self.progress, hooks=hooks)
                return
            except FolderInUse:
                if self.ending.wait(POLL_SECONDS) or time.monotonic() > deadline:
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
            message = consumer.poll(POLL_SECONDS)
            error = None if message is None else message.error()
            if error is not None and not error.retriable() and error.code() not in passing:
                raise StreamError(f"the group {options['group.id']!r} cannot be joined: {error_text(error)}.")
    finally:
        # In this order, so that the group reassigns only partitions that are saved and released.
        errors = worker.end(list(worker.runs))
        consumer.close()
    if errors:
        raise errors[0]
