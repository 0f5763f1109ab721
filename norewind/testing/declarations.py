"""Proofs of what a model declares about itself (`norewind.declare`), from its full derivatives."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core.estimator import Transition
from norewind.core.products import own_product
from norewind.core.structure import reads_of, structure_of, with_product
from norewind.core.trees import Tree, named_leaves, real_leaves, with_real_leaves
from norewind.core.units import components_of, for_each_leaf, positions_of
from norewind.estimators.kronecker import affine_step, weight_grad
from norewind.testing.oracles import assert_same


def check_structure(transition: Transition, params: Tree, state: Tree, x: Tree) -> None:
    """Assert that the declarations of a transition (`norewind.declare`) are true at a point, from its full derivatives.

    A wrong declaration can pass at special points, so use parameters and states without
    zeros.

    Args:
        transition: the transition with its declarations.
        params: the parameters.
        state: the state before the step.
        x: an input.

    Raises:
        AssertionError: nothing is declared, or a declaration is wrong.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> norewind.testing.check_structure(cell.transition, cell.init(jax.random.key(0)), jnp.ones(4), jnp.array(0))
    """
    structure = structure_of(transition)
    assert any(part is not None for part in structure), "this transition declares nothing (see norewind.declare)"
    if structure.units is not None:
        _check_units(transition, params, state, x, structure.units(params))
    if structure.memory is not None:
        # Rows and columns of the Jacobian have the structure of the state.
        block = np.asarray(structure.memory(structure.memory(_state_jacobian(transition, params, state, x))))
        block = block.reshape(2 * (int(np.sqrt(block.size)),))
        assert np.all(block == np.diag(np.diag(block))), "the declared memory cell of one unit reaches that of another"
    if structure.output_units is not None:
        new_state, output = jax.jit(transition)(params, state, x)
        units = ravel_pytree(real_leaves(new_state))[0][np.array(structure.output_units)]
        assert np.allclose(units, jnp.ravel(output)), "the output is not the declared output_units of the state"
    if structure.reads is not None:
        _check_reads(transition, params, state, x)
    if structure.mixing is not None:
        _check_mixing(transition, params, state, x, structure.mixing)
    if structure.layer is not None:
        _check_layer(transition, params, state, x, structure.layer)


def _state_jacobian(transition, params, state, x) -> Tree:
    """Differentiate the new state by the old: for every leaf of the new state, a tree of blocks."""

    def new_leaves(leaves):
        return real_leaves(transition(params, with_real_leaves(state, leaves), x)[0])

    return jax.jit(jax.jacrev(new_leaves))(real_leaves(state))


def _check_units(transition, params, state, x, index) -> None:
    leaves = real_leaves(state)
    influence = jax.jit(jax.jacrev(lambda params: real_leaves(transition(params, state, x)[0])))(params)
    units = for_each_leaf(_units_first, index, params)
    by_leaf = jax.tree.structure(leaves).flatten_up_to(influence)
    owners = jax.tree.leaves(_owners(transition, state))
    for (state_place, _), owner, rows in zip(named_leaves("state", leaves), owners, by_leaf, strict=True):
        for (place, fed), one in zip(named_leaves("params", units), jax.tree.leaves(rows), strict=True):
            reached, what = np.asarray(one) != 0, "reaches the state"
            if len(fed):
                own = owner.reshape(owner.shape + (1,) * (fed.ndim - 1))
                reached &= ~np.any([own == unit for unit in fed], axis=0)
                what = "feeds a unit that is not the declared one"
            assert not reached.any(), f"{place} {what} ({state_place})"


def _units_first(units, leaf) -> np.ndarray:
    """The units that each weight feeds, along a leading axis (of length 0 if it feeds none)."""
    if units is None:
        return np.zeros((0, *np.shape(leaf)), int)
    shared = np.shape(units)[:1] if np.ndim(units) > np.ndim(leaf) else (1,)
    return np.broadcast_to(units, shared + np.shape(leaf))


def _owners(transition, state) -> Tree:
    """The unit that every entry of the real leaves of a state belongs to."""
    entries, leaves = structure_of(transition).entries, real_leaves(state)
    positions = positions_of(entries, components_of("check_structure", entries, state), leaves)
    owners = np.zeros(positions.size, int)
    owners[positions] = np.arange(positions.shape[1])
    flat = np.split(owners, np.cumsum([leaf.size for leaf in jax.tree.leaves(leaves)])[:-1])
    shaped = [own.reshape(leaf.shape) for own, leaf in zip(flat, jax.tree.leaves(leaves), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(leaves), shaped)


def _check_reads(transition, params, state, x) -> None:
    owners, declared = _owners(transition, state), structure_of(transition)
    reads = reads_of(declared, state, 1 + max(int(np.max(own)) for own in jax.tree.leaves(owners)))
    what = "the model is not elementwise: " if declared.elementwise else "not in the declared reads: "
    pairs = product(named_leaves("state", owners), repeat=2)
    blocks = jax.tree.leaves(_state_jacobian(transition, params, state, x))
    for ((new, fed), (old, read)), block in zip(pairs, blocks, strict=True):
        among = np.asarray(block).reshape(fed.size, read.size)[~reads[fed.reshape(-1, 1), read.reshape(1, -1)]]
        assert np.all(among == 0), f"{what}{old} of one unit reaches {new} of another"


def _check_mixing(transition, params, state, x, mixing) -> None:
    itself, mixed = (_state_jacobian(model, params, state, x) for model in (transition, mixing(jnp.matmul)))
    assert_same(mixed, itself, "mixing by W @ v gives a model with different derivatives", 1e-6, 1e-4)
    alone = with_product(transition, own_product)
    units = structure_of(alone).units
    assert units is not None, "a model that declares mixing must declare units, or its mixing must"
    actual, values = (jax.jit(model)(params, state, x) for model in (alone, transition))
    assert_same(actual, values, "mixing by a product with the same values changes the model's", 1e-6, 1e-4)
    _check_units(alone, params, state, x, units(params))
    _check_reads(alone, params, state, x)


def _check_layer(transition, params, state, x, layer) -> None:
    @jax.jit
    def influences():
        _, inputs, _, drive = affine_step("check_structure", transition, layer, params, state, x)
        declared = jax.vmap(lambda row: weight_grad(layer, row, inputs, params))(drive)
        return declared, jax.jacrev(lambda params: ravel_pytree(real_leaves(transition(params, state, x)[0]))[0])(
            params
        )

    declared, true = influences()
    for (place, leaf), given in zip(named_leaves("params", true), jax.tree.leaves(declared), strict=True):
        assert np.allclose(leaf, given, rtol=1e-4, atol=1e-6), f"{place} does not act through the declared layer alone"
