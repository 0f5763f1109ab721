"""Small arithmetic on pytrees, shared by the estimators."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.engines.aligned_arrays import aligned_copy

Tree = Any
# Eight was fastest: fewer folds write more memory, more folds read from too many places (docs/speed.md).
FOLDS = 8


def array_module(array: Any) -> Any:
    """Return the module for an array's functions (NumPy or jax.numpy), so that a formula is written once for both."""
    return np if isinstance(array, np.ndarray | np.generic) else jnp


def is_differentiable(leaf: Any) -> bool:
    """Return whether a leaf is an array (or the shape of one) of real or complex floating numbers."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def floating(tree: Tree) -> Tree:
    """Replace every leaf that is not differentiable by None."""
    return jax.tree.map(lambda leaf: leaf if is_differentiable(leaf) else None, tree)


def named_leaves(name: str, tree: Tree) -> list[tuple[str, Any]]:
    """List all leaves of a tree with their places, such as params['bias'].

    Args:
        name: the name of the tree, which begins every place.
        tree: any pytree.

    Returns:
        Pairs of place and leaf.
    """
    return [(name + jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def as_arrays(tree: Tree) -> Tree:
    """Convert plain Python numbers in a tree to arrays."""
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf), tree)


def zeros_like(tree: Tree) -> Tree:
    """Make zeros in the shapes and dtypes of a tree of arrays.

    Args:
        tree: a pytree of arrays, or of their shapes.

    Returns:
        A tree of zeros.
    """
    return jax.tree.map(jnp.zeros_like, tree)


def real_leaves(state: Tree) -> Tree:
    """Return the part of a state that carries influence: its floating leaves, as real numbers.

    A complex leaf becomes a real one with a leading axis of two (real and imaginary
    part), and a leaf that is not floating (a counter, a PRNG key) becomes None. So
    estimators only ever compute with real vectors.

    Args:
        state: the state of a model.

    Returns:
        A tree with the structure of the state.
    """

    def split(leaf):
        is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        return jnp.stack([leaf.real, leaf.imag]) if is_complex else leaf

    return jax.tree.map(split, floating(as_arrays(state)))


def with_real_leaves(state: Tree, leaves: Tree) -> Tree:
    """Replace the floating leaves of a state: the inverse of `real_leaves`.

    Args:
        state: a state of the model.
        leaves: the new leaves, in the form that `real_leaves` returns.

    Returns:
        The state with the new leaves; leaves that are not floating stay as they are.
    """

    def join(old, new):
        if new is None:
            return old
        return jax.lax.complex(new[0], new[1]) if jnp.issubdtype(old.dtype, jnp.complexfloating) else new

    return jax.tree.map(join, as_arrays(state), leaves)


def norm(tree: Tree) -> jax.Array:
    """Return the Euclidean norm of all leaves, taken as one vector.

    Args:
        tree: a tree of real or complex arrays.

    Returns:
        The norm, a scalar.
    """
    by_width = defaultdict(list)
    for leaf in jax.tree.leaves(tree):
        squares = jnp.real(leaf * jnp.conj(leaf)).reshape(-1, leaf.shape[-1] if leaf.ndim else 1)
        # XLA writes the factors of the product below to memory: adding up eighths of the rows first keeps them small.
        height = len(squares) // FOLDS
        slices = [squares[i * height : (i + 1) * height] for i in range(FOLDS)]
        by_width[squares.shape[-1], squares.dtype] += [sum(slices[1:], start=slices[0]), squares[FOLDS * height :]]
    total = jnp.zeros(())
    for (width, dtype), parts in by_width.items():
        # A product with ones: on a CPU, XLA vectorises matrix products, but a reduction adds the terms one by one.
        total += jnp.sum(jnp.concatenate(parts) @ jnp.ones(width, dtype))
    return square_root(total)


@jax.custom_jvp
def square_root(number: jax.Array) -> jax.Array:
    """Return √number, with a derivative of 0 at 0, where that of `jnp.sqrt` is infinite.

    The norms of a carry are 0 before the first step. They are constants there, so this is the derivative of a
    step by whatever it depends on.

    Args:
        number: an array of numbers that are not negative.
    """
    return jnp.sqrt(number)


@square_root.defjvp
def _square_root_jvp(primals, tangents):
    root = jnp.sqrt(primals[0])
    return root, jnp.where(root == 0, 0, tangents[0] / jnp.where(root == 0, 1, 2 * root)).astype(root.dtype)


def combine(a: jax.Array, x: Tree, b: jax.Array, y: Tree) -> Tree:
    """Return the linear combination a·x + b·y of two trees.

    Args:
        a: the factor of x, a scalar.
        x: a tree of arrays.
        b: the factor of y, a scalar.
        y: a tree like x.

    Returns:
        A tree like x, with its dtypes.
    """

    def leaf(u, v):
        real = jnp.finfo(u.dtype).dtype
        return (a.astype(real) * u + b.astype(real) * v).astype(u.dtype)

    return jax.tree.map(leaf, x, y)


def weighted_sum(weights: jax.Array, stack: Tree) -> Tree:
    """Return the sum of weights[i]·stack[i] over the leading axis.

    Args:
        weights: one number per entry of the axis.
        stack: a tree of arrays with this leading axis.

    Returns:
        The tree without the axis, with the same dtypes.
    """

    def leaf(values):
        # One product with the whole stack: XLA would add the terms of a sum one by one.
        return jnp.tensordot(weights.astype(jnp.finfo(values.dtype).dtype), values, 1).astype(values.dtype)

    return jax.tree.map(leaf, stack)


def where(condition: jax.Array, new: Tree, old: Tree) -> Tree:
    """Choose between two trees: `new` where the condition is true, otherwise `old`.

    Args:
        condition: a boolean array whose axes are the leading axes of every leaf.
        new: the tree to take where it is true.
        old: a tree like `new`, to take where it is false.

    Returns:
        A tree like both.
    """

    def leaf(a, b):
        mask = jnp.reshape(condition, condition.shape + (1,) * (jnp.ndim(b) - condition.ndim))
        return jnp.where(mask, a, b)

    return jax.tree.map(leaf, new, old)


def copy_arrays(tree: Tree) -> Tree:
    """Copy every array that can change in place, for learners that use up the run they are given.

    JAX's own arrays never change, so they are shared.
    """
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tree)


def align_arrays(tree: Tree) -> Tree:
    """Align all NumPy arrays to the lines of the processor's cache. Kernels take up to a quarter longer without.

    Those that are aligned already are not copied, and JAX's own arrays always are.
    """
    return jax.tree.map(lambda leaf: aligned_copy(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)


def concatenate_trees(parts: Sequence[Tree]) -> Tree:
    """Concatenate trees of arrays, leaf by leaf, as NumPy arrays."""

    flat = list(map(jax.tree.flatten, parts))
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise ValueError("trees of different structure cannot be concatenated.")
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))  # `jax.tree.map` takes much longer for many parts
    return structure.unflatten([np.concatenate(same) if len(flat) > 1 else np.asarray(same[0]) for same in columns])


def is_prng_key(leaf: Any) -> bool:
    """Return whether a leaf is a typed PRNG key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def key_numbers(leaf: Any) -> Any:
    """Return the numbers of a typed PRNG key, and any other leaf as it is."""
    return jax.random.key_data(leaf) if is_prng_key(leaf) else leaf


