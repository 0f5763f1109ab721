"""Layouts: convert a tree of arrays to a few vectors, and back."""

from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.random import wrap_key_data

from norewind.core.trees import Tree, array_module, is_prng_key

Vectors = tuple[jax.Array | np.ndarray, ...]
# An array of at least this many numbers is a separate vector, which saves a copy.
ALONE = 1024


class Leaf(NamedTuple):
    """One array of a tree, and its place in the vectors.

    Attributes:
        dtype: its dtype.
        shape: its shape.
        impl: the implementation of a PRNG key; None for numbers.
        vector: the index of the vector that holds it.
        start: where it begins in the vector.
        stop: where it ends.
        alone: whether the vector is the array itself.
    """

    dtype: Any
    shape: tuple[int, ...]
    impl: Any
    vector: int
    start: int
    stop: int
    alone: bool


class PackedLayout:
    """Converts a tree to one vector of bits per width of number, and back. Nothing is rounded.

    All small arrays with 32 bits per number share a vector, and so do those with 64. Complex numbers are stored as
    pairs of reals, and keys as their data. Large arrays stay as they are, and so does the only array of a tree. Trees
    with the same arrays share one layout object (`layout_of`).

    Args:
        structure: the structure of the tree.
        kinds: for each array, its dtype, its shape, and the implementation if it is a PRNG key.

    Attributes:
        vectors_of: for each entry of the tree, the indices of the vectors that hold it.
    """

    def __init__(self, structure: Any, kinds: tuple[tuple[Any, tuple[int, ...], Any], ...]):
        self.structure = structure
        self.leaves: list[Leaf] = []
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
            vector = shared[kind]
            start = self.shapes[vector][1][0]
            stop = start + size * (2 if dtype.kind == "c" else 1)
            self.shapes[vector] = self.shapes[vector][0], (stop,)
            self.leaves.append(Leaf(dtype, shape, impl, vector, start, stop, False))
        entries = range(len(structure.children()))
        self.vectors_of = [sorted({leaf.vector for leaf in self._leaves_of(entry)}) for entry in entries]

    def pack(self, tree: Tree) -> Vectors:
        """Convert a tree to vectors, inside a compiled function."""
        vectors: list[Any] = [jnp.zeros(shape, kind) for kind, shape in self.shapes]
        for leaf, value in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            if leaf.alone:
                vectors[leaf.vector] = value
                continue
            part = _flat(jax.random.key_data(value) if leaf.impl else jnp.asarray(value))
            # Not joined by `concatenate`: once fused, that would search for the part of every single number.
            vectors[leaf.vector] = jax.lax.dynamic_update_slice(vectors[leaf.vector], part, (leaf.start,))
        return tuple(vectors)

    def unpack(self, vectors: Vectors) -> Tree:
        """Convert vectors to the tree, inside a compiled function."""
        return self._tree(vectors, _shaped)

    def unpack_entry(self, vectors: dict[int, Any], entry: int) -> Tree:
        """Convert vectors to one entry of the tree, inside a compiled function.

        Args:
            vectors: at least the vectors that hold the entry, by their indices.
            entry: the index of the entry.
        """
        leaves = [_shaped(vectors[leaf.vector], leaf) for leaf in self._leaves_of(entry)]
        return jax.tree.unflatten(self.structure.children()[entry], leaves)

    def _leaves_of(self, entry: int) -> list[Leaf]:
        counts = [part.num_leaves for part in self.structure.children()]
        start = sum(counts[:entry])
        return self.leaves[start : start + counts[entry]]

    def pack_now(self, tree: Tree) -> Vectors:
        """Convert a tree to vectors on the device, outside of compiled functions and without compiling anything."""
        vectors = [np.zeros(shape, kind) for kind, shape in self.shapes]
        for leaf, value in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            numbers = np.asarray(jax.random.key_data(value) if leaf.impl else value)
            if leaf.alone:
                vectors[leaf.vector][...] = numbers
            else:
                vectors[leaf.vector][leaf.start : leaf.stop] = _flat(numbers)
        return tuple(jax.device_put(vectors))

    def unpack_now(self, vectors: Vectors) -> Tree:
        """Convert vectors to the tree as JAX arrays, outside of compiled functions and without compiling anything."""
        arrays = [np.asarray(vector) for vector in vectors]
        # Copied by NumPy: `jnp.array` compiles a program for every shape, and `device_put` may not copy at all.
        copies = [np.array(_viewed(arrays[leaf.vector], leaf._replace(impl=None))) for leaf in self.leaves]
        pairs = zip(jax.device_put(copies), self.leaves, strict=True)
        return self.structure.unflatten([wrap_key_data(x, impl=leaf.impl) if leaf.impl else x for x, leaf in pairs])

    def view(self, vectors: Vectors) -> Tree:
        """Convert NumPy vectors to the tree as NumPy arrays, which are views of the vectors where possible."""
        return self._tree(vectors, _viewed)

    def _tree(self, vectors: Vectors, read: Any) -> Tree:
        return self.structure.unflatten([read(vectors[leaf.vector], leaf) for leaf in self.leaves])


