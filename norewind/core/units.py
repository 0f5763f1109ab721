"""Units: which weights feed them, and which entries of the state they have, as declared for a model."""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core.checks import ModelError
from norewind.core.trees import Tree, as_arrays, floating, named_leaves, real_leaves


class Units(NamedTuple):
    """The units of a model.

    Attributes:
        weights: the units that each weight feeds, as `declare(units=)` takes them.
        entries: the unit that each entry of the state belongs to, as `declare(entries=)` takes it; None for one entry
            per unit in every leaf.
    """

    weights: Tree
    entries: Callable[[Tree], Tree] | None = None


def components_of(caller: str, entries: Callable[[Tree], Tree] | None, state: Tree) -> int:
    """Return the number of entries of every unit, as real numbers.

    Args:
        caller: the name of the method, for the message.
        entries: as `declare(entries=)` takes it.
        state: a state, of which only the shapes are used.

    Raises:
        ModelError: the units have different numbers of entries.
    """
    if entries is not None:
        counts = np.bincount(_owners(caller, entries, real_leaves(state)))
        if not np.all(counts == counts[0]):
            raise ModelError(
                f"{caller}: the declared entries give units between {counts.min()} and {counts.max()} entries, but "
                "every unit must have the same number."
            )
        return int(counts[0])
    leaves = named_leaves("state", floating(as_arrays(state)))
    for place, leaf in leaves:
        if jnp.shape(leaf) != jnp.shape(leaves[0][1]):
            raise ModelError(
                f"{caller}: {place} has shape {jnp.shape(leaf)}, but every floating leaf of the state must have one "
                f"entry per unit, in one shape, here {jnp.shape(leaves[0][1])}. Split or flatten it, or declare which "
                "entries belong to which unit with norewind.declare(transition, entries=...)."
            )
    return sum(2 if jnp.iscomplexobj(leaf) else 1 for _, leaf in leaves)


def positions_of(entries: Callable[[Tree], Tree] | None, components: int, leaves: Tree) -> np.ndarray:
    """Find the entries of every unit.

    Args:
        entries: as `declare(entries=)` takes it.
        components: the number of entries of every unit.
        leaves: the real leaves of a state, of which only the shapes are used.

    Returns:
        The positions of the entries in the leaves as one vector: a row per component (the first entry of every unit,
        the second, ...), and a column per unit.
    """
    if entries is None:
        return np.arange(sum(leaf.size for leaf in jax.tree.leaves(leaves))).reshape(components, -1)
    return np.argsort(_owners("entries", entries, leaves), kind="stable").reshape(-1, components).T


def _owners(caller: str, entries: Callable[[Tree], Tree], leaves: Tree) -> np.ndarray:
    """The unit of every entry of the real leaves, as one vector."""
    with jax.ensure_compile_time_eval():
        index = entries(leaves)

    def one_leaf(own, leaf):
        if own is None:
            raise ModelError(f"{caller}: the declared entries are None for a floating leaf of shape {leaf.shape}.")
        return np.broadcast_to(np.asarray(own), leaf.shape).ravel()

    return np.concatenate(jax.tree.leaves(for_each_leaf(one_leaf, index, leaves)))


def by_component(positions: np.ndarray, row: Tree) -> jax.Array:
    """Arrange a row vector by component and unit.

    Args:
        positions: from `positions_of`.
        row: a tree like the real leaves of the state.

    Returns:
        A matrix in the shape of the positions.
    """
    flat = ravel_pytree(row)[0]
    in_order = np.array_equal(positions.ravel(), np.arange(positions.size))
    return flat.reshape(positions.shape) if in_order else flat[positions]


def shared_leaf(index: Tree, params: Tree) -> str | None:
    """Return the path of the first leaf whose weights feed several units each, or None.

    Args:
        index: the declared units.
        params: the parameters.
    """
    shared = for_each_leaf(lambda units, leaf: units is not None and jnp.ndim(units) > jnp.ndim(leaf), index, params)
    return next((path for path, several in named_leaves("", shared) if several), None)


