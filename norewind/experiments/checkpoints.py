"""Checkpoints of a long run, so that an interrupted one goes on where it was."""

import io
from pathlib import Path
from typing import Any

import jax
import numpy as np

from norewind.files import write_atomically
from norewind.learner import Run
from norewind.trees import is_key


def save_checkpoint(path: Path, run: Run, **extra: np.ndarray) -> None:
    """Write all leaves of a run, and some arrays beside it."""
    leaves = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(run)]
    arrays: dict[str, Any] = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays | extra)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path, like: Run) -> tuple[Run, dict[str, np.ndarray]]:
    """The run in a file, built like the given one, and the arrays beside it."""
    with np.load(path) as file:
        arrays = dict(file)
    old = jax.tree.leaves(like)
    new = [arrays.pop(f"leaf{i}") for i in range(len(old))]
    leaves = [
        jax.random.wrap_key_data(b, impl=jax.random.key_impl(a)) if is_key(a) else jax.numpy.asarray(b, a.dtype)
        for a, b in zip(old, new, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), arrays
