"""Checkpoints: a run and its data in one file, which is either complete or absent, and verified when it is read.

A checkpoint is a safetensors file (plain numbers; reading one never executes anything)
named after the number of samples so far and the checksum of its content.
"""

import errno
import hashlib
import json
import platform
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

import norewind
from norewind.core.trees import Tree, is_prng_key, key_from_numbers, key_numbers, named_leaves
from norewind.errors import NorewindError
from norewind.storage.files import make_folder, write_atomically

__all__ = ["CheckpointError", "DamagedError", "checkpoints", "load", "save"]

# Increased whenever a new version of norewind can no longer read the checkpoints of older ones.
FORMAT = 16

# The largest total size of a run's checkpoints in bytes. The latest is kept regardless of its size.
MAX_CHECKPOINT_BYTES = 100_000_000
ARRAY = "stored as"
_NAME = re.compile(r"(\d{15})-([0-9a-f]{16})\.safetensors")


class CheckpointError(NorewindError, ValueError):
    """Raised when a checkpoint cannot be used. The message says why, and what to do."""


class DamagedError(CheckpointError):
    """Raised when a checkpoint has changed since it was written. An older one may still be good."""


def save(folder: Path | str, samples: int, run: Tree, extra: dict[str, Any] | None = None, keep: int = 3) -> Path:
    """Write a checkpoint, and remove all but the latest ones.

    Args:
        folder: the folder of the run's checkpoints.
        samples: the number of samples learned from so far, which becomes part of the file name.
        run: the run, or any pytree of arrays.
        extra: JSON to save with it, which may contain NumPy arrays.
        keep: the largest number of checkpoints to keep. There are fewer if they are too large together.

    Returns:
        The path of the new checkpoint.
    """
    path = _write(Path(folder), samples, arrays_of(run), extra or {})
    _clean(path, keep)
    return path


def checkpoints(folder: Path | str) -> list[Path]:
    """List the checkpoints in a folder, oldest first, without files that a crash left unfinished.

    Args:
        folder: the folder of the run's checkpoints, which need not exist.

    Returns:
        Their paths.
    """
    return sorted(path for path in Path(folder).glob("*.safetensors") if _NAME.fullmatch(path.name))


def samples_of(path: Path) -> int:
    """Return the number of samples in the name of a checkpoint.

    Args:
        path: the path of the checkpoint, as `checkpoints` lists it.
    """
    return int(path.name[:15])


