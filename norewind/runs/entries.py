"""What a checkpoint holds besides its arrays, checked when it is read, since it may have been forged."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import msgspec
import numpy as np

from norewind.checkpoint import CheckpointError, DamagedError
from norewind.streams.position import Count
from norewind.streams.stream import Samples

Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
Sums = tuple[Count, Number]
_PARAMS = re.compile(r"(^|\.)params\b")
_COUNTS = re.compile(r"(.*\brun\.)?(samples|steps|skipped)")


class _Position(msgspec.Struct, forbid_unknown_fields=True):
    """The position of the stream, which the stream checks, and the samples that wait for their window."""

    stream: dict[str, Any]
    left: list[Any] | None


class _Tally(msgspec.Struct, forbid_unknown_fields=True):
    samples: Count
    interval: Sums
    all: Sums


class _Watch(msgspec.Struct, forbid_unknown_fields=True):
    good: Count
    bad: Count
    waiting: tuple[Count, Number, Number]
    seen: Count


class _Entries(msgspec.Struct, forbid_unknown_fields=True):
    format: Count
    version: str
    jax: str
    python: str
    samples: Count
    seconds: Seconds
    position: _Position
    answered: Count
    tally: _Tally
    score: dict[str, Any]
    watch: _Watch
    # A log has one of the names that we write to, so that none can lead out of the folder.
    logs: dict[Literal["metrics.jsonl", "predictions.jsonl"], Count]
    settings: dict[str, Any] = {}


ADDED = ("stretch",)
"""What scores of earlier versions did not have."""


def check_entries(path: Path, entries: dict[str, Any]) -> None:
    """Refuse entries that no run of ours can have saved."""
    try:
        saved = msgspec.convert(entries, _Entries)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error).replace("`", "")) from None
    if not int(path.name[:15]) == saved.samples == saved.tally.samples:
        raise _damaged(path, "its numbers of samples differ")
    if saved.tally.interval[0] > saved.tally.all[0]:
        raise _damaged(path, "it tallies more in an interval than in all")
    seen = (saved.tally.all[0], saved.watch.good, saved.watch.bad, saved.watch.waiting[0], saved.watch.seen)
    if max(seen) > saved.samples:
        raise _damaged(path, "it counts more than its samples")
    if saved.samples and saved.position.stream.get("previous", 0) is None:
        raise _damaged(path, "it has samples, but no last symbol")
    if "metrics.jsonl" not in saved.logs:
        raise _damaged(path, "it has no metrics.jsonl")
    if saved.answered > _waiting(path, saved.position.left):
        raise _damaged(path, "more samples were answered than wait")
    if saved.position.left is not None and not _fits(saved.position.left, saved.position.stream):
        raise _damaged(path, "the samples that wait for their window are not those of its stream")


def check_left(path: Path, left: list[Any] | None, window: int, inputs: int) -> None:
    """Refuse samples that wait for their window if they fill it, or are not inputs of the model."""
    if left is None:
        return
    xs, has_keys = left[0], len(left) == len(Samples._fields) and left[-1] is not None
    if len(xs) >= window:
        raise _damaged(path, f"{len(xs)} samples wait for a window of {window}")
    if xs.ndim > 1 and not has_keys and xs.shape[1] != inputs:
        raise _damaged(path, f"the rows that wait for their window have {xs.shape[1]} inputs, not {inputs}")


def check_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Refuse parameters and counts that no run of ours can have saved."""
    for name, array in arrays.items():
        if _PARAMS.search(name) and not np.isfinite(array).all():
            raise _damaged(path, f"{name} holds numbers that are not finite")
        if _COUNTS.fullmatch(name) and array.size and array.min() < 0:
            raise _damaged(path, f"{name} is negative")


def check_score(path: Path, saved: dict[str, Any], own: dict[str, Any]) -> None:
    """Refuse the state of a score that does not have the form of a fresh one, if that has any."""
    added = {name: own[name] for name in ADDED if name in own}
    if own and not (isinstance(saved, dict) and _same_form({**added, **saved}, own)):
        raise CheckpointError(f"{path}: the score in it is not that of this stream. Start a new run.")


def _waiting(path: Path, left: list[Any] | None) -> int:
    if left is None:
        return 0
    # Columns that are copied are text, which no array of a checkpoint holds.
    arrays = [np.asarray(part) if _is_text(part) else part for part in left]
    arrays = jax.tree.leaves(arrays)
    lengths = {len(array) for array in arrays if isinstance(array, np.ndarray) and array.ndim}
    are_arrays = all(isinstance(array, np.ndarray) and array.ndim for array in arrays)
    if not 2 <= len(left) <= len(Samples._fields) or any(part is None for part in left[:2]) or not are_arrays:
        raise _damaged(path, "the samples that wait for their window are not arrays")
    if len(lengths) != 1:
        raise _damaged(path, "the samples that wait for their window are not of one length")
    return lengths.pop()


def _is_text(part: Any) -> bool:
    return isinstance(part, list) and all(isinstance(one, str) for one in part)


def _fits(left: list[Any], stream: dict[str, Any]) -> bool:
    """Whether samples that wait can be those of one of our streams; of others nothing is known."""
    known = {"bytes": 256, "characters": len(str(stream.get("alphabet"))), "task": 256, "rows": None}
    kind = stream.get("kind")
    if kind not in known:
        return True
    parts = [part for part in left[:2] if isinstance(part, np.ndarray)]
    raw = len(left) == len(Samples._fields) and left[-1] is not None  # with keys
    dtype, axes = (np.float64 if raw else np.float32, 2) if kind == "rows" else (np.int32, 1)
    if len(parts) < 2 or any(part.dtype != dtype or part.ndim != axes for part in parts):
        return False
    if kind == "rows":
        return raw or bool(np.isfinite(parts[0]).all())
    return all(part.min() >= 0 and part.max() < known[kind] for part in parts if part.size)


def _same_form(saved: Any, own: Any) -> bool:
    if isinstance(own, dict):
        return isinstance(saved, dict) and saved.keys() == own.keys() and all(_same_form(saved[n], own[n]) for n in own)
    if isinstance(own, list):
        # One that begins empty may hold anything later.
        return isinstance(saved, list) and (not own or (len(saved) == len(own) and all(map(_same_form, saved, own))))
    if isinstance(own, np.ndarray):
        same = isinstance(saved, np.ndarray) and saved.dtype == own.dtype and saved.shape[1:] == own.shape[1:]
        if not same or not len(own):
            return same
        # What begins with zeros are counts and sums.
        return len(saved) == len(own) and bool(own.any() or np.all(np.isfinite(saved) & (saved >= 0)))
    if type(own) is bool:
        return type(saved) is bool
    if type(own) is int:
        return type(saved) is int and saved >= min(0, own)
    return type(saved) in (int, float) and abs(saved) <= sys.float_info.max


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(f"{path}: damaged: {why}.")
