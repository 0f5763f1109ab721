"""The partitions of a topic as runs of their own, trained by whichever worker the group gives them to.

Workers join a group of Kafka to be told who takes which partition, and for nothing else. The
run of a partition is a folder on storage that all of them see. Who is given a partition goes
on from its newest checkpoint, which holds its offset; who has to give it away saves, and lets
go of the folder, before the group hands it on.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from norewind.runs.folder import RunFolder
from norewind.runs.hooks import Hooks
from norewind.runs.lock import FolderInUse
from norewind.runs.progress import Progress
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.train import train
from norewind.streams.kafka import EACH, SCHEME, Client, library, partitions_of, why
from norewind.streams.reading import SLICE
from norewind.streams.stream import StreamError

PATIENCE = 60.0
"""Seconds that a folder may be held by a worker that the group has given up on."""


class Partition(threading.Thread):
    """The run of one partition, in a thread. `error` is what ended it, unless it was asked to."""

    def __init__(self, settings: Settings, path: Path, progress: Progress):
        super().__init__(name=path.name)
        self.settings, self.path, self.progress = settings, path, progress
        self.ending, self.begun = threading.Event(), False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with ExitStack() as stack:
                folder = self._held(stack)
                folder.new = folder.saved is None
                hooks = Hooks(begin=self._begin, should_stop=self.ending.is_set, live=False)
                train(self.settings, folder, progress=self.progress, hooks=hooks)
        except BaseException as error:
            # Who stops before the first message has come has nothing to save.
            if self.begun or not self.ending.is_set():
                self.error = error
                self.progress.warn(f"{self.path} has failed.")

    def _held(self, stack: ExitStack) -> RunFolder:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return stack.enter_context(RunFolder(self.path, say=self.progress.say))
            except FolderInUse:
                if self.ending.wait(SLICE) or time.monotonic() > deadline:
                    raise

    def _begin(self, _: Any) -> None:
        self.begun = True


class Worker:
    """The partitions that this process has been given."""

    def __init__(self, settings: Settings, path: Path, progress: Progress):
        self.settings, self.path, self.progress = settings, path, progress
        self.topic = settings.source.removeprefix(SCHEME).removesuffix(EACH)
        self.runs: dict[int, Partition] = {}

    def assigned(self, consumer: Any, places: list[Any]) -> None:
        consumer.incremental_assign(places)
        consumer.pause(places)  # each run reads its partition itself
        for place in places:
            name = f"partition-{place.partition}"
            settings = replace(self.settings, source=f"{SCHEME}{self.topic}/{place.partition}")
            self.runs[place.partition] = run = Partition(settings, self.path / name, self.progress)
            run.start()

    def revoked(self, consumer: Any, places: list[Any]) -> None:
        errors = self.end(place.partition for place in places)
        consumer.incremental_unassign(places)
        if errors:
            raise errors[0]

    def lost(self, consumer: Any, places: list[Any]) -> None:
        """The group has given up on this worker, and somebody else may be at work: what fails now, fails to do harm."""
        self.end(place.partition for place in places)
        consumer.incremental_unassign(places)

    def end(self, partitions: Iterable[int]) -> list[BaseException]:
        """Save these partitions and let go of their folders; what went wrong."""
        runs = [self.runs.pop(partition) for partition in list(partitions) if partition in self.runs]
        for run in runs:
            run.ending.set()
        for run in runs:
            run.join()
            self.progress.end(str(run.path), "saved and free")
        return [run.error for run in runs if run.error is not None]

    def failed(self) -> BaseException | None:
        return next((run.error for run in self.runs.values() if run.error is not None), None)


def train_partitions(settings: Settings, path: Path, progress: Progress, stop: Callable[[], bool]) -> None:
    """Train the partitions that the group hands out, each in a folder of its own under `path`, until `stop()`."""
    if not settings.group:
        raise SettingsError(f"{settings.source}: name the --group of the workers that share the partitions.")
    if settings.final or settings.shards > 1:
        raise SettingsError(f"{settings.source}: workers go on until they are stopped: without --final and --shards.")
    worker, client, kafka = Worker(settings, path, progress), Client(settings.brokers, settings.client), library()
    # A group of its own: brokers take offsets that nobody of the group sends only while it has no members.
    options = {
        "group.id": f"{settings.group}-workers",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "cooperative-sticky",
        "queued.max.messages.kbytes": 1_024,
    }
    consumer = client.make("Consumer", options)
    try:
        partitions_of(client, consumer, worker.topic)
        path.mkdir(parents=True, exist_ok=True)
        callbacks = {"on_assign": worker.assigned, "on_revoke": worker.revoked, "on_lost": worker.lost}
        consumer.subscribe([worker.topic], **callbacks)
        while not stop() and worker.failed() is None:
            message = consumer.poll(SLICE)
            error = None if message is None else message.error()
            if error is not None and not error.retriable() and error.code() not in _passing(kafka.KafkaError):
                raise StreamError(f"the group {options['group.id']!r} cannot be joined: {why(error)}.")
    finally:
        # In this order: the group hands on what is saved and free.
        errors = worker.end(list(worker.runs))
        consumer.close()
    if errors:
        raise errors[0]


def _passing(codes: Any) -> tuple[int, ...]:
    """Errors that pass; each run waits for its brokers, but not for ever."""
    return codes._ALL_BROKERS_DOWN, codes._TRANSPORT, codes._PARTITION_EOF, codes._MAX_POLL_EXCEEDED