def load(path: Path | str, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """Read a run from a checkpoint.

    Args:
        path: the path of the checkpoint.
        like: a run with the same structure, shapes and dtypes, such as a new one.

    Returns:
        The run, and the JSON saved with it.

    Raises:
        DamagedError: the file has changed since it was written.
        CheckpointError: it is not a checkpoint of this version, or was made with another model, method or optimizer.
    """
    path = Path(path)
    arrays, extra = read(path)
    return restore_run(path, arrays, like), extra


def restore_run(path: Path, arrays: dict[str, np.ndarray], like: Tree) -> Tree:
    """Build a run from the arrays of a checkpoint.

    Args:
        path: the path of the checkpoint, for messages.
        arrays: its arrays by name, as `read` returns them.
        like: a run with the same structure, shapes and dtypes.

    Returns:
        The run.

    Raises:
        CheckpointError: the arrays were made with another model, method or optimizer.
    """
    named = _leaves_by_name(like)
    for name in sorted(named.keys() ^ arrays.keys()):
        problem = "is not in the checkpoint" if name in named else "is in the checkpoint only"
        raise CheckpointError(f"{path}: {name} {problem}: it was made with another model, method or optimizer.")
    leaves = [_restore_leaf(path, name, leaf, arrays[name]) for name, leaf in named.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays of a checkpoint by name, and the JSON saved with them, and verify its checksum.

    Args:
        path: the path of the checkpoint.

    Returns:
        The arrays and the JSON.

    Raises:
        DamagedError: the file cannot be read, or has changed since it was written.
        CheckpointError: it is not a checkpoint of this version.
    """
    match = _NAME.fullmatch(path.name)
    if not match:
        raise CheckpointError(f"{path}: not named like a checkpoint (samples-checksum.safetensors).")
    try:
        content = path.read_bytes()
    except PermissionError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}. Check its permissions.") from None
    except OSError as error:
        # If the disk is bad, it will never be readable again.
        raise DamagedError(f"{path}: cannot be read: {error.strerror}.") from None
    if _checksum(content) != match[2]:
        raise DamagedError(f"{path}: damaged: its {len(content)} bytes do not match the checksum in its name.")
    try:
        length = int.from_bytes(content[:8], "little")
        text = json.loads(content[8 : 8 + length])["__metadata__"]["norewind"]
        extra = json.loads(text)
        version = extra["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{path}: not a norewind checkpoint.") from None
    if type(version) is not int or version != FORMAT:
        raise CheckpointError(
            f"{path}: has format {version} and was written by norewind {extra.get('version')}. This is norewind "
            f"{norewind.__version__}, which reads format {FORMAT}. Use the version that wrote it, or start a new run."
        )
    try:
        arrays = safetensors.numpy.load(content)
        # An array in the JSON is stored with the others, and its name takes its place.
        return arrays, json.loads(
            text, object_hook=lambda entry: arrays.pop(entry[ARRAY]) if entry.keys() == {ARRAY} else entry
        )
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a complete safetensors file: {error}.") from None


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the JSON saved with a run, without its arrays, and without verifying the checksum."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(json.loads(file.read(length))["__metadata__"]["norewind"])


class Writer:
    """Writes checkpoints to a folder in a background thread, one at a time, while training continues.

    Args:
        folder: the folder, created if needed. Files that a crash left unfinished are removed.
        keep: the largest number of checkpoints to keep.
    """

    def __init__(self, folder: Path, keep: int = 3):
        make_folder(folder)
        for leftover in folder.glob(".*.part"):
            leftover.unlink()
        self.folder = folder
        self.keep = keep
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future | None = None

    def submit(
        self,
        samples: int,
        run: Tree,
        extra: dict[str, Any],
        *,
        before: Callable[[], Any] = lambda: None,
        after: Callable[[Path], None] = lambda path: None,
        replaces: bool = True,
    ) -> None:
        """Copy the run, and write it in the background. Wait first if another checkpoint is still being written.

        Args:
            samples: the number of samples learned from so far.
            run: the run, or any pytree of arrays.
            extra: JSON to save with it, which may contain NumPy arrays.
            before: called in the background before the checkpoint is written.
            after: called in the background with the path of the new checkpoint, before older ones are removed.
            replaces: remove older checkpoints.

        Raises:
            OSError: the previous checkpoint could not be written.
        """
        self.wait()
        arrays = arrays_of(run)

        def work():
            before()
            if not self.folder.is_dir():
                # If it were created again, it would contain a checkpoint without its logs.
                raise FileNotFoundError(errno.ENOENT, "the folder was deleted", str(self.folder))
            path = _write(self.folder, samples, arrays, extra)
            # The old ones stay until `after` has accepted the new one.
            after(path)
            _clean(path, self.keep if replaces else None)

        self._writing = self._pool.submit(work)

    def check(self) -> None:
        """Raise the error of the last checkpoint if it has failed, without waiting for one that is being written."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk. An error in writing it is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def _write(folder: Path, samples: int, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> Path:
    versions = {"version": norewind.__version__, "jax": jax.__version__, "python": platform.python_version()}
    metadata = {**extra, "format": FORMAT, **versions, "samples": samples}
    arrays = dict(arrays)

    def store(array: Any) -> dict[str, str]:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a {type(array).__name__} is neither JSON nor a NumPy array")
        name = f"extra {len(arrays)}"
        arrays[name] = np.asarray(array, order="C")
        return {ARRAY: name}

    text = json.dumps(metadata, default=store)
    content = safetensors.numpy.save(arrays, {"norewind": text})
    path = folder / f"{samples:015d}-{_checksum(content)}.safetensors"
    write_atomically(path, content)
    return path


def _clean(path: Path, keep: int | None) -> None:
    """Remove the checkpoints that a new one replaces: older ones beyond the latest `keep` or `MAX_CHECKPOINT_BYTES`."""
    samples, others = samples_of(path), [other for other in checkpoints(path.parent) if other != path]
    # Names are ordered by samples: of two with the same number, only the newly written one stays.
    twins = [other for other in others if samples_of(other) == samples]
    # A later checkpoint belongs to another process that took over while this one was paused: never remove it.
    latest = [path, *(other for other in others[::-1] if samples_of(other) < samples)]
    sizes = np.cumsum([old.lstat().st_size for old in latest])
    too_many = [] if keep is None else latest[max(1, min(keep, int(np.sum(sizes <= MAX_CHECKPOINT_BYTES)))) :]
    for old in [*twins, *too_many]:
        old.unlink(missing_ok=True)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _leaves_by_name(run: Tree) -> dict[str, Any]:
    return {path.lstrip("."): leaf for path, leaf in named_leaves("", run)}


def arrays_of(run: Tree) -> dict[str, np.ndarray]:
    """Copy all leaves by name. Without a copy, NumPy would share JAX's own memory on a CPU."""
    return {name: _as_stored(leaf) for name, leaf in _leaves_by_name(run).items()}


def _as_stored(leaf: Any) -> np.ndarray:
    if not hasattr(leaf, "dtype") and not isinstance(leaf, bool | int | float | complex):
        raise CheckpointError(
            f"a checkpoint holds arrays and numbers, not a {type(leaf).__name__}. Pass other data as `extra`, as JSON."
        )
    array = np.array(key_numbers(leaf), order="C")
    # The format, or its reader, does not support every type: store complex numbers as pairs of reals,
    # and types that NumPy itself does not have (bfloat16) as their bits.
    if np.iscomplexobj(array):
        return np.stack([np.real(array), np.imag(array)])
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _restore_leaf(path: Path, name: str, like: Any, stored: np.ndarray) -> Any:
    expected = _as_stored(like)
    if (stored.shape, stored.dtype) != (expected.shape, expected.dtype):
        found, asked = (f"{array.dtype} of shape {array.shape}" for array in (stored, expected))
        raise CheckpointError(f"{path}: {name} is {found} in the checkpoint, but the settings ask for {asked}.")
    if is_prng_key(like):
        return key_from_numbers(jax.numpy.asarray(stored), like)
    if np.iscomplexobj(like):
        # Not a sum: 1j times infinity is NaN in one of its parts.
        pairs, stored = stored, np.empty(expected.shape[1:], like.dtype)
        stored.real, stored.imag = pairs
    if isinstance(like, np.ndarray):
        return stored.copy()  # the arrays that were read are read-only, and JAX might not have this dtype
    return jax.numpy.asarray(stored if np.dtype(like.dtype).isbuiltin == 1 else stored.view(like.dtype))
