"""How far a stream was read, and saved positions, which may be damaged or belong to another stream."""

import sys
import zlib
from copy import deepcopy
from typing import Annotated, Any, NamedTuple

import msgspec

from norewind.streams.columns import CATEGORIES, LARGEST, REMEMBERED, Kind
from norewind.streams.stream import StreamError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Mark(NamedTuple):
    """How far a source was read: the number of bytes, their checksum, and the number of newlines among them.

    `counts` says what was skipped up to there, and `inside` whether it is inside a line,
    whose newline has not come yet.
    """

    offset: int = 0
    crc: int = 0
    lines: int = 0
    counts: dict[str, int] = {}  # noqa: RUF012 (never changed)
    inside: bool = False

    def after(self, data: bytes) -> "Mark":
        crc, lines = zlib.crc32(data, self.crc), self.lines + data.count(b"\n")
        return Mark(self.offset + len(data), crc, lines, self.counts, not data.endswith(b"\n"))


class Progress:
    """How far a stream has read its source (`here`), and how far its samples go (`marked`).

    The position of a stream is the end of the samples that it has returned. Whatever was
    read or skipped after that is read again by a stream that resumes there. Before the
    first sample, it is the position that the stream started from (`start`).
    """

    def __init__(self, start: dict[str, Any]):
        self.here = self.marked = Mark(**{name: start[name] for name in Mark._fields if name in start})
        self.start: dict[str, Any] | None = deepcopy(start)
        self._kind = start["kind"]

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.marked.counts if self.start is None else self.start["counts"])

    def read(self, data: bytes) -> None:
        self.here = self.here.after(data)

    def skip(self, reason: str, number: int = 1) -> None:
        """Count what is skipped. The old counts are not changed, as `marked` may hold them."""
        counts = self.here.counts
        self.here = self.here._replace(counts={**counts, reason: counts.get(reason, 0) + number})

    def mark(self) -> None:
        self.marked = self.here

    def hand_out(self, samples: int, problem: StreamError | None) -> None:
        """Note that samples are returned; if there are none, raise the problem that was found instead."""
        if samples:
            self.start = None
        elif problem:
            raise problem

    def end(self) -> None:
        """Move the position to the end of the source, so that what was skipped after the last sample is counted too."""
        self.start = None
        self.mark()

    def position(self, **rest: Any) -> dict[str, Any]:
        """The position, with the fields in `rest` that only this kind of stream has."""
        if self.start is not None:
            return deepcopy(self.start)
        offset, crc, lines, counts, _ = self.marked
        return {"kind": self._kind, "offset": offset, "crc": crc, "lines": lines, "counts": dict(counts), **rest}

    def too_short(self, name: str, found: str, needs: str, unfinished: int = 0) -> StreamError:
        if unfinished:
            found += f", and {unfinished} bytes that wait for the rest of their line"
            needs += ". If the file is complete, end it with a newline or add --final"
        elif self.here.offset == 0:
            return StreamError(f"{name} is empty: there is nothing to learn from.")
        skipped = "".join(f", {reason} skipped: {count}" for reason, count in self.here.counts.items())
        where = f"{name} ends at byte {self.here.offset}, before the first sample"
        return StreamError(f"{where} ({found}{skipped}). A sample needs {needs}.")


def unread(kind: str, **rest: Any) -> dict[str, Any]:
    """The position at the start of a source, with the fields in `rest` that only this kind of stream has."""
    return {"kind": kind, "offset": 0, "crc": 0, "lines": 0, "counts": {}, **rest}


class SourcePosition(msgspec.Struct, forbid_unknown_fields=True):
    """The fields that the positions of all streams of bytes have."""

    kind: str
    offset: Count
    crc: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    lines: Count
    counts: dict[str, Count]


Partition = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,5}$")]


class MessagesPosition(msgspec.Struct, forbid_unknown_fields=True):
    """Where a topic was read to, by partition, and where the round ends that is being read."""

    topic: str
    offsets: dict[Partition, Count]
    until: dict[Partition, Count]


# In positions None stands for NaN, which JSON does not have.
Value = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
SavedColumn = tuple[Count, Value, Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)], Value | None]
Names = Annotated[list[str], msgspec.Meta(min_length=1)]


class RowPosition(SourcePosition):
    """The fields that positions of rows have."""

    inside: bool
    format: str
    steps: Annotated[list[Count], msgspec.Meta(min_length=1)]
    standardise: bool
    columns: list[str]
    inputs: Names
    targets: Names
    kinds: dict[str, Kind]
    cycles: dict[str, list[str]]
    categories: dict[str, Annotated[list[str], msgspec.Meta(max_length=CATEGORIES)]]
    clock: str | None
    times: Annotated[list[str | int | float | None], msgspec.Meta(max_length=REMEMBERED)]
    statistics: list[SavedColumn]
    waiting: Any
    messages: MessagesPosition | None = None


def check_position(position: Any, kind: str, fields: type[msgspec.Struct], same: dict[str, Any]) -> None:
    """Refuse a position unless it has this kind and exactly these fields, and was saved with the `same` options."""
    if isinstance(position, dict) and position.get("kind") != kind:
        raise StreamError(
            f"the saved position belongs to a stream of {position.get('kind')!r}, but this is a stream of {kind!r}: "
            "open it with the settings that the position was saved with."
        )
    try:
        msgspec.convert(position, fields)
    except msgspec.ValidationError as error:
        raise damaged(str(error).replace("`", "")) from None
    for name, value in same.items():
        if (before := position[name]) != value:
            raise StreamError(f"the run started with {name} = {before!r}, but now it is {value!r}. Change it back.")


def damaged(why: str) -> StreamError:
    return StreamError(f"the saved position is damaged: {why}. Resume from another checkpoint, or start a new run.")


def afresh(position: dict[str, Any]) -> dict[str, Any]:
    """Return the position at the start of another source, which is read with what is known from `position`.

    This is the alphabet, the columns and their statistics. A task has no other source, so
    its position is returned unchanged.
    """
    if position.get("kind") == "task":
        return position
    start = unread(position.get("kind", ""), previous=None, inside=False, messages=None)
    return {**position, **{name: value for name, value in start.items() if name in position}}