def colours_of(index: Tree, params: Tree, reads: np.ndarray) -> np.ndarray:
    """Colour the units so that no weight feeds two units of one colour, and no unit is read by two of one colour.

    Args:
        index: the declared units.
        params: the parameters.
        reads: whether a unit (row) reads another one (column).

    Returns:
        The colour of every unit; all 0 if every weight feeds one unit and every unit reads only itself.

    Raises:
        ModelError: the declaration names a unit twice for one weight.
    """
    size, together = len(reads), []

    def add(units, leaf):
        if units is not None and jnp.ndim(units) > jnp.ndim(leaf) and len(units):
            together.append(np.unique(np.sort(np.asarray(units).reshape(len(units), -1), axis=0), axis=1).T)

    for_each_leaf(add, index, params)
    neighbours = reads @ reads.T  # of booleans: whether they read a common unit
    for sets in together:
        if np.any(np.diff(sets, axis=1) == 0):
            raise ModelError("The declared units of a weight that feeds several name one of them twice.")
        for units in sets:
            neighbours[np.ix_(units, units)] = True
    colours = np.zeros(size, int)
    for unit in range(size):
        taken = np.unique(colours[:unit][neighbours[unit, :unit]])
        free = np.flatnonzero(taken != np.arange(len(taken)))
        colours[unit] = free[0] if len(free) else len(taken)
    return colours


def select_colour(index: Tree, rows: Tree, colours: np.ndarray, colour: jax.Array) -> Tree:
    """Give every weight that feeds several units its row for that one of them that has a colour, and zeros for others.

    Args:
        index: the declared units.
        rows: the derivative of the sum over the units of this colour, a tree like the parameters.
        colours: the colour of every unit.
        colour: the colour.

    Returns:
        The rows, with a leading axis of units for weights that feed several.
    """

    def one_leaf(units, row):
        if units is None or jnp.ndim(units) <= row.ndim:
            return row
        chosen = jnp.asarray(colours)[jnp.asarray(units, jnp.int32)] == colour
        return jnp.where(chosen, row, jnp.zeros((), row.dtype))

    return for_each_leaf(one_leaf, index, rows)


def init_trace(index: Tree, params: Tree) -> Tree:
    """A trace of zeros: a tree like the parameters, with None for leaves that feed no unit.

    Args:
        index: the units that each weight feeds.
        params: the parameters.

    Returns:
        The trace.
    """

    def one_leaf(units, leaf):
        if units is None:
            return None
        shared = np.shape(units)[:1] if np.ndim(units) > np.ndim(leaf) else ()
        return jnp.zeros(shared + np.shape(leaf), jnp.result_type(leaf))

    return for_each_leaf(one_leaf, index, params)


def for_each_leaf(function: Callable[..., Any], index: Tree, params: Tree) -> Tree:
    """Call a function for every leaf of the parameters, together with its declared units.

    Args:
        function: called as `function(units, leaf)`; `units` may be None.
        index: the declared units, where one None may stand for a whole subtree.
        params: the parameters.

    Returns:
        The results, as a tree like the parameters.
    """

    def subtree(units, below):
        return jax.tree.map(lambda leaf: function(units, leaf), below)

    return jax.tree.map(subtree, index, params, is_leaf=lambda units: units is None)


def per_weight(index: Tree, values: jax.Array, params: Tree) -> Tree:
    """Return for every weight the value of the unit that it feeds; 0 if it feeds none.

    Args:
        index: the declared units.
        values: one value per unit.
        params: the parameters.

    Returns:
        A tree like the parameters, whose arrays broadcast to each leaf (with a leading axis of units for weights that
        feed several).
    """

    def one_leaf(units, leaf):
        # JAX 0.10 keeps a 64-bit constant as it was when first seen, even after x64 is turned on or off: use 32 bits.
        value = jnp.zeros(()) if units is None else values[jnp.asarray(units, jnp.int32)]
        return value.astype(jnp.result_type(leaf))

    return for_each_leaf(one_leaf, index, params)


def sum_per_unit(index: Tree, weights: Tree, size: int) -> jax.Array:
    """Return for every unit the sum over the weights that feed it, where each weight feeds one unit only.

    Args:
        index: the declared units.
        weights: the numbers to add up, as a tree like the parameters.
        size: the number of units.

    Returns:
        A vector with one sum per unit.
    """

    def one_leaf(units, leaf):
        if units is None:
            return jnp.zeros(size, leaf.dtype)
        units = jnp.asarray(units)
        units = units.reshape((1,) * (leaf.ndim - units.ndim) + units.shape)
        # Sum first along the axes where all weights feed the same unit, which is most of the work.
        shared = tuple(axis for axis in range(leaf.ndim) if units.shape[axis] == 1)
        sums = jnp.sum(leaf, axis=shared, keepdims=True)
        return jax.ops.segment_sum(sums.reshape(-1), jnp.broadcast_to(units, sums.shape).reshape(-1), size)

    return reduce(jnp.add, jax.tree.leaves(for_each_leaf(one_leaf, index, weights)))
