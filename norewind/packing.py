"""A run packed for single calls: a few vectors in place of many arrays, each of which costs microseconds in a call."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.trees import Tree, is_key

Vectors = tuple[jax.Array, ...]


class Packing:
    """How a tree of arrays becomes one vector per kind of number, and back. Nothing is rounded.

    Complex numbers are pairs of reals, PRNG keys are their data. `tree` is an example.
    """

    def __init__(self, tree: Tree):
        leaves, self.structure = jax.tree.flatten(tree)
        self.impls = [jax.random.key_impl(leaf) if is_key(leaf) else None for leaf in leaves]
        self.keeps_numpy = [isinstance(leaf, np.ndarray) for leaf in leaves]
        self.likes = [jax.eval_shape(_data, leaf) for leaf in leaves]
        flat = [jax.eval_shape(_flat, like) for like in self.likes]
        self.kinds = sorted({str(part.dtype) for part in flat})
        ends = dict.fromkeys(self.kinds, 0)
        self.places = []
        for part in flat:
            kind = str(part.dtype)
            self.places.append((self.kinds.index(kind), ends[kind], ends[kind] + part.size))
            ends[kind] += part.size
        self.sizes = ends
        self.packed, self._unpack = jax.jit(self.pack), jax.jit(self.unpack)

    def pack(self, tree: Tree, into: Vectors | None = None) -> Vectors:
        vectors = list(into or (jnp.zeros(size, kind) for kind, size in self.sizes.items()))
        for (kind, start, _), leaf in zip(self.places, jax.tree.leaves(tree), strict=True):
            # Not one concatenation: XLA's looks for every number's place among all the parts.
            vectors[kind] = jax.lax.dynamic_update_slice(vectors[kind], _flat(leaf), (start,))
        return tuple(vectors)

    def unpack(self, vectors: Vectors) -> Tree:
        parts = [
            _shaped(jax.lax.slice(vectors[kind], (start,), (stop,)), like)
            for (kind, start, stop), like in zip(self.places, self.likes, strict=True)
        ]
        leaves = [
            part if impl is None else jax.random.wrap_key_data(part, impl=impl)
            for part, impl in zip(parts, self.impls, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)

    def unpacked(self, vectors: Vectors) -> Tree:
        """The tree outside of compiled functions; what was a NumPy array is one again."""
        leaves = jax.tree.leaves(self._unpack(vectors))
        leaves = [np.array(leaf) if keeps else leaf for leaf, keeps in zip(leaves, self.keeps_numpy, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


def _data(leaf: Any) -> jax.Array:
    return jax.random.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf)


def _flat(leaf: Any) -> jax.Array:
    leaf = _data(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([leaf.real, leaf.imag])
    if leaf.dtype == jnp.uint32:
        leaf = jax.lax.bitcast_convert_type(leaf, jnp.int32)
    return jnp.ravel(leaf)


def _shaped(part: jax.Array, like: Any) -> jax.Array:
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        return jax.lax.complex(*part.reshape(2, *like.shape))
    if like.dtype == jnp.uint32:
        part = jax.lax.bitcast_convert_type(part, jnp.uint32)
    return part.reshape(like.shape)
