"""A check that the declarations of a model are true."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.affine import affine_step, weight_grad
from norewind.estimator import Transition
from norewind.structure import for_each_leaf, mixed_by, structure_of
from norewind.testing.oracles import assert_same
from norewind.traces import own_product
from norewind.trees import Tree, real_leaves, with_real_leaves


def check_structure(transition: Transition, params: Tree, state: Tree, x: Tree) -> None:
    """Assert that what a transition declares (`norewind.declare`) is true at this point, from its full derivatives.

    A wrong declaration can pass at special points, so use parameters and states without
    zeros.

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
        assert np.all(block == np.diag(np.diag(block))), "the declared memory cell of one unit reaches that of another"
    if structure.output_units is not None:
        new_state, output = jax.jit(transition)(params, state, x)
        units = ravel_pytree(real_leaves(new_state))[0][np.array(structure.output_units)]
        assert np.allclose(units, jnp.ravel(output)), "the output is not the declared output_units of the state"
    if structure.elementwise:
        _check_elementwise(transition, params, state, x)
    if structure.mixing is not None:
        _check_mixing(transition, params, state, x, structure.mixing)
    if structure.layer is not None:
        _check_layer(transition, params, state, x, structure.layer)


def _state_jacobian(transition, params, state, x) -> Tree:
    """The derivatives of the new state by the old: for every leaf of the new state, a tree of blocks."""

    def new_leaves(leaves):
        return real_leaves(transition(params, with_real_leaves(state, leaves), x)[0])

    return jax.jit(jax.jacrev(new_leaves))(real_leaves(state))


def _check_units(transition, params, state, x, index) -> None:
    leaves = real_leaves(state)
    influence = jax.jit(jax.jacrev(lambda params: real_leaves(transition(params, state, x)[0])))(params)
    nowhere = -1
    units = for_each_leaf(lambda own, leaf: np.broadcast_to(nowhere if own is None else own, leaf.shape), index, params)
    for (place, _), rows in zip(
        jax.tree_util.tree_leaves_with_path(leaves), jax.tree.structure(leaves).flatten_up_to(influence), strict=True
    ):
        for (path, own), one in zip(jax.tree_util.tree_leaves_with_path(units), jax.tree.leaves(rows), strict=True):
            reached, what = np.asarray(one) != 0, "reaches the state"
            if np.any(own != nowhere):
                reached &= np.arange(len(reached)).reshape(-1, *(1,) * own.ndim) != own
                what = "feeds a unit that is not the declared one"
            where = f"state{jax.tree_util.keystr(place)}"
            assert not reached.any(), f"params{jax.tree_util.keystr(path)} {what} ({where})"


def _check_elementwise(transition, params, state, x) -> None:
    leaves = real_leaves(state)
    shapes = {jnp.shape(leaf) for leaf in jax.tree.leaves(leaves)}
    assert [len(shape) for shape in shapes] == [1], (
        f"an elementwise model keeps vectors of one length, an entry per unit, not leaves of shapes {sorted(shapes)}"
    )
    places = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(leaves)]
    blocks = jax.tree.leaves(_state_jacobian(transition, params, state, x))
    pairs = [(new, old) for new in places for old in places]
    for (new, old), block in zip(pairs, blocks, strict=True):
        among = np.asarray(block)[~np.eye(len(block), dtype=bool)]
        assert np.all(among == 0), f"the model is not elementwise: state{old} of one unit reaches state{new} of another"


def _check_mixing(transition, params, state, x, mixing) -> None:
    itself, mixed = (_state_jacobian(model, params, state, x) for model in (transition, mixing(jnp.matmul)))
    assert_same(mixed, itself, "mixing by W @ v gives a model with other derivatives", 1e-6, 1e-4)
    alone = mixed_by(transition, own_product)
    units = structure_of(alone).units
    assert units is not None, "a model that declares mixing must declare units, or its mixing must"
    found, values = (jax.jit(model)(params, state, x) for model in (alone, transition))
    assert_same(found, values, "mixing by a product with the same values changes the model's", 1e-6, 1e-4)
    _check_units(alone, params, state, x, units(params))
    _check_elementwise(alone, params, state, x)


def _check_layer(transition, params, state, x, layer) -> None:
    @jax.jit
    def influences():
        step = affine_step("check_structure", transition, layer, params, state, x)
        told = jax.vmap(lambda row: weight_grad(layer, row, step.inputs, params))(step.drive)
        return told, jax.jacrev(lambda params: ravel_pytree(real_leaves(transition(params, state, x)[0]))[0])(params)

    told, true = influences()
    for (path, leaf), given in zip(jax.tree_util.tree_leaves_with_path(true), jax.tree.leaves(told), strict=True):
        place = f"params{jax.tree_util.keystr(path)}"
        assert np.allclose(leaf, given, rtol=1e-4, atol=1e-6), f"{place} acts in another way than by the declared layer"
