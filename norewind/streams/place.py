"""How far a stream was read, and saved positions, which may be damaged or belong to something else."""

import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from norewind.streams.stream import StreamError

# Larger numbers do not fit 32-bit floats, and their squares would leave the range of 64-bit ones.
LARGEST = 3e38


class Place(NamedTuple):
    """The bytes read so far: how many, their checksum, and how many lines they end."""

    offset: int = 0
    crc: int = 0
    lines: int = 0

    def after(self, data: bytes) -> "Place":
        """The place behind some more bytes."""
        return Place(self.offset + len(data), zlib.crc32(data, self.crc), self.lines + data.count(b"\n"))


def check_position(position: Any, kind: str, valid: dict[str, Callable[[Any], bool]]) -> None:
    """A saved position must be of the same kind of stream and have exactly these fields, all of them valid."""
    if not isinstance(position, dict):
        raise StreamError(f"the saved position of the stream is damaged: it is a {type(position).__name__}. {_REMEDY}")
    if position.get("kind") != kind:
        raise StreamError(
            f"the saved position belongs to a stream of {position.get('kind')!r}, but this is one of {kind!r}. "
            "Open the stream with the settings that it was begun with."
        )
    if set(position) != {"kind", *valid}:
        raise StreamError(
            f"the saved position of the stream is damaged: it has {_listed(position)}, not {_listed(valid)}. {_REMEDY}"
        )
    for name, is_valid in valid.items():
        if not is_valid(position[name]):
            raise StreamError(f"the saved position of the stream is damaged: {name!r} is not valid. {_REMEDY}")


# What the positions of all streams that read bytes share.
PLACE_FIELDS: dict[str, Callable[[Any], bool]] = {
    "offset": lambda value: is_count(value),
    "crc": lambda value: is_count(value) and value < 2**32,
    "lines": lambda value: is_count(value),
    "counts": lambda value: (
        isinstance(value, dict) and all(isinstance(key, str) and is_count(entry) for key, entry in value.items())
    ),
}


def place_of(position: dict[str, Any]) -> Place:
    """The place in a position that was checked."""
    return Place(position["offset"], position["crc"], position["lines"])


def afresh(position: dict[str, Any]) -> dict[str, Any]:
    """The start of another source, read as this one was: with the same alphabet, columns and statistics.

    A task has no other source: its text goes on.
    """
    if position.get("kind") == "task":
        return position
    start = {**Place()._asdict(), "counts": {}, "previous": None, "inside": False, "waiting": []}
    return {**position, **{name: value for name, value in start.items() if name in position}}


def is_count(value: Any) -> bool:
    """A whole number from 0 that 64 bits can hold."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """A finite float."""
    return type(value) is float and math.isfinite(value)


def is_names(value: Any) -> bool:
    """A list of strings."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def counted(counts: dict[str, int], reason: str, number: int = 1) -> dict[str, int]:
    """The counts with some more skipped. The old ones stay as they are, in case the skipped part is read again."""
    return {**counts, reason: counts.get(reason, 0) + number}


_REMEDY = "Go on from another checkpoint, or begin a new run."


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names)))[:200]