def key_from_numbers(leaf: Any, like: Any) -> Any:
    """Turn the result of `key_numbers` back into a PRNG key, if `like` is one.

    Args:
        leaf: the numbers of a key, or any other leaf.
        like: the leaf that they came from, or one of the same kind.
    """
    return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like)) if is_prng_key(like) else leaf


def all_finite(tree: Tree) -> jax.Array:
    """Return whether all floating numbers in a tree are finite."""
    means = [_means(leaf) for leaf in jax.tree.leaves(floating(tree))]
    return jnp.all(jnp.isfinite(jnp.concatenate(means))) if means else jnp.array(True)


def _means(leaf: jax.Array) -> jax.Array:
    """Return the mean of all numbers, twice (see below). It is finite if and only if all of them are."""
    if leaf.ndim == 0 or leaf.size == 0:
        return jnp.sum(leaf)[None]
    # Products with weights, for speed as in `norm`. No partial sum can overflow, because the weights add up to one.
    column = leaf.reshape(-1, leaf.shape[-1]) if leaf.ndim > 1 else leaf
    if leaf.ndim > 1:
        column = column @ jnp.full(column.shape[1], 1 / column.shape[1], leaf.dtype)
    # Twice, because XLA turns a product of two vectors into a reduction, which adds a microsecond to every call.
    return jnp.full((2, len(column)), 1 / len(column), leaf.dtype) @ column


def without_weak_types(tree: Tree) -> Tree:
    """Return arrays without weak types, so that the result of a step can be passed back without a new trace."""
    return jax.tree.map(lambda leaf: leaf if is_prng_key(leaf) else jnp.asarray(leaf, jnp.result_type(leaf)), tree)


def floats_norm(tree: Tree) -> float:
    """Return the Euclidean norm of the floating-point leaves as a Python float; 0 if there are none."""
    return float(_compiled_norm(tree)) if jax.tree.leaves(tree) else 0.0


_compiled_norm = jax.jit(lambda tree: norm(floating(tree)))
