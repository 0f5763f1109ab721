"""How a key's run stands in its record: numbers of one type that follow one another are a block.

A batch of keys is then a few arrays, each copied in one go, and a program has few arguments.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.trees import Tree, is_key

ALIGNED = 64
"""XLA takes arrays whose addresses are multiples of this many bytes."""


class Records:
    """The blocks of a run. None crosses a boundary between the run's entries, so that these stay apart.

    `numbers` are the leaves, random keys as numbers. `blocks` has the leaves of each block, by
    their places.
    """

    def __init__(self, run: Tree):
        self.structure = jax.tree.structure(run)
        self.like = jax.tree.leaves(run)
        self.numbers = [np.asarray(_without_key(leaf)) for leaf in self.like]
        entry = [path[:1] for path, _ in jax.tree_util.tree_leaves_with_path(run)]
        kinds = groupby(range(len(self.like)), lambda place: (entry[place], self.numbers[place].dtype))
        self.blocks = [list(places) for _, places in kinds]

    def arrays(self, count: int) -> list[np.ndarray]:
        """Room for the blocks of this many runs: of shape (runs, numbers), where JAX can use them without a copy."""
        return [_aligned(count, self._size(places), self.numbers[places[0]].dtype) for places in self.blocks]

    def views(self, rows: np.ndarray) -> list[np.ndarray]:
        """The blocks of records, in place: of shape (records, numbers). Leaves are the fields "0", "1" and so on."""
        fields: Any = rows.dtype.fields
        found, content = [], rows.view(np.uint8)
        for places in self.blocks:
            offset, kind = fields[str(places[0])][1], self.numbers[places[0]].dtype
            shape, strides = (len(rows), self._size(places)), (rows.itemsize, kind.itemsize)
            found.append(np.ndarray(shape, kind, content.data, offset, strides))
        return found

    def _size(self, places: list[int]) -> int:
        return sum(self.numbers[place].size for place in places)

    def split(self, blocks: Sequence[Any]) -> Tree:
        """The run of one key from its blocks, inside a compiled function."""
        leaves = []
        for places, block in zip(self.blocks, blocks, strict=True):
            start = 0
            for place in places:
                stop = start + self.numbers[place].size
                leaf = block[start:stop].reshape(self.numbers[place].shape)
                leaves.append(_with_key(leaf, self.like[place]))
                start = stop
        return jax.tree.unflatten(self.structure, leaves)

    def join(self, run: Tree) -> list[jax.Array]:
        """The blocks of one key's run, inside a compiled function."""
        leaves = [jnp.ravel(_without_key(leaf)) for leaf in jax.tree.leaves(run)]
        return [jnp.concatenate([leaves[place] for place in places]) for places in self.blocks]


def with_keys(run: Tree, like: Tree) -> Tree:
    """A run whose random keys are numbers, with keys again; inside a compiled function."""
    return jax.tree.map(_with_key, run, like)


def without_keys(run: Tree) -> Tree:
    """The leaves of a run, random keys as numbers."""
    return [_without_key(leaf) for leaf in jax.tree.leaves(run)]


def _with_key(leaf: Any, like: Any) -> Any:
    return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like)) if is_key(like) else leaf


def _without_key(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _aligned(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """Zeros at an address that JAX can use as it is. Pages that are not used yet take no memory."""
    size = rows * columns * dtype.itemsize
    room = np.zeros(size + ALIGNED, np.uint8)
    start = -room.ctypes.data % ALIGNED
    return room[start : start + size].view(dtype).reshape(rows, columns)
