"""Kafka clients: addresses of topics, the client library, and the meaning of its errors."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from norewind.streams.stream import StreamError
from norewind.wording import first_few, missing_package

SCHEME = "kafka://"
# At the end of an address: each partition is a separate run.
EACH_PARTITION = "/*"
# Seconds that brokers may take to answer when a run begins.
START_SECONDS = 10.0
# Seconds that brokers may be unreachable during a run.
OUTAGE_SECONDS = 60.0

# Our own messages replace those that librdkafka would write to standard error.
_LOG = logging.getLogger("norewind.kafka")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False


class Address(NamedTuple):
    """A topic and the partitions to read.

    Attributes:
        topic: the name of the topic.
        partitions: the numbers of the partitions; empty for all of them.
    """

    topic: str
    partitions: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> "Address":
        """Parse kafka://topic, or kafka://topic/0,2 for some of its partitions.

        Args:
            text: the address.

        Raises:
            StreamError: the text is not such an address.

        >>> Address.of("kafka://readings/0,2")
        Address(topic='readings', partitions=(0, 2))
        """
        topic, _, places = text.removeprefix(SCHEME).partition("/")
        numbers = places.split(",") if places else []
        if not topic or not all(number.isdecimal() and int(number) < 2**15 for number in numbers):
            raise StreamError(f"{text!r} names no topic: write kafka://topic, or kafka://topic/0,2 for two partitions.")
        return cls(topic, tuple(sorted({int(number) for number in numbers})))


class Client:
    """Connection settings for the brokers, and the latest error that they reported.

    Args:
        brokers: host:port, or several of them separated by commas.
        file: a file with more options of librdkafka, such as credentials: one name = value per line. Options that
            correctness depends on are set by norewind and cannot be overridden there.

    Attributes:
        kafka: the client library.
        latest_error: the latest error that the brokers reported; empty if they answer.

    Raises:
        StreamError: there are no brokers, the file cannot be read, or the library is not installed.
    """

    def __init__(self, brokers: str | None, file: str | None):
        if not brokers:
            raise StreamError('kafka:// needs the address of a broker: brokers="host:9092".')
        self.brokers, self.latest_error = brokers, ""
        self._options = {} if file is None else _read_options(Path(file))
        try:
            import confluent_kafka
        except ImportError:
            raise StreamError(f"kafka://: {missing_package('confluent-kafka', 'kafka')}.") from None
        self.kafka: Any = confluent_kafka

    def make(self, kind: str, options: dict[str, Any]) -> Any:
        """Create a Consumer or a Producer.

        Args:
            kind: "Consumer" or "Producer".
            options: options of librdkafka, which override those in the file.

        Raises:
            StreamError: the library rejects the options.
        """
        ours = {"bootstrap.servers": self.brokers, "error_cb": self._note_error, "client.id": "norewind", **options}
        try:
            return getattr(self.kafka, kind)({**self._options, **ours}, logger=_LOG)
        except (self.kafka.KafkaException, ValueError, TypeError) as error:
            raise StreamError(f"the options of the client are rejected: {error_text(error)}.") from None

    def _note_error(self, error: Any) -> None:
        # "All brokers are down" is less informative than the error of a single broker.
        if not self.latest_error or error.code() != self.kafka.KafkaError._ALL_BROKERS_DOWN:
            self.latest_error = error_text(error)

    def unreachable_error(self, error: Exception, for_seconds: float | None = None) -> StreamError:
        """Return the error for brokers that do not answer.

        Args:
            error: the error of the client library. An error that the brokers reported takes precedence.
            for_seconds: how long they have not answered.
        """
        cause = self.latest_error or error_text(error)
        since = f" for {for_seconds:.0f} seconds" if for_seconds else ""
        return StreamError(
            f"the brokers at {self.brokers} do not answer{since}: {cause}. Check the addresses (brokers=) "
            "and the credentials (client=)."
        )

    def partitions(self, consumer: Any, topic: str) -> list[int]:
        """Return the partitions of a topic.

        Args:
            consumer: the consumer with which to ask.
            topic: the name of the topic.

        Raises:
            StreamError: the topic does not exist, or the brokers do not answer.
        """
        try:
            about = consumer.list_topics(topic, timeout=START_SECONDS).topics[topic]
        except self.kafka.KafkaException as error:
            consumer.poll(0)  # lets the client report the cause
            raise self.unreachable_error(error) from None
        if about.error is not None:
            if about.error.code() != self.kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise StreamError(f"{SCHEME}{topic} cannot be read: {error_text(about.error)}.")
            topics = consumer.list_topics(timeout=START_SECONDS).topics
            public = first_few(sorted(name for name in topics if not name.startswith("__")), 20)
            raise StreamError(f"there is no topic {topic!r} at {self.brokers}. Topics there: {public or 'none'}.")
        return sorted(about.partitions)


def _read_options(path: Path) -> dict[str, str]:
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


def error_text(error: Any) -> str:
    """Return the message of a client error, without the names of its threads."""
    cause = error.args[0] if isinstance(error, Exception) and error.args else error
    words = getattr(cause, "str", cause.__str__)
    return words().rstrip(". \n")
