"""Optimal Kronecker sums: the influence as a sum of several Kronecker products, with the least possible noise."""

import jax
import jax.numpy as jnp

from norewind.core import checks
from norewind.core.affine import products
from norewind.core.estimator import Estimator, Loss, Transition
from norewind.core.noise import Noise, random_signs


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
    checks.at_least_one("kronecker: terms", terms)
    return products("kronecker", transition, loss, terms=terms, reduce=reduce, noise=noise)


def reduce(left: jax.Array, right: jax.Array, signs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Reduce a sum of r + 1 products to r products, with the same sum on average over all signs.

    Args:
        left: the left factors, one per row.
        right: the right factors, one per row.
        signs: r random signs.

    Returns:
        The r left and the r right factors, whose mean of Σ left_i ⊗ right_i is the original sum.
    """
    (left, from_left), (right, from_right) = _factored(left), _factored(right)
    outer, values, inner = jnp.linalg.svd(from_left @ from_right.T)

    size = len(values)
    sums = jnp.cumsum(values[::-1])[::-1]
    excess = size - 1 - jnp.arange(size)  # a tail that starts here has this many values plus one
    first = jnp.argmax(excess * values <= sums)
    is_tail, total, kept = jnp.arange(size) >= first, sums[first], excess[first]
    share = jnp.where(total > 0, total, 1) / kept  # √share for every column of the tail
    # The unit vector that the columns of the tail must be orthogonal to, so that their squares add up to the values.
    normal = jnp.where(is_tail, jnp.sqrt(jnp.maximum(1 - values / share, 0)), 0)
    # The reflection that maps the last axis to it: its other columns complete an orthonormal basis.
    mirror = normal.at[-1].add(1)
    basis = jnp.eye(size, dtype=values.dtype) - 2 * jnp.outer(mirror, mirror) / jnp.sum(mirror**2)
    scale = jnp.sqrt(jnp.where(is_tail, total / kept, values))
    mix = jnp.append(signs, 1)[:, None] * (basis * scale)[:, :-1]
    return (left @ (outer @ mix)).T, (right @ (inner.T @ mix)).T


def _factored(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A QR decomposition of the transposed rows: as many orthonormal columns as there are rows, and a square matrix."""
    count, width = rows.shape
    columns, square = jnp.linalg.qr(jnp.pad(rows, ((0, 0), (0, max(0, count - width)))).T)
    return columns[:width], square
