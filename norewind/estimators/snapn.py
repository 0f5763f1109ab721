"""SnAp-n: RTRL with a sparse mask, for models whose units read only a few others."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core import checks
from norewind.core.combinators import influence_over_window, one_step_of
from norewind.core.estimator import Estimator, Influence, Linearisation, Loss, Transition, model_of
from norewind.core.structure import checked_units, reads_of, require_declarations, structure_of
from norewind.core.trees import Tree, real_leaves
from norewind.core.units import Units, by_component, colours_of, components_of, for_each_leaf, init_trace, positions_of
from norewind.estimators.traces import Traces, along_traces, next_trace, snap1


class Reached(NamedTuple):
    """The units that the influence of each weight can reach, along a leading axis. A tree like the parameters of these.

    Attributes:
        units: their numbers; the axis is as long as the longest list, and shorter lists end with unit 0.
        listed: False at the end of shorter lists.
        fed: whether the weight feeds the unit itself.
    """

    units: np.ndarray
    listed: np.ndarray
    fed: np.ndarray


def snapn(transition: Transition, loss: Loss, *, order: int = 2) -> Estimator:
    """SnAp-n: RTRL in which the influence of a weight on units that it cannot reach within n steps is set to zero.

    At every step, with J = ∂s'/∂s, I = ∂s'/∂θ, and a mask that is one where a weight meets the
    entries of a unit that it reaches within n steps (the unit that it feeds, the units that read
    that one, and so on, n − 1 times),

        g = ∂ℓ/∂s · G + ∂ℓ/∂θ
        G ← mask ⊙ (J G + I)

    starting from zero. Which unit reads which is declared (`norewind.declare` with `reads`), as
    `cells.sparse` does. If every unit may read all others, SnAp-2 is already RTRL.

    Exact if no weight reaches further units after more than n steps, as in a model whose units
    form separate groups (n = 2), or layers of which each reads the one below. Biased for others. `snapn`
    of order 1 is `snap1`. Time: with m the most units that a weight reaches, as many reverse derivatives
    as there are colours (units of one colour have no unit that they both read, so there are n for a dense
    model and few for a sparse one) and m²·P multiplications. Bytes carried: k·m sets of parameters
    (without the readout), where k is the number of entries of a unit. Needs a model that declares
    which units each weight feeds (`norewind.declare` with `units`), such as `cells.elman`,
    `cells.gru(..., reset="after")` and `cells.lstm(..., embedding=False)`. Over a window, G is updated at
    every step.

    Reference: Menick et al., A Practical Sparse Approximation for Real Time Recurrent
    Learning (2020).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.
        order: n.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare its units, or `order` is not a whole number above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> ring = jnp.eye(6) + jnp.roll(jnp.eye(6), 1, axis=0)  # every unit reads itself and the one before
    >>> cell = norewind.cells.sparse(norewind.cells.elman(inputs=3, hidden=6, outputs=3), ring)
    >>> estimator = norewind.estimators.snapn(cell.transition, norewind.losses.cross_entropy, order=3)
    >>> carry = estimator.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> [trace["bias"].shape for trace in carry]
    [(3, 6)]
    """
    checks.check_at_least_one("snapn: order", order)
    if order == 1:
        return snap1(transition, loss)
    single = one_step_of(transition)
    (units_in,) = require_declarations("snapn", "a cell where every weight feeds one unit", single, "units")
    declared = structure_of(single)

    def reads_in(state):
        components = components_of("snapn", declared.entries, state)
        size = sum(leaf.size for leaf in jax.tree.leaves(real_leaves(state))) // components
        return components, reads_of(declared, state, size)

    def reached_in(params, reads):
        with jax.ensure_compile_time_eval():
            return reached(units_in(params), reads, order, params)

    def init(params, state):
        components, reads = reads_in(state)
        return (init_trace(_listed_units(reached_in(params, reads)), params),) * components

    def product(params, row, traces):
        size = sum(leaf.size for leaf in jax.tree.leaves(row)) // len(traces)
        reads = reads_of(declared, row, size)
        units = Units(_listed_units(reached_in(params, reads)), declared.entries)
        return along_traces(units, row, traces, params)

    def advance(params, state, traces, x, point):
        index = checked_units("snapn", single, params, state, x)
        _, reads = reads_in(state)
        positions = positions_of(declared.entries, len(traces), real_leaves(point.state))
        with jax.ensure_compile_time_eval():
            colours = colours_of(index, params, reads)
        return next_masked(point, positions, reached_in(params, reads), colours, reads, traces)

    influence = Influence(init, influence_over_window(transition, advance), product)
    return Estimator.of_influence(influence, model_of(transition, loss))


def reached(index: Tree, reads: np.ndarray, order: int, params: Tree) -> Tree:
    """List the units that each weight reaches within n steps.

    Args:
        index: the units that each weight feeds, as `declare(units=)` takes them.
        reads: whether a unit (row) reads another one (column).
        order: n.
        params: the parameters.

    Returns:
        A tree like the parameters of `Reached`, with None for leaves that feed no unit.
    """
    near = np.eye(len(reads), dtype=bool)  # whether a unit (row) is reached from another one (column)
    for _ in range(order - 1):
        near |= reads @ near

    def one_leaf(units, leaf):
        if units is None:
            return None
        units = np.asarray(units)
        units = units.reshape((1,) * (np.ndim(leaf) + 1 - units.ndim) + units.shape)
        every = near[:, units].any(axis=1)
        chosen = np.argsort(~every, axis=0, kind="stable")[: every.sum(axis=0).max(initial=0)]
        listed = np.take_along_axis(every, chosen, axis=0)
        fed = listed & (chosen[:, None] == units).any(axis=1)
        return Reached(np.where(listed, chosen, 0).astype(np.int32), listed, fed)

    return for_each_leaf(one_leaf, index, params)


def _listed_units(reach: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf.units, reach, is_leaf=lambda leaf: isinstance(leaf, Reached))


def next_masked(
    point: Linearisation, positions: np.ndarray, reach: Tree, colours: np.ndarray, reads: np.ndarray, traces: Traces
) -> Traces:
    """Advance the influence by one step, G ← mask ⊙ (J G + I).

    Units of one colour read no common unit, and no weight feeds two of them. So the derivative of their sum
    contains the rows of J and I of all of them, each in its place.

    Args:
        point: the linearisation of a single step.
        positions: the entries of every unit, from `positions_of`.
        reach: the units that each weight reaches, from `reached`.
        colours: the colour of every unit, from `colours_of`.
        reads: whether a unit (row) reads another one (column).
        traces: the influence before the step.

    Returns:
        The influence after the step.
    """
    flat, unravel = ravel_pytree(real_leaves(point.state))

    def row_of(mask):
        row, immediate = point.pull_back(unravel(mask))
        return by_component(positions, row), immediate

    def immediate_leaf(place, rows):
        if place is None:
            return None
        chosen = jnp.take_along_axis(rows, jnp.asarray(colours[place.units], jnp.int32), axis=0)
        return jnp.where(place.fed, chosen, jnp.zeros((), rows.dtype))

    def carried_leaf(place, rows, trace):
        if place is None:
            return None
        among = rows[place.units[:, None], place.units] * place.listed[:, None]
        return jnp.einsum("ab...,b...->a...", among.astype(jnp.finfo(trace.dtype).dtype), trace)

    def is_place(leaf):
        return leaf is None or isinstance(leaf, Reached)

    new = []
    for own in positions:
        masks = np.zeros((colours.max(initial=0) + 1, flat.size))
        masks[colours, own] = 1
        rows, immediate = jax.vmap(row_of)(jnp.asarray(masks, flat.dtype))
        after = jax.tree.map(immediate_leaf, reach, immediate, is_leaf=is_place)
        for component, trace in enumerate(traces):
            between = jnp.where(reads, rows[colours, component], 0)
            carried = jax.tree.map(lambda p, t, b=between: carried_leaf(p, b, t), reach, trace, is_leaf=is_place)
            after = next_trace(after, carried, trace)
        new.append(after)
    return tuple(new)
