"""A tree of arrays as a few vectors, and back."""

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.trees import Tree, is_key

Vectors = tuple[jax.Array | np.ndarray, ...]
# An array of so many numbers is a vector of its own: written into another, it would be copied once more.
ALONE = 1024


class Leaf(NamedTuple):
    """One array of a tree: what it is, and where it stands in which vector."""

    dtype: Any
    shape: tuple[int, ...]
    impl: Any  # of a PRNG key; None for numbers
    vector: int
    start: int
    stop: int
    alone: bool


class Layout:
    """How a tree becomes a vector of bits per width of number, and back. Nothing is rounded.

    All small arrays of 32 bits a number share a vector, and so do those of 64. Complex numbers are pairs of
    reals, keys are their data. Large arrays stay as they are, and so does one that is alone in its tree. Layouts
    of trees with the same arrays are one object (`layout_of`).
    """

    def __init__(self, structure: Any, kinds: tuple[tuple[Any, tuple[int, ...], Any], ...]):
        self.structure, self.leaves = structure, []
        shared: dict[str, int] = {}
        self.shapes: list[tuple[Any, tuple[int, ...]]] = []
        for dtype, shape, impl in kinds:
            kind, size = _kind(dtype), prod(shape)
            if impl is None and (size >= ALONE or len(kinds) == 1):
                self.leaves.append(Leaf(dtype, shape, impl, len(self.shapes), 0, size, True))
                self.shapes.append((dtype, shape))
                continue
            if kind not in shared:
                shared[kind] = len(self.shapes)
                self.shapes.append((np.dtype(kind), (0,)))
            place = shared[kind]
            start = self.shapes[place][1][0]
            stop = start + size * (2 if dtype.kind == "c" else 1)
            self.shapes[place] = self.shapes[place][0], (stop,)
            self.leaves.append(Leaf(dtype, shape, impl, place, start, stop, False))

    def pack(self, tree: Tree) -> Vectors:
        """The vectors, inside a compiled function."""
        # Not joined by `concatenate`: in one piece of machine code, that looks for the part of every single number.
        vectors: list[Any] = [jnp.zeros(shape, kind) for kind, shape in self.shapes]
        for leaf, value in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            if leaf.alone:
                vectors[leaf.vector] = value
                continue
            part = _flat(jax.random.key_data(value) if leaf.impl else jnp.asarray(value))
            vectors[leaf.vector] = jax.lax.dynamic_update_slice(vectors[leaf.vector], part, (leaf.start,))
        return tuple(vectors)

    def unpack(self, vectors: Vectors) -> Tree:
        """The tree, inside a compiled function."""
        return self._tree(vectors, _shaped)

    def unpack_first(self, vectors: Vectors, entries: int) -> tuple[Tree, ...]:
        """The tree's first entries, from those vectors that hold them, inside a compiled function."""
        parts = self.structure.children()[:entries]
        values = (_shaped(vectors[leaf.vector], leaf) for leaf in self.leaves)
        return tuple(jax.tree.unflatten(part, [next(values) for _ in range(part.num_leaves)]) for part in parts)

    @lru_cache  # noqa: B019 (layouts are kept anyway)
    def vectors_of_first(self, entries: int) -> int:
        """How many of the vectors, from the first one on, hold the tree's first entries."""
        count = sum(part.num_leaves for part in self.structure.children()[:entries])
        return max((leaf.vector + 1 for leaf in self.leaves[:count]), default=0)

    def has(self, entry: int) -> bool:
        """Whether an entry of the tree holds any arrays."""
        return self.structure.children()[entry].num_leaves > 0

    @lru_cache  # noqa: B019
    def vectors_of(self, entry: int) -> list[int]:
        """The vectors that hold an entry of the tree."""
        counts = [part.num_leaves for part in self.structure.children()]
        start = sum(counts[:entry])
        return sorted({leaf.vector for leaf in self.leaves[start : start + counts[entry]]})

    def pack_now(self, tree: Tree) -> Vectors:
        """The vectors, outside of compiled functions, where their programs run fastest; there is nothing to compile."""
        vectors = [np.zeros(shape, kind) for kind, shape in self.shapes]
        for leaf, value in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            numbers = np.asarray(jax.random.key_data(value) if leaf.impl else value)
            if leaf.alone:
                vectors[leaf.vector][...] = numbers
            else:
                vectors[leaf.vector][leaf.start : leaf.stop] = _bits(numbers)
        return tuple(jax.device_put(vectors))

    def unpack_now(self, vectors: Vectors) -> Tree:
        """The tree as JAX arrays, outside of compiled functions; there is nothing to compile."""
        vectors = tuple(map(np.asarray, vectors))
        return self._tree(vectors, lambda vector, leaf: jnp.array(_viewed(vector, leaf)))

    def view(self, vectors: Vectors) -> Tree:
        """The tree as NumPy arrays that look into the vectors, which are NumPy's."""
        return self._tree(vectors, _viewed)

    def _tree(self, vectors: Vectors, read: Any) -> Tree:
        return self.structure.unflatten([read(vectors[leaf.vector], leaf) for leaf in self.leaves])


