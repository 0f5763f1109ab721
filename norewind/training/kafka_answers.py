"""Predictions as messages of a topic, each exactly once: transactions that are committed with a checkpoint.

Correctness depends on the order. All answers up to a checkpoint are in one transaction. The
checkpoint is written first; then the transaction is committed, and with it the offsets of
the checkpoint and its name. So Kafka is authoritative: after any crash, the run continues
from the checkpoint named by the last committed transaction. A checkpoint written after it is
removed and made again, since nobody has seen its answers.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from norewind.storage.checkpoint import checkpoints, read_metadata
from norewind.storage.files import write_atomically
from norewind.streams.kafka.client import OUTAGE_SECONDS, SCHEME, START_SECONDS, Address, Client, error_text
from norewind.streams.stream import StreamError
from norewind.training.folder import CHECKPOINTS, RunFolder
from norewind.training.log import as_lines
from norewind.training.settings import Settings, SettingsError

MARK = "norewind "
# A file that records that answers were committed, since brokers forget it after a week without commits.
NOTE = "answers.txt"
# Seconds; by default, brokers do not allow more.
MAX_TRANSACTION = 900.0


@contextmanager
def answering(
    settings: Settings, folder: RunFolder, *, continues: bool, stop: Callable[[], bool]
) -> Iterator["Answers | None"]:
    """Provide the writer of answers to the topic that settings name; None if predictions are written elsewhere.

    The folder is moved to the checkpoint that was committed last.

    Args:
        settings: where predictions are sent, and how often checkpoints are written.
        folder: the run folder, entered by the caller.
        continues: continue from the latest checkpoint if the brokers have forgotten the last commit.
        stop: called while waiting for the brokers. Once it returns True, errors are raised immediately.
    """
    if not settings.predictions.startswith(SCHEME):
        yield None
        return
    answers = Answers(settings, stop)
    try:
        answers.return_to_commit(folder, continues=continues)
        yield answers
    finally:
        answers.abandon()


class Answers:
    """A transactional producer of answers.

    Args:
        settings: the settings, which name both topics, the brokers and the group.
        stop: called while waiting for the brokers. Once it returns True, errors are raised immediately.

    Raises:
        SettingsError: the settings do not fit together.
    """

    def __init__(self, settings: Settings, stop: Callable[[], bool]):
        if not settings.source.startswith(SCHEME):
            raise SettingsError(
                "predictions can be written to a topic only if the source is also a topic (kafka://topic)."
            )
        if not settings.group:
            raise SettingsError("writing predictions to a topic requires a consumer group: pass group=.")
        self._source, self._topic = Address.of(settings.source), Address.of(settings.predictions).topic
        if self._source.topic == self._topic:
            raise SettingsError("predictions must be written to a different topic than the one that is read.")
        if not 0 < settings.checkpoint_seconds <= MAX_TRANSACTION / 2:
            raise SettingsError(
                f"checkpoint_seconds is {settings.checkpoint_seconds:g}, but answers are committed with checkpoints, "
                f"and brokers wait at most {MAX_TRANSACTION:g} seconds: choose at most half of that, and not 0."
            )
        self._group = settings.group
        self._client = Client(settings.brokers, settings.client)
        self._stop = stop
        self._kafka = self._client.kafka
        options = {"group.id": settings.group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._consumer = self._client.make("Consumer", options)
        partitions = "".join(f"-{partition}" for partition in self._source.partitions)
        seconds = min(MAX_TRANSACTION, 60 + 2 * settings.checkpoint_seconds)
        self._producer = self._client.make(
            "Producer",
            {
                "transactional.id": f"norewind-{settings.group}-{self._source.topic}{partitions}",
                "transaction.timeout.ms": int(1000 * seconds),
                # Like Java clients, so that equal keys are in the same partition.
                "partitioner": "murmur2_random",
            },
        )
        self._open = False
        self._note: Path | None = None

    def return_to_commit(self, folder: RunFolder, *, continues: bool = False) -> None:
        """Stop any other producer of this group, abort its transaction, and go back to the last committed checkpoint.

        Args:
            folder: the run folder.
            continues: continue from the latest checkpoint if the brokers have forgotten the last commit.

        Raises:
            StreamError: the committed checkpoint is not in the folder, or the brokers have forgotten it.
        """
        there = self._client.partitions(self._consumer, self._source.topic)
        self._client.partitions(self._consumer, self._topic)
        self._retry(lambda: self._producer.init_transactions(START_SECONDS))
        mark, self._note = self._committed(list(self._source.partitions) or there), folder.path / NOTE
        paths = {path.stem: path for path in checkpoints(folder.path / CHECKPOINTS)}
        if mark is not None and mark not in paths:
            raise StreamError(
                f"the group {self._group!r} has answered {self._source.topic!r} up to the checkpoint {mark}, which "
                f"is not in {folder.path}: another run answers under this name. Choose another group (group=)."
            )
        if mark is not None:
            self._remember()
            folder.continue_from(paths[mark])
        elif self._note.exists() and not continues:
            raise StreamError(
                f"the brokers no longer know how far the group {self._group!r} has answered. (They forget it after "
                "a week without answers.) To continue from the latest checkpoint, whose answers were committed unless "
                f"the run was killed just then: norewind resume {folder.path} --continues."
            )
        elif not self._note.exists():
            # Checkpoints that were written for a first transaction that was never committed.
            settings = {path: read_metadata(path).get("settings", {}) for path in paths.values()}
            earlier = [path for path in paths.values() if not str(settings[path].get("predictions")).startswith(SCHEME)]
            if len(earlier) < len(paths):
                folder.continue_from(earlier[-1] if earlier else None)

    def _committed(self, partitions: list[int]) -> str | None:
        """Return the name of the checkpoint whose transaction was committed last."""
        places = [self._kafka.TopicPartition(self._source.topic, partition) for partition in partitions]
        marks = {place.metadata for place in self._retry(lambda: self._consumer.committed(places, START_SECONDS))}
        names = [mark.removeprefix(MARK).rstrip("\0") for mark in marks if mark and mark.startswith(MARK)]
        return max(names, default=None)

    def write(self, entries: Iterable[dict[str, Any]]) -> None:
        """Send answers. They become visible when they are committed.

        Args:
            entries: the predictions, one message each.
        """
        self._begin()
        for entry in entries:
            copied = dict(entry.get("copied", {}))
            # The lines of a fleet name their key themselves.
            key = copied.pop("@key", entry.get("key"))
            value = {**entry, "copied": copied} if copied else {n: v for n, v in entry.items() if n != "copied"}
            self._send(as_lines([value])[:-1], key)
        self._producer.poll(0)

    def _send(self, value: bytes, key: str | None) -> None:
        deadline = time.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                return self._producer.produce(self._topic, value, key=None if key is None else str(key).encode())
            except BufferError:
                # Earlier messages have not been sent yet.
                if self._producer.poll(0.1) == 0 and time.monotonic() > deadline:
                    raise self._client.unreachable_error(
                        TimeoutError("answers cannot be sent"), OUTAGE_SECONDS
                    ) from None
            except self._kafka.KafkaException as error:
                raise self._error_of(error) from None

    def commit(self, path: Path) -> None:
        """Commit the answers up to the checkpoint that was just written, with its offsets and its name.

        Args:
            path: the checkpoint.
        """
        self._begin()
        offsets = read_metadata(path)["position"]["stream"]["messages"]["offsets"]
        places = [
            self._kafka.TopicPartition(self._source.topic, int(partition), offset, MARK + path.stem)
            for partition, offset in offsets.items()
        ]
        group = self._consumer.consumer_group_metadata()
        self._retry(lambda: self._producer.send_offsets_to_transaction(places, group, START_SECONDS))
        self._retry(lambda: self._producer.commit_transaction(START_SECONDS))
        self._open = False
        self._remember()

    def abandon(self) -> None:
        """Abort the open transaction."""
        # If this fails, the brokers do it after a timeout, and a run that continues does it immediately.
        with suppress(self._kafka.KafkaException):
            if self._open:
                self._producer.abort_transaction(START_SECONDS)
        self._open = False
        self._consumer.close()

    def _begin(self) -> None:
        if not self._open:
            self._retry(self._producer.begin_transaction)
            self._open = True

    def _remember(self) -> None:
        if self._note is not None and not self._note.exists():
            write_atomically(self._note, f"Answers of this run were committed by the group {self._group}.\n".encode())

    def _retry(self, act: Callable[[], Any]) -> Any:
        """Call a function, and repeat it while the brokers may come back."""
        began = time.monotonic()
        while True:
            try:
                return act()
            except self._kafka.KafkaException as error:
                cause, waited = error.args[0], time.monotonic() - began
                again = cause.retriable() or cause.code() == self._kafka.KafkaError._TIMED_OUT
                if not again or self._stop() or waited > (OUTAGE_SECONDS if self._open else START_SECONDS):
                    raise self._error_of(error) from None

    def _error_of(self, error: Any) -> StreamError:
        codes, cause = self._kafka.KafkaError, error.args[0]
        with suppress(self._kafka.KafkaException):
            self._producer.poll(0)  # lets the client report the cause
        if cause.code() in (codes._FENCED, codes.INVALID_PRODUCER_EPOCH, codes.PRODUCER_FENCED):
            other = f"another process has begun to answer for the group {self._group!r}"
            return StreamError(f"{other}: this one stops, and the other one answers what was not committed.")
        if cause.code() in (codes._TIMED_OUT, codes._TRANSPORT, codes._ALL_BROKERS_DOWN):
            return self._client.unreachable_error(error)
        return StreamError(
            f"{SCHEME}{self._topic}: answers cannot be committed: {error_text(error)}. Nothing is lost: resume the run."
        )
