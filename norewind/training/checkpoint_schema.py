"""The schema of checkpoints. Entries and arrays are checked when they are read, since a file may have been forged."""

import re
from pathlib import Path
from typing import Annotated, Any

import jax
import msgspec
import numpy as np

from norewind.scoring.divergence import DivergenceDetector
from norewind.scoring.tally import Tally
from norewind.storage.checkpoint import DamagedError, samples_of
from norewind.storage.decoded import as_kind
from norewind.streams.position import Count
from norewind.streams.stream import Samples
from norewind.training.log import METRICS, LogName

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
_PARAMS = re.compile(r"(^|\.)params\b")
_COUNTS = re.compile(r"(.*\brun\.)?(samples|steps|skipped)")


class _Position(msgspec.Struct, forbid_unknown_fields=True):
    """The position of the stream, which the stream checks itself, and the samples of its partial window."""

    stream: dict[str, Any]
    partial_window: list[Any] | None


class _Entries(msgspec.Struct, forbid_unknown_fields=True):
    """The entries of a checkpoint other than its arrays."""

    format: Count
    version: str
    jax: str
    python: str
    samples: Count
    seconds: Seconds
    position: _Position
    predicted_early: Count
    tally: Tally
    score: dict[str, Any]
    divergence: DivergenceDetector
    # Only the names of our own logs are allowed, so that none can point outside the folder.
    logs: dict[LogName, Count]
    settings: dict[str, Any] = {}


def check_entries(path: Path, entries: dict[str, Any]) -> None:
    """Reject entries that norewind cannot have saved.

    Args:
        path: the checkpoint, which is named after its number of samples.
        entries: its entries other than arrays.

    Raises:
        DamagedError: something is wrong with them.
    """
    try:
        saved = as_kind(entries, _Entries)
    except msgspec.ValidationError as error:
        raise damaged_checkpoint(path, str(error).replace("`", "")) from None
    samples = saved.samples
    tally = saved.tally
    divergence = saved.divergence
    position = saved.position
    counts = (tally.all[0], divergence.good, divergence.bad, divergence.waiting[0], divergence.seen)
    in_window = (
        0 if position.partial_window is None else _count_in_window(path, position.partial_window, position.stream)
    )
    problems = {
        "its sample counts disagree": not samples_of(path) == samples == tally.samples,
        "its interval tally exceeds its total": tally.interval[0] > tally.all[0],
        "one of its counts exceeds its number of samples": max(counts) > samples,
        "it has samples but no previous symbol": samples and position.stream.get("previous", 0) is None,
        f"it has no {METRICS}": METRICS not in saved.logs,
        "more samples were predicted early than are in the partial window": saved.predicted_early > in_window,
    }
    for why, is_so in problems.items():
        if is_so:
            raise damaged_checkpoint(path, why)


def is_text(part: Any) -> bool:
    """Return whether a field of saved samples is text, such as copied columns, which no array of a checkpoint holds."""
    return isinstance(part, list) and all(isinstance(one, str) for one in part)


def _count_in_window(path: Path, parts: list[Any], stream: dict[str, Any]) -> int:
    """Return the number of samples in a partial window, after checking that they can be from this stream."""
    wait = "the samples that wait for their window"
    arrays = jax.tree.leaves([np.asarray(part) if is_text(part) else part for part in parts])
    are_arrays = all(isinstance(array, np.ndarray) and array.ndim for array in arrays)
    first, kind = parts[:2], stream.get("kind")
    if not 2 <= len(parts) <= len(Samples._fields) or any(part is None for part in first) or not are_arrays:
        raise damaged_checkpoint(path, f"{wait} are not arrays")
    if len({len(array) for array in arrays}) != 1:
        raise damaged_checkpoint(path, f"{wait} differ in length")
    if kind not in ("rows", "bytes", "characters", "task"):
        return len(arrays[0])  # nothing is known about other kinds of streams
    form = (np.float32, 2) if kind == "rows" else (np.int32, 1)
    fits = all(isinstance(part, np.ndarray) and (part.dtype, part.ndim) == form for part in first)
    if fits and kind == "rows":
        fits = np.isfinite(parts[0]).all()
    elif fits:
        symbols = len(str(stream.get("alphabet"))) if kind == "characters" else 256
        fits = all(((part >= 0) & (part < symbols)).all() for part in first)
    if not fits:
        raise damaged_checkpoint(path, f"{wait} are not from its stream")
    return len(arrays[0])


def check_saved_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Reject parameters and counts that norewind cannot have saved.

    Args:
        path: the checkpoint.
        arrays: its arrays, by name.

    Raises:
        DamagedError: something is wrong with them.
    """
    for name, array in arrays.items():
        if _PARAMS.search(name) and not np.isfinite(array).all():
            raise damaged_checkpoint(path, f"{name} holds numbers that are not finite")
        if _COUNTS.fullmatch(name) and array.size and array.min() < 0:
            raise damaged_checkpoint(path, f"{name} is negative")


def damaged_checkpoint(path: Path, why: str) -> DamagedError:
    return DamagedError(f"{path}: damaged: {why}.")
