"""Traces: the influence of each weight on its own unit, and the models in which that is all the influence there is."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.checks import ModelError
from norewind.estimator import (
    Estimate,
    Estimator,
    Linearisation,
    Model,
    Transition,
    checked,
    linearise,
    linearise_state,
)
from norewind.structure import Product, covered_units, for_each_leaf, mixed_by, spread, structure_of
from norewind.trees import Tree, real_leaves

# For every component of the state (each number that a unit keeps), a tree like the parameters; None without a unit.
Traces = tuple[Tree, ...]


@jax.custom_vjp
def own_product(weight: jax.Array, vector: jax.Array) -> jax.Array:
    """W v, differentiated as if every unit knew only its own entry of v: unit i has the rows i, n + i, 2n + i, ..."""
    return weight @ vector


def _own_backward(kept, cotangent):
    weight, vector = kept
    n = vector.size
    own = jnp.diagonal(weight.reshape(-1, n, n), axis1=1, axis2=2) * cotangent.reshape(-1, n)
    return jnp.outer(cotangent, vector), jnp.sum(own, axis=0)


own_product.defvjp(lambda weight, vector: (weight @ vector, (weight, vector)), _own_backward)


def cut_product(weight: jax.Array, vector: jax.Array) -> jax.Array:
    """W v with v taken as given."""
    return weight @ jax.lax.stop_gradient(vector)


def unit_by_unit(who: str, transition: Transition, product: Product = own_product) -> Transition:
    """The model as each unit sees it alone, with the same values: itself if its units do not read one another."""
    told = structure_of(transition)
    if told.elementwise and told.units is not None:
        return transition
    if told.mixing is None:
        raise ModelError(
            f"{who} needs to know how each unit depends on itself alone, and this model declares neither elementwise "
            "(with units) nor mixing. Use a cell that does, such as cells.rnn, cells.gru or "
            "cells.lstm(..., embedding=False), or declare it for your own model with "
            "norewind.declare(transition, units=..., mixing=...)."
        )
    alone = mixed_by(transition, product)
    if structure_of(alone).units is None:
        raise ModelError(f"{who}: the model declares mixing, but not which unit each weight feeds (units).")
    return alone


def units_of(alone: Transition, params: Tree) -> Tree:
    """The unit that each weight feeds, as declared by a model from `unit_by_unit`."""
    units = structure_of(alone).units
    assert units is not None
    return units(params)


def _components(leaves: Tree) -> jax.Array:
    """The real leaves of a state as an array with a row per component and a column per unit."""
    return jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in jax.tree.leaves(leaves)])


def _from_components(rows: np.ndarray, like: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size // leaf.shape[-1] for leaf in leaves])
    parts = np.split(rows, ends[:-1])
    parts = [jnp.asarray(part.reshape(leaf.shape), leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, parts)


def _check_components(who: str, state: Tree) -> None:
    """Every floating leaf is a vector with an entry per unit."""
    first = None
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            first = first or jnp.shape(leaf)
            if jnp.ndim(leaf) != 1 or jnp.shape(leaf) != first:
                raise ModelError(
                    f"{who}: state{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}, but every floating leaf of "
                    f"the state must be a vector with one entry per unit, all of one length. Split or flatten it."
                )


def zero_traces(who: str, alone: Transition, params: Tree, state: Tree) -> Traces:
    """Nothing has influenced the state yet."""
    _check_components(who, state)
    zeros = for_each_leaf(
        lambda unit, leaf: None if unit is None else jnp.zeros_like(leaf), units_of(alone, params), params
    )
    return (zeros,) * len(_components(real_leaves(state)))


def along_traces(units: Tree, row: Tree, traces: Traces, params: Tree) -> Tree:
    """A row like the real leaves of a state, times the traces: Σ_j row_{j,u(w)} G_{j,w} for every weight w."""
    total = jax.tree.map(lambda leaf: jnp.zeros((), jnp.result_type(leaf)), params)
    for values, trace in zip(_components(row), traces, strict=True):
        factors = spread(units, values, params)
        total = jax.tree.map(lambda t, f, g: t if g is None else t + f * g, total, factors, trace)
    return total


def next_traces(alone: Linearisation, units: Tree, traces: Traces, params: Tree) -> Traces:
    """G ← J G + I for a model of units that do not read one another.

    Every unit has its own weights and its own entries of the state: the derivative of
    the sum over all units holds the rows of each, all in their places.
    """
    leaves = real_leaves(alone.state)
    new = []
    for number, trace in enumerate(traces):
        ones = np.zeros(_components(leaves).shape)
        ones[number] = 1
        row, immediate = alone.pull_back(_from_components(ones, leaves))
        carried = along_traces(units, row, traces, params)
        new.append(jax.tree.map(lambda i, c, g: None if g is None else c + i, immediate, carried, trace))
    return tuple(new)


def traces_alone(who: str, model: Model, alone: Transition, through: Model) -> Estimator:
    """The method that carries traces and nothing else; its gradient is that of `through`, a model with the same values.

    `alone` is what `unit_by_unit` makes of the model.
    """

    def init(params, state, key):
        return zero_traces(who, alone, params, state)

    def step(params, state, carry, x, target):
        units = covered_units(who, alone, params, state, x)
        point = linearise(through, params, state, x, target)
        state_grad, direct = point.loss_grads()
        grad = jax.tree.map(jnp.add, direct, along_traces(units, state_grad, carry, params))
        own = point if alone is through.transition else linearise_state(alone, params, state, x)
        return point.state, next_traces(own, units, carry, params), Estimate(point.loss, grad, point.output)

    return checked(Estimator(init, step, model))
