"""A tree of arrays as a few vectors, and back."""

from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.compilation import calling_thread
from norewind.trees import Tree, is_key

Vectors = tuple[jax.Array | np.ndarray, ...]
ALONE = 1024
"""An array of so many numbers is a vector of its own: written into another, it would be copied once more."""


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
    reals, keys are their data. Large arrays stay as they are. Layouts of trees with the same arrays are one
    object (`layout_of`).
    """

    def __init__(self, structure: Any, kinds: tuple[tuple[Any, tuple[int, ...], Any], ...]):
        self.structure, self.leaves = structure, []
        shared: dict[str, int] = {}
        self.shapes: list[tuple[Any, tuple[int, ...]]] = []
        for dtype, shape, impl in kinds:
            kind, size = _kind(dtype), prod(shape)
            if size >= ALONE and impl is None:
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
        values = iter(self._values(vectors, _shaped, sum(part.num_leaves for part in parts)))
        return tuple(jax.tree.unflatten(part, [next(values) for _ in range(part.num_leaves)]) for part in parts)

    def vectors_of_first(self, entries: int) -> int:
        """How many of the vectors, from the first one on, hold the tree's first entries."""
        count = sum(part.num_leaves for part in self.structure.children()[:entries])
        return max((leaf.vector + 1 for leaf in self.leaves[:count]), default=0)

    def pack_now(self, tree: Tree) -> Vectors:
        """The vectors, outside of compiled functions, where their programs run fastest; there is nothing to compile."""
        vectors = [np.zeros(shape, kind) for kind, shape in self.shapes]
        for leaf, value in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            numbers = np.asarray(jax.random.key_data(value) if leaf.impl else value)
            if leaf.alone:
                vectors[leaf.vector][...] = numbers
            else:
                vectors[leaf.vector][leaf.start : leaf.stop] = _bits(numbers)
        return tuple(jax.device_put(vectors, calling_thread()))

    def unpack_now(self, vectors: Vectors) -> Tree:
        """The tree as JAX arrays, outside of compiled functions; there is nothing to compile."""
        return self._tree([np.asarray(vector) for vector in vectors], lambda part, leaf: jnp.array(_viewed(part, leaf)))

    def view(self, vectors: Vectors) -> Tree:
        """The tree as NumPy arrays that look into the vectors, which are NumPy's."""
        return self._tree(vectors, _viewed)

    def view_leaf(self, vectors: Vectors, place: int) -> np.ndarray:
        """One array of `view`."""
        leaf = self.leaves[place]
        vector = vectors[leaf.vector]
        return _viewed(vector if leaf.alone else vector[leaf.start : leaf.stop], leaf)

    def _tree(self, vectors: Any, shaped: Any) -> Tree:
        return jax.tree.unflatten(self.structure, self._values(vectors, shaped, len(self.leaves)))

    def _values(self, vectors: Any, shaped: Any, count: int) -> list[Any]:
        values = []
        for leaf in self.leaves[:count]:
            vector = vectors[leaf.vector]
            value = shaped(vector if leaf.alone else vector[leaf.start : leaf.stop], leaf)
            values.append(value if leaf.impl is None else jax.random.wrap_key_data(jnp.asarray(value), impl=leaf.impl))
        return values


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


def _shaped(part: jax.Array, leaf: Leaf) -> jax.Array:
    if leaf.alone:
        return part
    if leaf.dtype == bool:
        return part.reshape(leaf.shape).astype(bool)
    if np.issubdtype(leaf.dtype, np.complexfloating):
        real = leaf.dtype.type(0).real.dtype
        return jax.lax.complex(*jax.lax.bitcast_convert_type(part, real).reshape(2, *leaf.shape))
    return jax.lax.bitcast_convert_type(part, leaf.dtype).reshape(leaf.shape)


def _viewed(part: np.ndarray, leaf: Leaf) -> np.ndarray:
    if leaf.alone:
        return part
    # For every number that a call returns: the letter of a dtype is there, while `np.issubdtype` takes a microsecond.
    if leaf.dtype.kind == "b":
        return part.reshape(leaf.shape).astype(bool)
    if leaf.dtype.kind == "c":
        parts = part.view(leaf.dtype.type(0).real.dtype).reshape(2, *leaf.shape)
        return np.ascontiguousarray(np.moveaxis(parts, 0, -1)).view(leaf.dtype)[..., 0]
    return part.view(leaf.dtype).reshape(leaf.shape)
