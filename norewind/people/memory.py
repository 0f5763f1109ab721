"""A run in memory: what `fit` needs of a run folder, and arrays to pickle."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from norewind.runs.folder import RunFolder
from norewind.trees import copied, is_key


class Memory(RunFolder):
    """Holds a run with its entries, or none, and afterwards what was saved (`kept`) and the lines up to there."""

    def __init__(self, run: Any, entries: dict[str, Any]):
        self.entries, self.kept, self.lines, self._written = entries, None, [], []
        self.saved: Any = SimpleNamespace(path=Path("memory"), restore=lambda like: copied(run)) if entries else None
        self.writer: Any = SimpleNamespace(wait=lambda: None)

    def log(self, name: str) -> Any:
        return SimpleNamespace(write=self._written.extend)

    def save(self, samples: int, run: Any, entries: dict[str, Any], after: Any, *, replaces: bool = True) -> None:
        self.kept, self.lines = (run, entries), list(self._written)


def arrays_of(run: Any) -> list[np.ndarray]:
    """The numbers of a run. Keys have no NumPy form of their own."""
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in jax.tree.leaves(run)]


def filled(like: Any, arrays: list[np.ndarray]) -> Any:
    """A run like this one, of these numbers."""
    old, structure = jax.tree.flatten(like)

    def one(leaf: Any, new: np.ndarray) -> Any:
        if isinstance(leaf, np.ndarray):
            return new.copy()
        array = jax.numpy.asarray(new)
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if is_key(leaf) else array

    return jax.tree.unflatten(structure, [one(*pair) for pair in zip(old, arrays, strict=True)])
