"""Kronecker products: KF-RTRL, and optimal sums of several, for models whose weights all belong to one affine layer.

With z = W a the layer, the immediate influence ∂s'/∂W is itself one product, a ⊗ ∂s'/∂z.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core import checks
from norewind.core.combinators import carry_over_window, one_step_of
from norewind.core.estimator import Estimate, Estimator, Loss, Transition, linearise, linearise_state, model_of
from norewind.core.noise import Noise, as_key, random_signs
from norewind.core.structure import Layer, require_declarations, unfed_leaf
from norewind.core.trees import Tree, real_leaves
from norewind.core.units import for_each_leaf, per_weight
from norewind.estimators.uoro import NORMALISERS, merge


def kf_rtrl(transition: Transition, loss: Loss, *, noise: Noise = random_signs) -> Estimator:
    """KF-RTRL: an unbiased estimate u ⊗ A of the influence ∂s/∂W of the weights of an affine layer z = W a.

    At every step, with J = ∂s'/∂s, D = ∂s'/∂z and c a random sign,

        g̃ = (∂ℓ/∂s · A) ⊗ u + ∂ℓ/∂W
        p1 = √((‖J A‖ + ε) / (‖u‖ + ε))       p2 = √((‖D‖ + ε) / (‖a‖ + ε))
        u ← p1 u + c p2 a                     A ← J A/p1 + c D/p2

    starting from zeros: the immediate influence a ⊗ D is itself a Kronecker product,
    and one sign adds it to the other. (The paper has two signs, of which only the product
    matters.) UORO compresses n times as much into its vectors; here the variance relative
    to the gradient hardly grows with the number of units.

    Unbiased for frozen parameters. Time: n reverse derivatives for a state of n, and
    n²·m multiplications for m rows of W (n³ for a dense cell). Bytes carried: n·m and one a.
    Needs a model that declares its affine layer (`norewind.declare` with `layer`), such
    as `cells.rnn`, `cells.elman`, `cells.gru` and `cells.lstm(..., embedding=False)`; the
    gates of a cell are rows of one layer. Over a window, u and A are updated at every step.

    Reference: Mujika, Meier & Steger, Approximating Real-Time Recurrent Learning with
    Random Kronecker Factors (2018).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.
        noise: the source of c, called as `noise(key, like) -> (signs, next_key)`.

    Returns:
        The estimator.

    Raises:
        ModelError: the model declares no affine layer.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.gru(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.kf_rtrl(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry.u["gates"].shape, carry.A.shape
    ((1, 1, 4), (1, 4, 12))
    """

    def reduce(left, right, signs):
        past, new = (left[:1], right[:1]), (signs * left[1:], signs * right[1:])
        return merge(NORMALISERS["released"], past, new)

    return products_estimator("kf_rtrl", transition, loss, terms=1, reduce=reduce, noise=noise)


def kronecker(transition: Transition, loss: Loss, *, terms: int = 4, noise: Noise = random_signs) -> Estimator:
    """r-OK: an unbiased sum of r Kronecker products Σ u_i ⊗ A_i for the influence ∂s/∂W of an affine layer z = W a.

    At every step, with J = ∂s'/∂s and D = ∂s'/∂z,

        g̃ = Σ_i (∂ℓ/∂s · A_i) ⊗ u_i + ∂ℓ/∂W
        Σ_{i≤r} u_i ⊗ A_i ← reduce(Σ_{i≤r} u_i ⊗ J A_i + a ⊗ D)

    starting from zeros, where `reduce` turns r + 1 products into r. With d_1 ≥ … ≥ d_{r+1}
    the singular values of the sum, it keeps the largest as they are and mixes a tail of
    them by random signs; the tail is the longest with k d_i ≤ s for all i in it, where s is
    its sum and k its length minus one. The noise that this adds, s²/k − Σ_tail d_i², is the
    least that an unbiased estimate of this form can have.

    Unbiased for frozen parameters. Time: n reverse derivatives for a state of n, and
    r·n²·m multiplications for m rows of W. Bytes carried: r·n·m and r times a. Needs a model
    that declares its affine layer, as `kf_rtrl` does. Over a window, the factors are updated
    at every step.

    Reference: Benzing et al., Optimal Kronecker-Sum Approximation of Real Time Recurrent
    Learning (2019).

    The step can be differentiated (meta-gradients) where the singular values above zero differ, which they do except by
    coincidence.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.
        terms: r, the number of products.
        noise: the source of the signs, called as `noise(key, like) -> (signs, next_key)`.

    Returns:
        The estimator.

    Raises:
        ModelError: the model declares no affine layer, or `terms` is not a whole number above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.elman(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.kronecker(cell.transition, norewind.losses.cross_entropy, terms=2)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry.u["recurrent"].shape, carry.A.shape
    ((2, 1, 4), (2, 4, 4))
    """
    checks.check_at_least_one("kronecker: terms", terms)
    return products_estimator("kronecker", transition, loss, terms=terms, reduce=reduce, noise=noise)


def reduce(left: jax.Array, right: jax.Array, signs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Reduce a sum of r + 1 products to r products, with the same sum on average over all signs.

    Args:
        left: the left factors, one per row.
        right: the right factors, one per row.
        signs: r random signs.

    Returns:
        The r left and the r right factors, whose mean of Σ left_i ⊗ right_i is the original sum.
    """
    count, widths = len(left), (left.shape[1], right.shape[1])
    # The decomposition needs at least as many columns as rows.
    left, right = (jnp.pad(rows, ((0, 0), (0, max(0, count - rows.shape[1])))) for rows in (left, right))
    left, right = _reduce_wide(left, right, signs)
    return left[:, : widths[0]], right[:, : widths[1]]


@jax.custom_jvp
def _reduce_wide(left, right, signs):
    outer, values, inner = _singular(left, right)
    mix = _mixture(values, signs)
    return (outer @ mix).T, (inner @ mix).T


@_reduce_wide.defjvp
def _reduce_wide_jvp(primals, tangents):
    """The derivative by that of the singular vectors, which counts as zero between vectors of equal values.

    Among values of zero nothing is lost by that: as long as there are fewer than r + 1 products, as after the zero
    carry, nothing is mixed, and vectors without a value do not reach the result.
    """
    (left, right, signs), (left_dot, right_dot, _) = primals, tangents
    outer, values, inner = _singular(left, right)
    by_outer, by_inner = left @ outer, right @ inner
    # With M = Σ left_i ⊗ right_i = U S Vᵀ: Uᵀ dM V.
    change = (left_dot @ outer).T @ by_inner + by_outer.T @ (right_dot @ inner)
    mix, mix_dot = jax.jvp(lambda values: _mixture(values, signs), (values,), (jnp.diagonal(change),))

    inverse = _reciprocal(values)
    gaps = _reciprocal(values - values[:, None]) * _reciprocal(values + values[:, None])
    by_column, by_row = change * values, values[:, None] * change
    outer_dot = outer @ (gaps * (by_column + by_column.T)) + _outside(outer, left_dot.T @ by_inner) * inverse
    inner_dot = inner @ (gaps * (by_row + by_row.T)) + _outside(inner, right_dot.T @ by_outer) * inverse
    slopes = (outer_dot @ mix + outer @ mix_dot).T, (inner_dot @ mix + inner @ mix_dot).T
    return ((outer @ mix).T, (inner @ mix).T), slopes


def _singular(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The singular value decomposition of Σ left_i ⊗ right_i: left vectors, values, right vectors (in columns)."""
    (left, from_left), (right, from_right) = jnp.linalg.qr(left.T), jnp.linalg.qr(right.T)
    outer, values, inner = jnp.linalg.svd(from_left @ from_right.T)
    # Values that are only rounding would be mixed in by their roots, which are much larger.
    values = jnp.where(values > len(values) * jnp.finfo(values.dtype).eps * values[0], values, 0)
    return left @ outer, values, right @ inner.T


def _mixture(values: jax.Array, signs: jax.Array) -> jax.Array:
    """The matrix that turns r + 1 singular vectors into r factors; see `kronecker`."""
    size = len(values)
    sums = jnp.cumsum(values[::-1])[::-1]
    excess = size - 1 - jnp.arange(size)  # a tail that starts here has this many values plus one
    first = jnp.argmax(excess * values <= sums)
    is_tail, total, kept = jnp.arange(size) >= first, sums[first], excess[first]
    share = jnp.where(total > 0, total, 1) / kept  # √share for every column of the tail
    # The unit vector that the columns of the tail must be orthogonal to, so that their squares add up to the values.
    left_over = 1 - values / share
    normal = _root(jnp.where(is_tail & (left_over > size * jnp.finfo(values.dtype).eps), left_over, 0))
    # The reflection that maps the last axis to it: its other columns complete an orthonormal basis.
    mirror = normal.at[-1].add(1)
    basis = jnp.eye(size, dtype=values.dtype) - 2 * jnp.outer(mirror, mirror) / jnp.sum(mirror**2)
    scale = _root(jnp.where(is_tail, total / kept, values))
    return jnp.append(signs, 1)[:, None] * (basis * scale)[:, :-1]


def _root(numbers: jax.Array) -> jax.Array:
    """√ of numbers above 0, and 0 with a derivative of 0 elsewhere."""
    return jnp.where(numbers > 0, jnp.sqrt(jnp.where(numbers > 0, numbers, 1)), 0)


def _reciprocal(numbers: jax.Array) -> jax.Array:
    """1 / numbers, and 0 for zeros."""
    return jnp.where(numbers == 0, 0, 1 / jnp.where(numbers == 0, 1, numbers))


def _outside(basis: jax.Array, columns: jax.Array) -> jax.Array:
    """The part of the columns that is orthogonal to the basis."""
    return columns - basis @ (basis.T @ columns)


class AffineCarry(NamedTuple):
    """The factors of a sum of r Kronecker products, with E[Σ u_i ⊗ A_i] = ∂s/∂W.

    Attributes:
        u: the r factors u_i, stacked; each is shaped like the inputs a of the layer.
        A: the r factors A_i (state × rows), stacked.
        key: the PRNG key of the next step's noise.
    """

    u: Tree
    A: jax.Array
    key: jax.Array


# `reduce(left, right, signs)` turns r + 1 pairs of rows into r pairs with the same mean of Σ left_i ⊗ right_i.
Reduce = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def products_estimator(
    caller: str, transition: Transition, loss: Loss, *, terms: int, reduce: Reduce, noise: Noise
) -> Estimator:
    """Build an estimator that carries a fixed number of Kronecker products.

    Each step adds the product of its immediate influence, and `reduce` brings the sum back to `terms` products.

    Args:
        caller: the name of the method, for error messages.
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
    single, layer = _layer_of(caller, transition)
    model = model_of(transition, loss)

    def init(params, state, key):
        n = ravel_pytree(real_leaves(state))[0]
        u = jax.tree.map(lambda leaf: jnp.stack([leaf] * terms), _zero_inputs(layer, params))
        return AffineCarry(u, jnp.zeros((terms, n.size, layer.bias(params).size), n.dtype), as_key(key))

    def advance(params, state, carry, x):
        state, inputs, jacobian, drive = affine_step(caller, single, layer, params, state, x)
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
        _, carry = carry_over_window(transition, advance)(params, state, carry, x)
        return point.state, carry, Estimate(point.loss, grad, point.output)

    return Estimator.build(init, step, model)


def _layer_of(caller: str, transition: Transition) -> tuple[Transition, Layer]:
    """Return the single-step transition, and the affine layer that it declares."""
    transition = one_step_of(transition)
    use = "a cell that does, such as cells.rnn, cells.gru or cells.lstm(..., embedding=False)"
    (layer,) = require_declarations(caller, use, transition, "layer")
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
    caller: str, transition: Transition, layer: Layer, params: Tree, state: Tree, x: Tree
) -> tuple[Tree, Tree, jax.Array, jax.Array]:
    """Run one step, and compute the factors of its influence.

    Args:
        caller: the name of the method, for error messages.
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
        raise checks.ModelError(
            f"{caller}: params{missing} reaches the state, but not through the affine layer that the model declares. "
            "Use a model without it, or a method for any model, such as uoro."
        )
    point = linearise_state(transition, params, state, x)
    jacobian, immediate = point.rows()
    return point.state, _inputs(caller, layer, params, state, x), jacobian, jax.vmap(layer.bias)(immediate)


def _inputs(caller, layer, params, state, x):
    given = for_each_leaf(lambda value, leaf: value, layer.inputs(params, state, x), params)

    def one(path, leaf, wanted, value):
        if wanted is None:
            return None
        try:
            return jnp.broadcast_to(value, wanted.shape).astype(wanted.dtype)
        except ValueError as error:
            raise checks.ModelError(
                f"{caller}: the declared inputs of params{jax.tree_util.keystr(path)} have shape {jnp.shape(value)}, "
                f"but an affine layer has the same inputs in every row, here of shape {wanted.shape}."
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
    factors = per_weight(layer.rows(params), rows, params)

    def one(leaf, factor, value):
        return jnp.broadcast_to(factor if value is None else factor * value, jnp.shape(leaf))

    return jax.tree.map(one, params, factors, inputs)
