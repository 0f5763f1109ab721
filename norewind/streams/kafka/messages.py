"""The messages of a topic, in a reproducible order.

Partitions arrive independently of one another, and a broker does not define an order
between their messages. So they are read in rounds. A round is fixed when it begins: it
extends to a certain offset in every partition, and all its messages exist already. Within a
round, the partition whose next message is the oldest is first (then the one with the
lowest number), so the order depends only on the content. A position holds the offsets and the
end of the round. A silent partition takes no part in a round and delays nothing.
"""

import zlib
from collections import deque
from heapq import heappop, heappush
from itertools import islice
from typing import Any, NamedTuple

from norewind.streams.position import Mark, SourceProgress

# The columns that a message has in addition to the fields of its value.
MESSAGE_COLUMNS = frozenset({"@key", "@time"})
# Upper bound of offsets, so that one number can hold both an offset and a partition.
OFFSETS = 2**48


def message_line(partition: int, offset: int) -> int:
    """Encode the partition and offset of a message as one negative number, which cannot be mistaken for a line number.

    Args:
        partition: the partition of the message.
        offset: its offset in the partition.

    >>> message_place(message_line(3, 12))
    (3, 12)
    """
    return -1 - (partition * OFFSETS + offset)


def message_place(line: int) -> tuple[int, int]:
    """Decode a number made by `message_line` into a partition and an offset."""
    return divmod(-1 - line, OFFSETS)


class Message(NamedTuple):
    """A message as it was received.

    Attributes:
        partition: the number of its partition.
        offset: its offset in the partition.
        time: its time in milliseconds since 1970; −1 if it has none.
        key: its key, if it has one.
        value: its value; None for a tombstone.
    """

    partition: int
    offset: int
    time: int
    key: bytes | None
    value: bytes | None


def mark_after(here: Mark, message: Message) -> Mark:
    """Return how far a topic has been read after one more message.

    The checksum covers the messages and their order.

    Args:
        here: how far it was read before.
        message: the next message.
    """
    value = message.value or b""
    crc = zlib.crc32(b"%d %d " % (message.partition, message.offset) + value, here.crc)
    return here._replace(offset=here.offset + len(value) + 1, crc=crc, lines=here.lines + 1)


class Rounds:
    """Orders the messages of several partitions, round by round.

    Args:
        offsets: the offset at which each partition continues, as in a saved position.
        until: the offset at which the current round ends in each partition.

    Attributes:
        reached: the offset up to which each partition has been fetched.
        passed: the offset up to which each partition has been read.
        sizes: the bytes in each partition that have been fetched, but not read.
    """

    def __init__(self, offsets: dict[int, int], until: dict[int, int]):
        self.until = {partition: until.get(partition, offset) for partition, offset in offsets.items()}
        self.reached, self.passed = dict(offsets), dict(offsets)
        self.sizes = dict.fromkeys(offsets, 0)
        self._fetched: dict[int, deque[Message]] = {partition: deque() for partition in offsets}
        self._heads: list[tuple[int, int]] = []
        self._lacking: set[int] = set()
        self._ordered: deque[Message] = deque()
        self.begin(self.until)

    def is_over(self) -> bool:
        """Return whether no message of the current round is left."""
        return not (self._ordered or self._heads or self._lacking)

    def is_arriving(self) -> bool:
        """Return whether some messages of the current round have not been fetched yet."""
        return any(self.reached[partition] < until for partition, until in self.until.items())

    def begin(self, until: dict[int, int]) -> bool:
        """Begin a round.

        Args:
            until: the offset at which the round ends in each partition.

        Returns:
            Whether it has any messages, as far as is known.
        """
        self.until = dict(until)
        for partition in self.reached:
            self._find_next(partition)
        return not self.is_over()

    def add(self, message: Message) -> None:
        """Add a message that was fetched.

        Args:
            message: a message of any partition; one that was fetched before is ignored.
        """
        if message.offset < self.reached[message.partition]:
            return  # fetched twice
        self._fetched[message.partition].append(message)
        self.sizes[message.partition] += len(message.value or b"")
        self.reach(message.partition, message.offset + 1)

    def reach(self, partition: int, offset: int) -> None:
        """Note that a partition has no more messages before an offset. (Offsets may have gaps.)

        Args:
            partition: the number of the partition.
            offset: the offset of the next message that may come.
        """
        self.reached[partition] = max(offset, self.reached[partition])
        if partition in self._lacking:
            self._find_next(partition)

    def next_messages(self, count: int) -> list[Message]:
        """Return the next messages of this round, as far as they have arrived.

        Args:
            count: the maximum number of messages.
        """
        while len(self._ordered) < count and self._heads and not self._lacking:
            _, partition = heappop(self._heads)
            self._ordered.append(self._fetched[partition].popleft())
            self._find_next(partition)
        return list(islice(self._ordered, count))

    def drop(self) -> None:
        """Move past the next message."""
        message = self._ordered.popleft()
        self.sizes[message.partition] -= len(message.value or b"")
        self.passed[message.partition] = message.offset + 1

    def _find_next(self, partition: int) -> None:
        """Find the partition's next message in this round, or note that it has not arrived yet."""
        fetched, until = self._fetched[partition], self.until[partition]
        self._lacking.discard(partition)
        if fetched and fetched[0].offset < until:
            heappush(self._heads, (fetched[0].time, partition))
        elif not fetched and self.reached[partition] < until:
            self._lacking.add(partition)


class MessageProgress(SourceProgress):
    """How far a topic has been read. Its position includes the offsets and the round.

    Args:
        start: the position to start from.
        topic: the name of the topic.
        rounds: its messages.
    """

    def __init__(self, start: dict[str, Any], topic: str, rounds: Rounds):
        super().__init__(start)
        self._topic, self._rounds = topic, rounds
        self._places: dict[str, dict[int, int]] = {}

    def mark(self) -> None:
        super().mark()
        self._places = {"offsets": dict(self._rounds.passed), "until": self._rounds.until}

    def position(self, **rest: Any) -> dict[str, Any]:
        places = {name: {str(p): at[p] for p in sorted(at)} for name, at in self._places.items()}
        return super().position(**rest, messages={"topic": self._topic, **places})


def key_text(key: bytes) -> str:
    """Return the key of a message as text, or as hexadecimal digits if it is not UTF-8.

    >>> key_text(b"sensor 1"), key_text(bytes([255, 1]))
    ('sensor 1', '0xff01')
    """
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "0x" + key.hex()
