"""How far a stream was read, and the positions that say so, which may be damaged or belong to another stream."""

import copy
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from norewind.streams.stream import StreamError


class Place(NamedTuple):
    """The number of bytes read so far, their checksum, and the number of newlines among them."""

    offset: int = 0
    crc: int = 0
    lines: int = 0

    def after(self, data: bytes) -> "Place":
        """The place after some more bytes."""
        return Place(self.offset + len(data), zlib.crc32(data, self.crc), self.lines + data.count(b"\n"))


class Mark(NamedTuple):
    """A place, what was skipped up to there, and whether it is inside a line, whose newline has not come yet."""

    place: Place
    counts: dict[str, int]
    inside: bool


class Progress:
    """How far a stream has read its source (`here`), and how far its samples go (`marked`).

    The position of a stream is the end of the samples that it has handed out. Whatever was
    read or skipped after that is read again by a stream that resumes there. Before the
    first sample, it is the position that the stream started from (`start`).
    """

    def __init__(self, start: dict[str, Any]):
        place = Place(start["offset"], start["crc"], start["lines"])
        self.here = self.marked = Mark(place, dict(start["counts"]), start.get("inside", False))
        self.start: dict[str, Any] | None = copy.deepcopy(start)
        self._kind = start["kind"]

    @property
    def counts(self) -> dict[str, int]:
        """What was skipped up to the position."""
        return dict(self.marked.counts if self.start is None else self.start["counts"])

    def read(self, data: bytes) -> None:
        """Move past `data`, which is not empty."""
        self.here = Mark(self.here.place.after(data), self.here.counts, not data.endswith(b"\n"))

    def skip(self, reason: str, number: int = 1) -> None:
        """Count what is skipped. The old counts are not changed, as `marked` may hold them."""
        counts = self.here.counts
        self.here = self.here._replace(counts={**counts, reason: counts.get(reason, 0) + number})

    def mark(self) -> None:
        """Note that the samples go up to here."""
        self.marked = self.here

    def hand_out(self, samples: int, problem: StreamError | None) -> None:
        """Note that samples are handed out; if there are none, raise the problem that was found instead."""
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
            return copy.deepcopy(self.start)
        return {"kind": self._kind, **self.marked.place._asdict(), "counts": self.counts, **rest}

    def too_short(self, name: str, found: str, needs: str) -> StreamError:
        """The error for the source called `name` if it ends before the first sample."""
        if self.here.place.offset == 0:
            return StreamError(f"{name} is empty: there is nothing to learn from.")
        skipped = "".join(f", {reason} skipped: {count}" for reason, count in self.here.counts.items())
        return StreamError(
            f"{name} ends at byte {self.here.place.offset}, before the first sample ({found}{skipped}). "
            f"A sample needs {needs}."
        )


def unread(kind: str, **rest: Any) -> dict[str, Any]:
    """The position at the start of a source, with the fields in `rest` that only this kind of stream has."""
    return {"kind": kind, **Place()._asdict(), "counts": {}, **rest}


def check_position(position: Any, kind: str, valid: dict[str, Callable[[Any], bool]]) -> None:
    """Refuse a position unless it is of this kind and has exactly these fields, all of them valid."""
    if not isinstance(position, dict):
        raise damaged(f"it is a {type(position).__name__}")
    if position.get("kind") != kind:
        raise StreamError(
            f"the saved position belongs to a stream of {position.get('kind')!r}, but this is a stream of {kind!r}. "
            "Open the stream with the settings that the position was saved with."
        )
    if set(position) != {"kind", *valid}:
        raise damaged(f"it has {_listed(position)}, not {_listed(valid)}")
    for name, is_valid in valid.items():
        if not is_valid(position[name]):
            raise damaged(f"{name!r} is not valid")


def check_same(position: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse options that are not those that a position was saved with."""
    for name, value in options.items():
        if position[name] != value:
            raise StreamError(
                f"the run started with {name} = {position[name]!r}, but now it is {value!r}. Change it back, or start "
                "a new run."
            )


def damaged(why: str) -> StreamError:
    """The error for a position that a stream cannot have saved."""
    return StreamError(
        f"the saved position of the stream is damaged: {why}. Resume from another checkpoint, or start a new run."
    )


def afresh(position: dict[str, Any]) -> dict[str, Any]:
    """Return the position at the start of another source, which is read with what is known from `position`.

    This is the alphabet, the columns and their statistics. A task has no other source, so
    its position is returned unchanged.
    """
    if position.get("kind") == "task":
        return position
    start = {**Place()._asdict(), "counts": {}, "previous": None, "inside": False, "waiting": []}
    return {**position, **{name: value for name, value in start.items() if name in position}}


def is_count(value: Any) -> bool:
    """Whether this is a whole number from 0 that fits into 64 bits."""
    return type(value) is int and 0 <= value < 2**63


# The fields that the positions of all streams of bytes have.
PLACE_FIELDS: dict[str, Callable[[Any], bool]] = {
    "offset": is_count,
    "crc": lambda value: is_count(value) and value < 2**32,
    "lines": is_count,
    "counts": lambda value: (
        isinstance(value, dict) and all(isinstance(key, str) and is_count(entry) for key, entry in value.items())
    ),
}


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names)))[:200]
