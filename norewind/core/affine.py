"""Models whose weights all belong to one affine layer, z = W a: the immediate influence is then a ⊗ ∂s'/∂z."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core.checks import ModelError
from norewind.core.combinators import WindowedTransition
from norewind.core.estimator import Estimate, Estimator, Loss, Transition, checked, linearise, linearise_state, model_of
from norewind.core.noise import Noise, as_key
from norewind.core.structure import Layer, for_each_leaf, required, spread, unfed_leaf
from norewind.core.trees import Tree, real_leaves


class AffineCarry(NamedTuple):
    """The factors of a sum of r Kronecker products, with E[Σ u_i ⊗ A_i] = ∂s/∂W.

    Args:
        u: the r factors u_i, stacked; each is shaped like the inputs a of the layer.
        A: the r factors A_i (state × rows), stacked.
        key: the PRNG key of the next step's noise.
    """

    u: Tree
    A: jax.Array
    key: jax.Array


# `reduce(left, right, signs)` turns r + 1 pairs of rows into r pairs with the same mean of Σ left_i ⊗ right_i.
Reduce = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def products(who: str, transition: Transition, loss: Loss, *, terms: int, reduce: Reduce, noise: Noise) -> Estimator:
    """Build an estimator that carries a fixed number of Kronecker products.

    Each step adds the product of its immediate influence, and `reduce` brings the sum back to `terms` products.

    Args:
        who: the name of the method, for error messages.
        transition: one step of the model, or a window of steps. It must declare its affine layer.
        loss: the loss of one step, `loss(output, target)`.
        terms: the number of products to carry.
        reduce: turns `terms + 1` products into `terms` with the same mean.
        noise: the source of the random signs that `reduce` takes.

    Returns:
        The estimator.

    Raises:
        ModelError: the model declares no affine layer.
    """
    single, layer = _layer_of(who, transition)
    model = model_of(transition, loss)

    def init(params, state, key):
        n = ravel_pytree(real_leaves(state))[0]
        u = jax.tree.map(lambda leaf: jnp.stack([leaf] * terms), _zero_inputs(layer, params))
        return AffineCarry(u, jnp.zeros((terms, n.size, layer.bias(params).size), n.dtype), as_key(key))

    def advance(params, state, carry, x):
        state, inputs, jacobian, drive = affine_step(who, single, layer, params, state, x)
        last, unravel = ravel_pytree(inputs)
        left = jnp.vstack([jax.vmap(lambda u: ravel_pytree(u)[0])(carry.u), last])
        right = jnp.concatenate([jacobian @ carry.A, drive[None]])
        signs, key = noise(carry.key, jnp.zeros(terms, right.dtype))
        left, flat = reduce(left, right.reshape(terms + 1, -1), signs)
        return state, AffineCarry(jax.vmap(unravel)(left.astype(last.dtype)), flat.reshape(carry.A.shape), key)

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        state_grad, direct = point.loss_grads()
        row = ravel_pytree(state_grad)[0]
        past = jax.vmap(lambda u, A: weight_grad(layer, row @ A, u, params))(carry.u, carry.A)
        grad = jax.tree.map(lambda g, grads: g + jnp.sum(grads, axis=0), direct, past)
        _, carry = _over_steps(transition, advance)(params, state, carry, x)
        return point.state, carry, Estimate(point.loss, grad, point.output)

    return checked(Estimator(init, step, model))


def _layer_of(who: str, transition: Transition) -> tuple[Transition, Layer]:
    """The single-step transition, taken out of its windows if there are any, and the affine layer that it declares."""
    while isinstance(transition, WindowedTransition):
        transition = transition.transition
    use = "a cell that does, such as cells.rnn, cells.gru or cells.lstm(..., embedding=False)"
    (layer,) = required(who, use, transition, layer="an affine layer that contains all weights")
    return transition, layer


def _zero_inputs(layer: Layer, params: Tree) -> Tree:
    """Zeros shaped like the inputs a: a tree like the parameters, without the axes along which only the row changes."""

    def one(rows, leaf):
        if rows is None:
            return None
        rows = np.shape(rows)
        rows = (1,) * (jnp.ndim(leaf) - len(rows)) + rows
        shape = [1 if own > 1 else size for own, size in zip(rows, jnp.shape(leaf), strict=True)]
        return jnp.zeros(shape, jnp.result_type(leaf))

    return for_each_leaf(one, layer.rows(params), params)


def affine_step(
    who: str, transition: Transition, layer: Layer, params: Tree, state: Tree, x: Tree
) -> tuple[Tree, Tree, jax.Array, jax.Array]:
    """Run one step, and compute the factors of its influence.

    Args:
        who: the name of the method, for error messages.
        transition: one step of the model.
        layer: the affine layer that the model declares.
        params: the parameters.
        state: the state before the step.
        x: the input.

    Returns:
        The new state, the inputs a of the layer as a tree like the parameters, J = ∂s'/∂s and D = ∂s'/∂z.

    Raises:
        ModelError: a parameter reaches the state without passing through the layer.
    """
    if missing := unfed_leaf(layer.rows(params), transition, params, state, x):
        raise ModelError(
            f"{who}: params{missing} reaches the state, but not through the affine layer that the model declares. "
            "Use a model without it, or a method for any model, such as uoro."
        )
    point = linearise_state(transition, params, state, x)
    flat, unravel = ravel_pytree(real_leaves(state))

    def row_of(unit):
        row, grad = point.pull_back(unravel(unit))
        return ravel_pytree(row)[0], layer.bias(grad)

    jacobian, drive = jax.vmap(row_of)(jnp.eye(flat.size, dtype=flat.dtype))
    return point.state, _inputs(who, layer, params, state, x), jacobian, drive


def _inputs(who, layer, params, state, x):
    given = for_each_leaf(lambda value, leaf: value, layer.inputs(params, state, x), params)

    def one(path, leaf, wanted, value):
        if wanted is None:
            return None
        try:
            return jnp.broadcast_to(value, wanted.shape).astype(wanted.dtype)
        except ValueError as error:
            raise ModelError(
                f"{who}: the declared inputs of params{jax.tree_util.keystr(path)} have shape {jnp.shape(value)}, but "
                f"an affine layer has the same inputs in every row, here of shape {wanted.shape}."
            ) from error

    return jax.tree_util.tree_map_with_path(one, params, _zero_inputs(layer, params), given)


def weight_grad(layer: Layer, rows: jax.Array, inputs: Tree, params: Tree) -> Tree:
    """The product rows ⊗ inputs: for every weight, the value of its row times the value of its input.

    Args:
        layer: the affine layer that the model declares.
        rows: one number per row of the layer.
        inputs: the inputs of the layer, as a tree like the parameters.
        params: the parameters.

    Returns:
        A tree like the parameters.
    """
    factors = spread(layer.rows(params), rows, params)

    def one(leaf, factor, value):
        return jnp.broadcast_to(factor if value is None else factor * value, jnp.shape(leaf))

    return jax.tree.map(one, params, factors, inputs)


def _over_steps(transition: Transition, advance: Callable) -> Callable:
    """`advance(params, state, carry, x) -> (state, carry)` for every step of a window, one after the other."""
    if not isinstance(transition, WindowedTransition):
        return advance
    inner = _over_steps(transition.transition, advance)

    def over_window(params, state, carry, x):
        def body(loop, x):
            return inner(params, *loop, x), None

        return jax.lax.scan(body, (state, carry), x)[0]

    return over_window
