"""Topics of Kafka as sources of JSON messages."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from norewind.streams.base_source import POLL_SECONDS, BaseSource, decoded
from norewind.streams.kafka.client import OUTAGE_SECONDS, START_SECONDS, Address, Client, error_text
from norewind.streams.kafka.messages import Message, MessageProgress, Rounds, key_text, mark_after, message_line
from norewind.streams.stream import BadRow, StreamError

PROBE_SECONDS = 5.0
MESSAGES_AT_ONCE = 1_000
# The maximum size of the messages that are buffered to put them in order, over all partitions (in bytes).
MAX_HELD_BYTES = 64 << 20
YEAR_10000 = 253_402_300_800_000
# Bad messages that are reported one by one; after that only the hundredth, the thousandth and so on.
MAX_REPORTS = 10
CONSUMER_OPTIONS = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16_384,
}


class Topic(BaseSource):
    """The messages of a topic, used in place of a `Source`.

    Args:
        address: kafka://topic, or kafka://topic/0,2 for some of its partitions.
        client: the connection settings.
        group: the name under which offsets are committed, for monitoring the progress of the run. A resumed run
            relies on its own position instead.
        continues: continue even if messages were deleted before they were read, or if the position belongs to a
            different source.
        stop: called while waiting. Once it returns True, nothing more is read.
        final: end where the topic ends at the start of the run.
        report: called with a sentence about every skipped message.

    Raises:
        StreamError: the address or the options of the client are invalid.
    """

    reads_ahead = False

    def __init__(
        self,
        address: str,
        client: Client,
        *,
        group: str | None = None,
        continues: bool = False,
        stop: Callable[[], bool] = lambda: False,
        final: bool = False,
        report: Callable[[str], None] = lambda line: None,
    ):
        self.name = address
        self._topic, self._wanted = Address.of(address)
        self._client = client
        self._kafka = client.kafka
        self._group = group
        self._continues = continues
        self._stop = stop
        self._final = final
        self._report = report
        self._consumer = client.make("Consumer", {"group.id": group or "norewind", **CONSUMER_OPTIONS})
        self._paused: set[int] = set()
        self._unreachable_since: float | None = None
        self._last_probe, self._reported = 0.0, 0

    def start(self, position: dict[str, Any]) -> None:
        """Go to a position, or to the oldest messages available.

        Args:
            position: a position of the stream.

        Raises:
            StreamError: the position does not match the topic, or its messages have been deleted.
        """
        existing = self._client.partitions(self._consumer, self._topic)
        saved = position.get("messages") or {}
        if not saved and position.get("offset") and not self._continues:
            raise StreamError(
                f"the run has read a different source, not {self.name}. To continue with the messages of this topic, "
                "pass continues=True."
            )
        if saved and saved["topic"] != self._topic:
            raise StreamError(f"the run has read the topic {saved['topic']!r}, but now the topic is {self._topic!r}.")
        before = {int(partition): offset for partition, offset in saved.get("offsets", {}).items()}
        partitions = list(self._wanted) or existing
        missing = [partition for partition in {*partitions, *before} if partition not in existing]
        if missing:
            raise StreamError(f"{self.name} has no partition {missing[0]}, only {len(existing)}: 0 to {existing[-1]}.")
        if self._wanted and before and set(before) != set(self._wanted):
            raise StreamError(f"the run has read the partitions {sorted(before)}, but now they are {partitions}.")
        self._ends, offsets = {}, {}
        lost = 0
        for partition in partitions:
            first, self._ends[partition] = self._range(partition)
            offsets[partition] = before.get(partition, first)
            if not first <= offsets[partition] <= self._ends[partition]:
                if not self._continues:
                    raise self._out_of_range(partition, offsets[partition], first)
                lost += max(0, first - offsets[partition])
                offsets[partition] = first
        until = {int(partition): end for partition, end in saved.get("until", {}).items()}
        self.rounds, self._has_begun = Rounds(offsets, until), False
        self._consumer.assign([self._topic_partition(partition, offset) for partition, offset in offsets.items()])
        self.progress = MessageProgress(position, self._topic, self.rounds)
        if lost:
            self.progress.skip("messages deleted before they were read", lost)

    def peek(self, count: int = 1) -> list[Message]:
        while not (messages := self.rounds.next_messages(count)) and self._has_more():
            pass
        return messages

    def preview(self, count: int) -> list[Message]:
        """Return the next messages of this round without moving past them.

        All of them exist already, so the result does not depend on timing.

        Args:
            count: the maximum number of messages.
        """
        rounds = self.rounds
        while len(messages := rounds.next_messages(count)) < count and rounds.is_arriving() and self._has_more():
            pass
        return messages

    def drop(self, records: Sequence[Message]) -> None:
        for message in records:
            self.progress.here = mark_after(self.progress.here, message)
            self.rounds.drop()

    def line_numbers(self, records: Sequence[Message]) -> np.ndarray:
        return np.array([message_line(message.partition, message.offset) for message in records])

    def location(self, record: Message) -> str:
        return f"partition {record.partition}, offset {record.offset}"

    def report(self, record: Message, problem: str) -> None:
        self._reported = number = self._reported + 1
        if number <= MAX_REPORTS or str(number).strip("0") == "1":
            so_far = f" ({number:,} so far)" if number > MAX_REPORTS else ""
            self._report(f"{self.name}, {self.location(record)} is bad and is skipped: {problem}.{so_far}")

    def parse(self, record: Message, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Return the value of a message as a dict by column, with its key and time.

        Args:
            record: the message.
            parse: the function that parses the text of the value.

        Raises:
            BadRow: the message has no value, or it cannot be read.
        """
        if not record.value:
            raise BadRow("it has no value (a tombstone)" if record.value is None else "it is empty")
        moment = None
        if 0 <= record.time < YEAR_10000:
            moment = datetime.fromtimestamp(record.time / 1000, UTC).isoformat(timespec="milliseconds")
        key = None if record.key is None else key_text(record.key)
        return {**parse(decoded(record.value)), "@key": key, "@time": moment}

    def _has_more(self) -> bool:
        """Wait until more messages arrive; return False at the end, at the deadline or when stopped."""
        while not (self.late or self.ended or self._stop()):
            if self.rounds.is_over() and self._next_round():
                return True
            left = POLL_SECONDS if self.deadline is None else self.deadline - time.monotonic()
            self.late = left <= 0
            if not self.ended and self._fetch(min(POLL_SECONDS, max(0.0, left))):
                return True
        return False

    def _next_round(self) -> bool:
        """Begin the next round: first all messages present at the start, then all that have arrived since."""
        if not self._has_begun:
            self._has_begun = True
            return self.rounds.begin(self._ends)
        self.ended = self._final
        return not self.ended and self.rounds.begin(self.rounds.reached)

    def _fetch(self, seconds: float) -> bool:
        """Fetch the messages that have arrived, or wait for some; return whether there were any."""
        messages = self._consumer.consume(MESSAGES_AT_ONCE, seconds)
        for message in messages:
            error = message.error()
            partition, offset = message.partition(), message.offset()
            if error is None:
                kind, moment = message.timestamp()
                moment = moment if kind else -1
                self.rounds.add(Message(partition, offset, moment, message.key(), message.value()))
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self.rounds.reach(partition, offset)
            else:
                self._handle_error(error, partition)
        self._hold_back()
        self._check_brokers(bool(messages))
        return bool(messages)

    def _hold_back(self) -> None:
        """Pause partitions that are far ahead of the others, until half of their messages have been read."""
        limit = max(1 << 20, MAX_HELD_BYTES // len(self.rounds.sizes))
        full = {partition for partition, size in self.rounds.sizes.items() if size > limit} - self._paused
        free = {partition for partition in self._paused if self.rounds.sizes[partition] < limit / 2}
        if full:
            self._consumer.pause([self._topic_partition(partition) for partition in full])
        if free:
            self._consumer.resume([self._topic_partition(partition) for partition in free])
        self._paused = (self._paused | full) - free

    def _check_brokers(self, have_answered: bool) -> None:
        """Wait for unreachable brokers, but not forever."""
        if not have_answered and self._client.latest_error:
            now = time.monotonic()
            self._unreachable_since = self._unreachable_since or now
            if now - self._last_probe < min(PROBE_SECONDS, OUTAGE_SECONDS / 4):
                return
            self._last_probe = now
            try:
                self._consumer.list_topics(self._topic, timeout=min(1.0, OUTAGE_SECONDS / 4))
            except self._kafka.KafkaException as error:
                if now - self._unreachable_since > OUTAGE_SECONDS:
                    raise self._client.unreachable_error(error, now - self._unreachable_since) from None
                return
        self._unreachable_since, self._client.latest_error = None, ""

    def _handle_error(self, error: Any, partition: int) -> None:
        codes = self._kafka.KafkaError
        if error.code() in (codes._ALL_BROKERS_DOWN, codes._TRANSPORT):
            self._client.latest_error = error_text(error)
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            raise self._out_of_range(partition, self.rounds.reached[partition], self._range(partition)[0])
        else:
            raise StreamError(f"{self.name}, partition {partition} cannot be read: {error_text(error)}.")

    def _out_of_range(self, partition: int, offset: int, first: int) -> StreamError:
        """Return the error for an offset whose messages no longer exist."""
        problem = "has no such offset: it is not the topic that the run has read, or it was recreated"
        if offset < first:
            problem = f"now begins at {first}: {first - offset:,} messages were deleted before they were read"
        return StreamError(
            f"{self.name}, partition {partition}: the run continues at offset {offset}, but the topic {problem}. "
            "To continue with the messages that are left: norewind resume RUN --continues."
        )

    def _range(self, partition: int) -> tuple[int, int]:
        try:
            return self._consumer.get_watermark_offsets(self._topic_partition(partition), timeout=START_SECONDS)
        except self._kafka.KafkaException as error:
            raise self._client.unreachable_error(error) from None

    def _topic_partition(self, partition: int, *offset: int) -> Any:
        return self._kafka.TopicPartition(self._topic, partition, *offset)

    def commit(self, position: dict[str, Any]) -> None:
        """Commit the offsets of a position under the name of the group, for monitoring; nothing depends on it.

        Args:
            position: the position of the stream.
        """
        messages = position.get("messages")
        if self._group and messages and not self.closed:
            offsets = [self._topic_partition(int(number), offset) for number, offset in messages["offsets"].items()]
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._consumer.close()