_layouts: dict[Any, PackedLayout] = {}


def layout_of(tree: Tree) -> PackedLayout:
    """Return the layout of a tree: one object for all trees with the same arrays, so programs are compiled once."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = []
    for leaf in leaves:
        impl = jax.random.key_impl(leaf) if is_prng_key(leaf) else None
        data = jax.eval_shape(jax.random.key_data, leaf) if impl else leaf
        kinds.append((np.dtype(jnp.result_type(data)), tuple(np.shape(data)), impl))
    key = structure, tuple(kinds)
    if key not in _layouts:
        _layouts[key] = PackedLayout(*key)
    return _layouts[key]


def _kind(dtype: np.dtype) -> str:
    real = np.dtype(dtype.type(0).real.dtype)
    return "uint32" if real.kind == "b" else {4: "uint32", 8: "uint64"}.get(real.itemsize, real.name)


def _flat(value: Any) -> Any:
    """Return the bits of an array of NumPy or JAX as a vector."""
    if value.dtype.kind == "c":
        value = array_module(value).stack([value.real, value.imag])
    kind = _kind(np.dtype(value.dtype))
    return (value.astype(kind) if value.dtype == bool else value.view(kind)).ravel()


def _shaped(vector: jax.Array, leaf: Leaf) -> jax.Array:
    if leaf.alone:
        return vector
    part = vector[leaf.start : leaf.stop]
    if leaf.impl:
        return wrap_key_data(part.reshape(leaf.shape), impl=leaf.impl)
    if leaf.dtype == bool:
        return part.reshape(leaf.shape).astype(bool)
    if leaf.dtype.kind == "c":
        real = leaf.dtype.type(0).real.dtype
        return jax.lax.complex(*jax.lax.bitcast_convert_type(part, real).reshape(2, *leaf.shape))
    return jax.lax.bitcast_convert_type(part, leaf.dtype).reshape(leaf.shape)


def _viewed(vector: np.ndarray, leaf: Leaf) -> Any:
    if leaf.alone:
        return vector
    # This runs for every returned number, so it uses `kind`, because `np.issubdtype` takes a microsecond.
    kind = leaf.dtype.kind
    if kind == "b":
        return np.ndarray(leaf.shape, vector.dtype, vector, leaf.start * vector.itemsize).astype(bool)
    if kind == "c":
        parts = vector[leaf.start : leaf.stop].view(leaf.dtype.type(0).real.dtype).reshape(2, *leaf.shape)
        return np.ascontiguousarray(np.moveaxis(parts, 0, -1)).view(leaf.dtype)[..., 0]
    # A single call, because every NumPy function takes about a microsecond here.
    numbers = np.ndarray(leaf.shape, leaf.dtype, vector, leaf.start * leaf.dtype.itemsize)
    return wrap_key_data(jnp.asarray(numbers), impl=leaf.impl) if leaf.impl else numbers
