"""Traces: the influence of each weight on its own unit, and the models that have no other influence."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core import estimator
from norewind.core.checks import ModelError
from norewind.core.estimator import Estimate, Estimator, Linearisation, Model, Transition
from norewind.core.structure import Product, covered_units, for_each_leaf, mixed_by, spread, structure_of
from norewind.core.trees import Tree, as_arrays, floating, named_leaves, real_leaves

# One trace for every component of the state (each number that a unit keeps): a tree like the parameters, with None for
# leaves that feed no unit.
Traces = tuple[Tree, ...]


@jax.custom_vjp
def own_product(weight: jax.Array, vector: jax.Array) -> jax.Array:
    """W v, differentiated as if every unit read only its own entry of v.

    Args:
        weight: the matrix W; unit i has the rows i, n + i, 2n + i, ...
        vector: the vector v with n entries, one per unit.

    Returns:
        The product.
    """
    return weight @ vector


def _own_backward(kept, cotangent):
    weight, vector = kept
    n = vector.size
    own = jnp.diagonal(weight.reshape(-1, n, n), axis1=1, axis2=2) * cotangent.reshape(-1, n)
    return jnp.outer(cotangent, vector), jnp.sum(own, axis=0)


own_product.defvjp(lambda weight, vector: (weight @ vector, (weight, vector)), _own_backward)


def cut_product(weight: jax.Array, vector: jax.Array) -> jax.Array:
    """W v, with v treated as a constant in derivatives.

    Args:
        weight: the matrix W.
        vector: the vector v.

    Returns:
        The product.
    """
    return weight @ jax.lax.stop_gradient(vector)


def unit_by_unit(who: str, transition: Transition, product: Product = own_product) -> Transition:
    """The same model with its derivatives between units removed, so that each unit depends only on itself.

    Args:
        who: the name of the method, for the message.
        transition: one step of the model.
        product: replaces every W @ v through which units read one another; it has the same values.

    Returns:
        A transition with the same values; the given one if its units do not read one another anyway.

    Raises:
        ModelError: the model does not declare enough about its units.
    """
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
    """The unit that each weight feeds, as declared by a transition from `unit_by_unit`.

    Args:
        alone: the transition from `unit_by_unit`.
        params: the parameters.

    Returns:
        The units, as `declare` takes them.
    """
    units = structure_of(alone).units
    assert units is not None
    return units(params)


def zero_traces(who: str, alone: Transition, params: Tree, state: Tree) -> Traces:
    """The traces before the first step: nothing has influenced the state yet.

    Args:
        who: the name of the method, for the message.
        alone: the transition from `unit_by_unit`.
        params: the parameters.
        state: the state before the first step.

    Returns:
        For every component of the state, a tree of zeros like the parameters.

    Raises:
        ModelError: a floating leaf of the state does not have one entry per unit.
    """
    leaves = named_leaves("state", floating(as_arrays(state)))
    for place, leaf in leaves:
        if jnp.ndim(leaf) != 1 or jnp.shape(leaf) != jnp.shape(leaves[0][1]):
            raise ModelError(
                f"{who}: {place} has shape {jnp.shape(leaf)}, but every floating leaf of the state must be a vector "
                "with one entry per unit, all of one length. Split or flatten it."
            )
    components = sum(2 if jnp.iscomplexobj(leaf) else 1 for _, leaf in leaves)
    return (zero_trace(units_of(alone, params), params),) * components


def zero_trace(units: Tree, params: Tree) -> Tree:
    """A trace of zeros: a tree like the parameters, with None for leaves that feed no unit.

    Args:
        units: the unit that each weight feeds.
        params: the parameters.

    Returns:
        The trace.
    """
    return for_each_leaf(lambda unit, leaf: None if unit is None else jnp.zeros_like(leaf), units, params)


def along_traces(units: Tree, row: Tree, traces: Traces, params: Tree) -> Tree:
    """The product of a row vector with the traces: Σ_j row_{j,u(w)} G_{j,w} for every weight w, which feeds unit u(w).

    Args:
        units: the unit that each weight feeds.
        row: the row vector, shaped like the real leaves of the state, or like those that have traces.
        traces: the traces G.
        params: the parameters.

    Returns:
        A tree like the parameters.
    """
    total = jax.tree.map(lambda leaf: jnp.zeros((), jnp.result_type(leaf)), params)
    for values, trace in zip(ravel_pytree(row)[0].reshape(len(traces), -1), traces, strict=True):
        factors = spread(units, values, params)
        total = jax.tree.map(lambda t, f, g: t if g is None else t + f * g, total, factors, trace)
    return total


def next_trace(immediate: Tree, carried: Tree, trace: Tree) -> Tree:
    """One trace after a step, G ← J G + I, for the leaves that have a trace.

    Args:
        immediate: I, the derivative of the component by the parameters.
        carried: J G, from `along_traces`.
        trace: G before the step.

    Returns:
        The trace after the step.
    """
    return jax.tree.map(lambda i, c, g: None if g is None else c + i, immediate, carried, trace)


def next_traces(alone: Linearisation, units: Tree, traces: Traces, params: Tree) -> Traces:
    """Advance the traces by one step, G ← J G + I, for a model whose units do not read one another.

    Every unit has its own weights and its own entries of the state: the derivative of
    the sum over all units contains the rows of all of them, each in its place.

    Args:
        alone: the linearisation of the transition from `unit_by_unit`.
        units: the unit that each weight feeds.
        traces: the traces G before the step.
        params: the parameters.

    Returns:
        The traces after the step.
    """
    flat, unravel = ravel_pytree(real_leaves(alone.state))
    new = []
    for number, trace in enumerate(traces):
        ones = np.zeros((len(traces), flat.size // len(traces)))
        ones[number] = 1
        row, immediate = alone.pull_back(unravel(jnp.asarray(ones.ravel(), flat.dtype)))
        new.append(next_trace(immediate, along_traces(units, row, traces, params), trace))
    return tuple(new)


def traces_alone(who: str, model: Model, alone: Transition, through: Model) -> Estimator:
    """Build an estimator that carries traces and nothing else.

    Args:
        who: the name of the method, for messages.
        model: the model.
        alone: the transition from `unit_by_unit`.
        through: a model with the same values, whose derivatives give the gradient within a step.

    Returns:
        The estimator.
    """

    def init(params, state, key):
        return zero_traces(who, alone, params, state)

    def step(params, state, carry, x, target):
        units = covered_units(who, alone, params, state, x)
        point = estimator.linearise(through, params, state, x, target)
        state_grad, direct = point.loss_grads()
        grad = jax.tree.map(jnp.add, direct, along_traces(units, state_grad, carry, params))
        own = point if alone is through.transition else estimator.linearise_state(alone, params, state, x)
        return point.state, next_traces(own, units, carry, params), Estimate(point.loss, grad, point.output)

    return estimator.checked(Estimator(init, step, model))
