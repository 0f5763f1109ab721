"""How far a stream has been read, and saved positions, which may be damaged or belong to another stream."""

import json
import zlib
from copy import deepcopy
from typing import Annotated, Any, NamedTuple

import msgspec

from norewind.storage.decoded import as_kind
from norewind.streams.stream import StreamError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Mark(NamedTuple):
    """How far a source has been read.

    Attributes:
        offset: the number of bytes.
        crc: their checksum.
        lines: the number of newlines among them.
        counts: the number of skipped items by reason.
        inside: whether this is inside a line whose newline has not arrived yet.
    """

    offset: int = 0
    crc: int = 0
    lines: int = 0
    counts: dict[str, int] = {}  # noqa: RUF012 (never changed)
    inside: bool = False

    def after(self, data: bytes | bytearray) -> "Mark":
        """Return the mark after reading more bytes.

        Args:
            data: the bytes.
        """
        crc, lines = zlib.crc32(data, self.crc), self.lines + data.count(b"\n")
        return Mark(self.offset + len(data), crc, lines, self.counts, not data.endswith(b"\n"))


class SourceProgress:
    """How far a stream has read its source, and how far its samples extend.

    The position of a stream is the end of the samples that it has returned. Anything
    read or skipped after that is read again by a stream that resumes there. Before the
    first sample, it is the position that the stream started from.

    Args:
        start: the position that the stream starts from.

    Attributes:
        here: how far the source has been read.
        marked: the end of the samples.
        start: the position that the stream started from; None once a sample has been returned.
    """

    def __init__(self, start: dict[str, Any]):
        self.here = self.marked = Mark(**{name: start[name] for name in Mark._fields if name in start})
        self.start: dict[str, Any] | None = deepcopy(start)
        self._kind = start["kind"]

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.marked.counts if self.start is None else self.start["counts"])

    def read(self, data: bytes | bytearray) -> None:
        """Advance past some bytes.

        Args:
            data: the bytes.
        """
        self.here = self.here.after(data)

    def skip(self, reason: str, number: int = 1) -> None:
        """Count skipped items. The old counts are not modified, since `marked` may hold them.

        Args:
            reason: why they are skipped, as the name of the count.
            number: how many there are.
        """
        counts = self.here.counts
        self.here = self.here._replace(counts={**counts, reason: counts.get(reason, 0) + number})

    def mark(self) -> None:
        self.marked = self.here

    def note_returned(self, samples: int, problem: StreamError | None) -> None:
        """Note that samples are returned.

        Args:
            samples: the number of samples.
            problem: the error found after them, which is raised if there are no samples.
        """
        if samples:
            self.start = None
        elif problem:
            raise problem

    def end(self) -> None:
        """Move the position to the end of the source, so that items skipped after the last sample are counted too."""
        self.start = None
        self.mark()

    def position(self, **rest: Any) -> dict[str, Any]:
        """Return the position, with the additional fields `rest` of this kind of stream."""
        if self.start is not None:
            return deepcopy(self.start)
        offset, crc, lines, counts, _ = self.marked
        return {"kind": self._kind, "offset": offset, "crc": crc, "lines": lines, "counts": dict(counts), **rest}

    def too_short_error(self, name: str, content: str, needs: str, unfinished: int = 0) -> StreamError:
        """Return the error for a source that ends before its first sample.

        Args:
            name: the name of the source.
            content: the content so far, for the message.
            needs: the content that a sample needs, for the message.
            unfinished: the number of bytes at the end that belong to an incomplete line.
        """
        if unfinished:
            content += f", and {unfinished} bytes of an incomplete line"
            needs += ". If the file is complete, end it with a newline or pass final=True"
        elif self.here.offset == 0:
            return StreamError(f"{name} is empty: there is nothing to learn from.")
        skipped = "".join(f", {reason} skipped: {count}" for reason, count in self.here.counts.items())
        where = f"{name} ends at byte {self.here.offset}, before the first sample"
        return StreamError(f"{where} ({content}{skipped}). A sample needs {needs}.")


def init_position(kind: str, **rest: Any) -> dict[str, Any]:
    """Return the position at the start of a source, with the additional fields `rest` of this kind of stream."""
    return {"kind": kind, "offset": 0, "crc": 0, "lines": 0, "counts": {}, **rest}


class SourcePosition(msgspec.Struct, forbid_unknown_fields=True):
    """The fields shared by the positions of all streams of bytes."""

    kind: str
    offset: Count
    crc: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    lines: Count
    counts: dict[str, Count]


PartitionNumber = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,5}$")]


class MessagesPosition(msgspec.Struct, forbid_unknown_fields=True):
    """The position in a topic.

    Attributes:
        topic: the name of the topic.
        offsets: the offset reached in each partition.
        until: the offset at which the current round ends in each partition.
    """

    topic: str
    offsets: dict[PartitionNumber, Count]
    until: dict[PartitionNumber, Count]


def check_position(position: Any, kind: str, fields: type[msgspec.Struct], same: dict[str, Any]) -> None:
    """Check that a saved position fits a stream.

    Args:
        position: a position from a checkpoint, which may be anything.
        kind: the kind of the stream.
        fields: the fields that the position must have, with their types.
        same: options that must have the same value as when the position was saved.

    Raises:
        StreamError: the position is damaged, belongs to a stream of another kind, or was saved with other options.
    """
    if isinstance(position, dict) and position.get("kind") != kind:
        raise StreamError(
            f"the saved position belongs to a stream of {position.get('kind')!r}, but this is a stream of {kind!r}: "
            "open it with the settings that the position was saved with."
        )
    try:
        as_kind(position, fields)
    except msgspec.ValidationError as error:
        raise damaged_position_error(str(error).replace("`", "")) from None
    for name, value in same.items():
        if (before := position[name]) != value:
            raise StreamError(f"the run started with {name} = {before!r}, but now it is {value!r}. Change it back.")


def damaged_position_error(why: str) -> StreamError:
    return StreamError(f"the saved position is damaged: {why}. Resume from another checkpoint, or start a new run.")


def restart_position(position: dict[str, Any]) -> dict[str, Any]:
    """Return a position at the start of another source that keeps the knowledge in `position`.

    The alphabet, the columns and their statistics are kept. A task has no other source, so
    its position is returned unchanged.

    Args:
        position: a position of a stream.
    """
    if position.get("kind") == "task":
        return position
    start = init_position(position.get("kind", ""), previous=None, inside=False, messages=None)
    return {**position, **{name: value for name, value in start.items() if name in position}}


def fingerprint(position: dict[str, Any] | None) -> str:
    """Return a position as text, with checksums in place of its arrays."""
    return json.dumps(position, default=lambda array: [str(array.dtype), array.shape, zlib.crc32(array.tobytes())])
