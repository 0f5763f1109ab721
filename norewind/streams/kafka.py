"""Topics of Kafka as sources of JSON messages, and how to reach the brokers."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from norewind.streams.messages import Message, MessageLines, MessageProgress, Rounds
from norewind.streams.reading import SLICE, BaseSource
from norewind.streams.stream import StreamError

SCHEME = "kafka://"
# At the end of an address: each partition is a run of its own.
EACH = "/*"
# Seconds that brokers may take to answer when a run begins.
AT_START = 10.0
# Seconds that brokers may be away while a run goes on.
AWAY = 60.0
PROBE = 5.0
AT_ONCE = 1_000
# Bytes of messages that are held for the order, over all partitions.
HELD = 64 << 20


# Our own messages replace what librdkafka would write to standard error.
_LOG = logging.getLogger("norewind.kafka")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False


class Address(NamedTuple):
    """A topic, and which of its partitions to read (none: all of them)."""

    topic: str
    partitions: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> "Address":
        """Read kafka://topic, or kafka://topic/0,2 for some of its partitions.

        >>> Address.of("kafka://readings/0,2")
        Address(topic='readings', partitions=(0, 2))
        """
        topic, _, places = text.removeprefix(SCHEME).partition("/")
        numbers = places.split(",") if places else []
        if not topic or not all(number.isdecimal() and int(number) < 2**15 for number in numbers):
            raise StreamError(f"{text!r} names no topic: write kafka://topic, or kafka://topic/0,2 for two partitions.")
        return cls(topic, tuple(sorted({int(number) for number in numbers})))


def library() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise StreamError(
            "kafka:// needs the package confluent-kafka, which is not installed: pip install 'norewind[kafka]'"
        ) from None
    return confluent_kafka


class Client:
    """How to reach the brokers, and what they last complained about.

    - `brokers`: host:port, or several with commas between them.
    - `file`: a file with more options of librdkafka, such as credentials: one name = value
      a line. What a run depends on is not taken from it.
    """

    def __init__(self, brokers: str | None, file: str | None = None):
        if not brokers:
            raise StreamError("kafka:// needs the address of a broker: --brokers host:9092.")
        self.brokers, self.complaint = brokers, ""
        self._options = {} if file is None else read_options(Path(file))

    def make(self, kind: str, options: dict[str, Any]) -> Any:
        """A Consumer or a Producer."""
        kafka = library()
        ours = {"bootstrap.servers": self.brokers, "error_cb": self._complain, "client.id": "norewind", **options}
        try:
            return getattr(kafka, kind)({**self._options, **ours}, logger=_LOG)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise StreamError(f"the options of the client are refused: {why(error)}.") from None

    def _complain(self, error: Any) -> None:
        # That all of them are down says less than what was wrong with one.
        if not self.complaint or error.code() != library().KafkaError._ALL_BROKERS_DOWN:
            self.complaint = why(error)

    def unreachable(self, error: Exception, for_seconds: float | None = None) -> StreamError:
        found = self.complaint or why(error)
        since = f" for {for_seconds:.0f} seconds" if for_seconds else ""
        return StreamError(
            f"the brokers at {self.brokers} do not answer{since}: {found}. Check --brokers, and the credentials in "
            "the file of --client."
        )


def read_options(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StreamError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    options = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if line.strip() and not line.lstrip().startswith("#"):
            if not equals:
                raise StreamError(f"{path}, line {number}: not of the form name = value.")
            options[name.strip()] = value.strip()
    return options


def why(error: Any) -> str:
    """What an error of the client says, without the names of its threads."""
    cause = error.args[0] if isinstance(error, Exception) and error.args else error
    words = getattr(cause, "str", cause.__str__)
    return words().rstrip(". \n")


def partitions_of(client: Client, consumer: Any, topic: str) -> list[int]:
    """The partitions of a topic; refuses one that is not there."""
    kafka = library()
    try:
        about = consumer.list_topics(topic, timeout=AT_START).topics[topic]
    except kafka.KafkaException as error:
        consumer.poll(0)  # lets the client say what was wrong
        raise client.unreachable(error) from None
    if about.error is not None:
        if about.error.code() != kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise StreamError(f"{SCHEME}{topic} cannot be read: {why(about.error)}.")
        there = sorted(name for name in consumer.list_topics(timeout=AT_START).topics if not name.startswith("__"))
        few = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
        raise StreamError(f"there is no topic {topic!r} at {client.brokers}. There is {few or 'none at all'}.")
    return sorted(about.partitions)


class Topic(BaseSource):
    """The messages of a topic, in the place of a `Source`.

    - `address`: kafka://topic, or kafka://topic/0,2 for some of its partitions.
    - `client`: how to reach the brokers.
    - `group`: the name under which offsets are committed, for those who watch how far the
      run is. Where it goes on is in its own position.
    - `continues`: go on although messages were deleted before they were read, or although
      the position belongs to another source.
    - `stop`: asked while waiting. Once it returns True, no more is read.
    - `final`: end where the topic ends now.
    - `report`: called with a sentence about every message that is skipped.
    """

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
        self._client, self._continues, self._stop, self._final, self._report = client, continues, stop, final, report
        self._kafka = library()
        self._group = group
        self._consumer = client.make(
            "Consumer",
            {
                "group.id": group or "norewind",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 16_384,
            },
        )
        self._paused: set[int] = set()
        self._away: float | None = None
        self._probed = 0.0

    @property
    def size(self) -> int:
        """As for a file: the messages by which columns are judged are there, or never will be."""
        return 0

    def lines(self, start: dict[str, Any]) -> MessageLines:
        """Go to a position, or to the first messages there are."""
        there = partitions_of(self._client, self._consumer, self._topic)
        saved = start.get("messages") or {}
        if not saved and start.get("offset") and not self._continues:
            raise StreamError(
                f"the run has read another source, not {self.name}. To continue with the messages of this topic, "
                "say that it continues the stream (--continues)."
            )
        if saved and saved["topic"] != self._topic:
            raise StreamError(f"the run has read the topic {saved['topic']!r}, but now it is {self._topic!r}.")
        before = {int(partition): offset for partition, offset in saved.get("offsets", {}).items()}
        partitions = list(self._wanted) or there
        gone = [partition for partition in {*partitions, *before} if partition not in there]
        if gone:
            raise StreamError(f"{self.name} has no partition {gone[0]}, but {len(there)} partitions: 0 to {there[-1]}.")
        if self._wanted and before and set(before) != set(self._wanted):
            raise StreamError(f"the run has read the partitions {sorted(before)}, but now they are {partitions}.")
        self._ends, offsets, lost = {}, {}, 0
        for partition in partitions:
            first, self._ends[partition] = self._range(partition)
            offsets[partition] = before.get(partition, first)
            if not first <= offsets[partition] <= self._ends[partition]:
                self._check_range(partition, offsets[partition], first)
                lost += max(0, first - offsets[partition])
                offsets[partition] = first
        until = {int(partition): end for partition, end in saved.get("until", {}).items()}
        self.rounds, self._has_begun = Rounds(offsets, until), False
        self._consumer.assign([self._place(partition, offset) for partition, offset in offsets.items()])
        progress = MessageProgress(start, self._topic, offsets, self.rounds)
        if lost:
            progress.skip("messages deleted before they were read", lost)
        return MessageLines(self.rounds, progress, lambda line: self._report(f"{self.name}, {line}"))

    def _fragments(self, deadline: float | None) -> Iterator[bytes]:
        """Fetch messages; yields when some have come."""
        late = False
        while not (late or self.ended or self._stop()):
            if self.rounds.is_over() and self._next_round():
                yield b""
            left = SLICE if deadline is None else deadline - time.monotonic()
            late = left <= 0
            if not self.ended and self._fetch(min(SLICE, max(0.0, left))):
                yield b""

    def _next_round(self) -> bool:
        """Begin the next round: first everything that was there when the topic was opened, then whatever has come."""
        if not self._has_begun:
            self._has_begun = True
            return self.rounds.begin(self._ends)
        self.ended = self._final
        return not self.ended and self.rounds.begin(self.rounds.reached)

    def _fetch(self, seconds: float) -> bool:
        """Take what has come, or wait for it; whether anything has."""
        found = self._consumer.consume(AT_ONCE, seconds)
        for message in found:
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is None:
                kind, moment = message.timestamp()
                moment = moment if kind else -1
                self.rounds.add(Message(partition, offset, moment, message.key(), message.value()))
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self.rounds.reach(partition, offset)
            else:
                self._refuse(error, partition)
        self._hold_back()
        self._check_alive(bool(found))
        return bool(found)

    def _hold_back(self) -> None:
        """Fetch no more of a partition that is far ahead of the others, until it has been used up by half."""
        limit = max(1 << 20, HELD // len(self.rounds.sizes))
        full = {partition for partition, size in self.rounds.sizes.items() if size > limit} - self._paused
        free = {partition for partition in self._paused if self.rounds.sizes[partition] < limit / 2}
        if full:
            self._consumer.pause([self._place(partition) for partition in full])
        if free:
            self._consumer.resume([self._place(partition) for partition in free])
        self._paused = (self._paused | full) - free

    def _check_alive(self, came: bool) -> None:
        """Wait for brokers that have gone away, but not forever."""
        if not came and self._client.complaint:
            now = time.monotonic()
            self._away = self._away or now
            if now - self._probed < min(PROBE, AWAY / 4):
                return
            self._probed = now
            try:
                self._consumer.list_topics(self._topic, timeout=min(1.0, AWAY / 4))
            except self._kafka.KafkaException as error:
                if now - self._away > AWAY:
                    raise self._client.unreachable(error, now - self._away) from None
                return
        self._away, self._client.complaint = None, ""

    def _refuse(self, error: Any, partition: int) -> None:
        codes = self._kafka.KafkaError
        if error.code() in (codes._ALL_BROKERS_DOWN, codes._TRANSPORT):
            self._client.complaint = why(error)
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            self._check_range(partition, self.rounds.reached[partition], self._range(partition)[0], running=True)
        else:
            raise StreamError(f"{self.name}, partition {partition} cannot be read: {why(error)}.")

    def _check_range(self, partition: int, offset: int, first: int, *, running: bool = False) -> None:
        """Refuse an offset at which there is nothing any more."""
        if self._continues and not running:
            return
        found = "has no such offset: it is not the one that the run has read, or was created again"
        if offset < first:
            found = f"now begins at {first}: {first - offset:,} messages were deleted before they were read"
        raise StreamError(
            f"{self.name}, partition {partition}: the run continues at offset {offset}, but the topic {found}. "
            "To continue with what the topic holds: norewind resume RUN --continues."
        )

    def _range(self, partition: int) -> tuple[int, int]:
        try:
            return self._consumer.get_watermark_offsets(self._place(partition), timeout=AT_START)
        except self._kafka.KafkaException as error:
            raise self._client.unreachable(error) from None

    def _place(self, partition: int, *offset: int) -> Any:
        return self._kafka.TopicPartition(self._topic, partition, *offset)

    def show(self, position: dict[str, Any]) -> None:
        """Commit the offsets of a position under the name of the group, for those who watch; nothing depends on it."""
        messages = position.get("messages")
        if self._group and messages and not self.closed:
            offsets = [self._place(int(partition), offset) for partition, offset in messages["offsets"].items()]
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._consumer.close()
