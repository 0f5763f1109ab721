"""The messages of a topic, in a reproducible order.

Partitions come independently of one another, and a broker does not say in which order
their messages are to be read. So they are read in rounds. A round is fixed when it begins:
it goes up to a certain offset in every partition, and all its messages are there. Inside a
round, the partition whose next message is the oldest goes first (then the one with the
lowest number), so the order follows from the content. A position holds the offsets and the
end of the round. A partition that is silent has no part in a round, and keeps nobody waiting.
"""

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from heapq import heappop, heappush
from typing import Any, NamedTuple

from norewind.streams.columns import BadRow
from norewind.streams.position import Progress
from norewind.streams.reading import BaseLines, decoded
from norewind.streams.stream import as_line

# Columns of a message besides those of its value.
BESIDE = frozenset({"@key", "@time"})
YEAR_10000 = 253_402_300_800_000
# Bad messages that are reported one by one; after that only the hundredth, the thousandth and so on.
REPORTED = 10


class Message(NamedTuple):
    """A message as it came; its time is in milliseconds since 1970, or −1 if it has none."""

    partition: int
    offset: int
    time: int
    key: bytes | None
    value: bytes | None


class Rounds:
    """Puts messages of several partitions in order, round by round.

    `offsets` is where each partition goes on, `until` the end of the round that they are
    in, as a saved position has them. `reached` is where each partition has come to, and
    `sizes` the bytes of its messages that wait.
    """

    def __init__(self, offsets: dict[int, int], until: dict[int, int]):
        self.until = {partition: until.get(partition, offset) for partition, offset in offsets.items()}
        self.reached = dict(offsets)
        self.sizes = dict.fromkeys(offsets, 0)
        self._waiting: dict[int, deque[Message]] = {partition: deque() for partition in offsets}
        self._heads: list[tuple[int, int]] = []
        self._lacking: set[int] = set()
        self._ordered: deque[Message] = deque()
        for partition in offsets:
            self._look(partition)

    def is_over(self) -> bool:
        return not (self._ordered or self._heads or self._lacking)

    def begin(self, until: dict[int, int]) -> bool:
        """Begin a round that ends there, and return whether it has any messages, as far as one can tell."""
        self.until = dict(until)
        for partition in self.reached:
            self._look(partition)
        return not self.is_over()

    def add(self, message: Message) -> None:
        if message.offset < self.reached[message.partition]:
            return  # fetched twice
        self._waiting[message.partition].append(message)
        self.sizes[message.partition] += len(message.value or b"")
        self.reach(message.partition, message.offset + 1)

    def reach(self, partition: int, offset: int) -> None:
        """Note that there are no more messages before this offset. (Offsets may have gaps.)"""
        self.reached[partition] = max(offset, self.reached[partition])
        if partition in self._lacking:
            self._look(partition)

    def peek(self) -> Message | None:
        """The next message; None if it has not come yet, or the round is over."""
        return self._ordered[0] if self._ordered or self._order() else None

    def ahead(self, count: int) -> list[Message]:
        """The next messages of this round, as far as they have come."""
        while len(self._ordered) < count and self._order():
            pass
        return list(self._ordered)[:count]

    def drop(self) -> Message:
        """Move past the message that `peek` returned."""
        message = self._ordered.popleft()
        self.sizes[message.partition] -= len(message.value or b"")
        return message

    def _order(self) -> bool:
        if self._lacking or not self._heads:
            return False
        _, partition = heappop(self._heads)
        self._ordered.append(self._waiting[partition].popleft())
        self._look(partition)
        return True

    def _look(self, partition: int) -> None:
        """Find the partition's next message in this round, or note that it has not come yet."""
        waiting, until = self._waiting[partition], self.until[partition]
        self._lacking.discard(partition)
        if waiting and waiting[0].offset < until:
            heappush(self._heads, (waiting[0].time, partition))
        elif not waiting and self.reached[partition] < until:
            self._lacking.add(partition)


class MessageProgress(Progress):
    """How far a topic was read: the offsets and the round are part of the position."""

    def __init__(self, start: dict[str, Any], topic: str, offsets: dict[int, int], rounds: Rounds):
        super().__init__(start)
        self._topic, self._rounds = topic, rounds
        self._offsets, self._until = dict(offsets), rounds.until
        self._since: list[Message] = []

    def move_past(self, message: Message) -> None:
        value, here = message.value or b"", self.here
        # The checksum stands for the messages and their order.
        crc = zlib.crc32(b"%d %d " % (message.partition, message.offset) + value, here.crc)
        self.here = here._replace(offset=here.offset + len(value) + 1, crc=crc, lines=here.lines + 1)
        self._since.append(message)

    def mark(self) -> None:
        super().mark()
        for message in self._since:
            self._offsets[message.partition] = message.offset + 1
        self._since.clear()
        self._until = self._rounds.until

    def position(self, **rest: Any) -> dict[str, Any]:
        places = {"offsets": self._offsets, "until": self._until}
        named = {name: {str(partition): at[partition] for partition in sorted(at)} for name, at in places.items()}
        return super().position(**rest, messages={"topic": self._topic, **named})


class MessageLines(BaseLines):
    """Messages, with the interface of `Lines`."""

    def __init__(self, rounds: Rounds, progress: MessageProgress, report: Callable[[str], None]):
        self._rounds, self._report, self._reported = rounds, report, 0
        self.progress = self._moved = progress

    def peek(self, fragments: Iterator[bytes]) -> Message | None:
        while (message := self._rounds.peek()) is None:
            if next(fragments, None) is None:
                return None
        return message

    def ahead(self, fragments: Iterator[bytes], count: int) -> list[Message]:
        """The next messages of this round, which are there or on their way: no time plays a part."""
        rounds = self._rounds
        while len(found := rounds.ahead(count)) < count and any(
            rounds.reached[p] < rounds.until[p] for p in rounds.until
        ):
            if next(fragments, None) is None:
                break
        return found

    def drop(self) -> None:
        self._moved.move_past(self._rounds.drop())

    def skip(self, why: str) -> None:
        self._reported += 1
        number = self._reported
        if number <= REPORTED or str(number).strip("0") == "1":
            so_far = f" ({number:,} so far)" if number > REPORTED else ""
            self._report(f"{self.place()} is bad, and skipped: {why}.{so_far}")
        self.drop()

    def number(self) -> int:
        message = self._rounds.ahead(1)[0]
        return as_line(message.partition, message.offset)

    def place(self) -> str:
        message = self._rounds.ahead(1)[0]
        return f"partition {message.partition}, offset {message.offset}"

    def row(self, line: Message, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """The value of a message by column, with its key and its time."""
        if not line.value:
            raise BadRow("it has no value (a tombstone)" if line.value is None else "it is empty")
        moment = None
        if 0 <= line.time < YEAR_10000:
            moment = datetime.fromtimestamp(line.time / 1000, UTC).isoformat(timespec="milliseconds")
        key = None if line.key is None else key_text(line.key)
        return {**parse(decoded(line.value)), "@key": key, "@time": moment}


def key_text(key: bytes) -> str:
    """The key of a message as text; one that is not UTF-8 in hexadecimal digits.

    >>> key_text(b"sensor 1"), key_text(bytes([255, 1]))
    ('sensor 1', '0xff01')
    """
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "0x" + key.hex()