_layouts: dict[Any, Layout] = {}


def layout_of(tree: Tree) -> Layout:
    """The layout of a tree, the same object for all trees with the same arrays, so that programs are compiled once."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = []
    for leaf in leaves:
        impl = jax.random.key_impl(leaf) if is_key(leaf) else None
        data = jax.eval_shape(jax.random.key_data, leaf) if impl else leaf
        kinds.append((np.dtype(jnp.result_type(data)), tuple(np.shape(data)), impl))
    key = structure, tuple(kinds)
    if key not in _layouts:
        _layouts[key] = Layout(*key)
    return _layouts[key]


def _kind(dtype: np.dtype) -> str:
    real = np.dtype(dtype.type(0).real.dtype)
    return "uint32" if real.kind == "b" else {4: "uint32", 8: "uint64"}.get(real.itemsize, real.name)


def _bits(value: Any) -> np.ndarray:
    """As `_flat`, in NumPy."""
    if value.dtype.kind == "c":
        value = np.stack([value.real, value.imag])
    kind = np.dtype(_kind(value.dtype))
    return (value.astype(kind) if value.dtype == bool else np.ascontiguousarray(value).view(kind)).ravel()


def _flat(value: jax.Array) -> jax.Array:
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        value = jnp.stack([value.real, value.imag])
    kind = jnp.dtype(_kind(np.dtype(value.dtype)))
    return (value.astype(kind) if value.dtype == bool else jax.lax.bitcast_convert_type(value, kind)).ravel()


def _shaped(vector: jax.Array, leaf: Leaf) -> jax.Array:
    if leaf.alone:
        return vector
    part = vector[leaf.start : leaf.stop]
    if leaf.impl:
        return jax.random.wrap_key_data(part.reshape(leaf.shape), impl=leaf.impl)
    if leaf.dtype == bool:
        return part.reshape(leaf.shape).astype(bool)
    if np.issubdtype(leaf.dtype, np.complexfloating):
        real = leaf.dtype.type(0).real.dtype
        return jax.lax.complex(*jax.lax.bitcast_convert_type(part, real).reshape(2, *leaf.shape))
    return jax.lax.bitcast_convert_type(part, leaf.dtype).reshape(leaf.shape)


def _viewed(vector: np.ndarray, leaf: Leaf) -> Any:
    if leaf.alone:
        return vector
    # For every number that a call returns: the letter of a dtype is there, while `np.issubdtype` takes a microsecond.
    kind = leaf.dtype.kind
    if kind == "b":
        return vector[leaf.start : leaf.stop].reshape(leaf.shape).astype(bool)
    if kind == "c":
        parts = vector[leaf.start : leaf.stop].view(leaf.dtype.type(0).real.dtype).reshape(2, *leaf.shape)
        return np.ascontiguousarray(np.moveaxis(parts, 0, -1)).view(leaf.dtype)[..., 0]
    # In one go, since every function of NumPy takes about a microsecond in the middle of other work.
    numbers = np.ndarray(leaf.shape, leaf.dtype, vector, leaf.start * leaf.dtype.itemsize)
    return jax.random.wrap_key_data(jnp.asarray(numbers), impl=leaf.impl) if leaf.impl else numbers
