"""A biased gradient plus a learned fraction of what it drops: only as much noise as the correction is worth."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.core import checks
from norewind.core.estimator import Estimate, Estimator, linearise
from norewind.core.noise import Noise, as_key, random_signs
from norewind.core.trees import Tree, norm, weighted_sum, where, zeros_like
from norewind.estimators.uoro import (
    UOROCarry,
    influence_of,
    init_carry,
    make_advance_rest,
    paper_normaliser,
)

# κ is averaged over this many lengths of the running means, since successive means are almost equal.
RATIO_MEMORY = 10


class ShrunkCarry(NamedTuple):
    """An approximation D of the influence, and several independent estimates of the rest.

    Attributes:
        rest: the K pairs s̃ and θ̃ with their keys, stacked; their own approximation is empty.
        approximation: D.
        means: for every pair k, the running mean of r̃_k, stacked.
        log_size: the running sum of log ‖r̃_k‖, and of the weights of its terms.
        agreement: the running sum of A/B (one number, or one per leaf of the parameters).
        weight: the running sum of the weights of those terms, which grows from 0 to 1.
    """

    rest: UOROCarry
    approximation: Tree
    means: Tree
    log_size: jax.Array
    agreement: jax.Array
    weight: jax.Array


def shrunk(
    estimator: Estimator,
    *,
    carries: int = 2,
    per_leaf: bool = False,
    decay: float = 0.999,
    limit: float = 30.0,
    noise: Noise = random_signs,
) -> Estimator:
    """A biased method's gradient, plus c times an unbiased estimate of what it drops, with c in [0, 1] learned online.

    K ≥ 2 independent carries estimate the rest R of the influence, as in `unbiased`. With D the
    method's approximation, at every step,

        r̃_k = (∂ℓ/∂s · s̃_k) θ̃_k, cut to `limit` times its typical norm
        g = ∂ℓ/∂θ + ∂ℓ/∂s · D + c · mean_k r̃_k
        m_k ← decay m_k + (1 − decay) r̃_k
        A = mean_{j≠k} m_j·m_k        B = mean_k ‖m_k‖²
        κ ← running mean of A/B over ten times as long, clipped to [0, 1]
        c = κ / (κ + (1 − κ)/K)

    The carries are independent, so A estimates the squared norm of the mean of the dropped gradient
    over the last 1/(1 − decay) steps, and B that plus the variance: κ is the share of the signal,
    and c minimises the squared error of the mean gradient over that time. Judged by single steps,
    c would nearly always be close to 0: noise averages out over the updates, while a bias adds up.
    So the decay should suit the time over which your optimizer averages. The noise has heavy
    tails: A/B is at most 1, so no single step can dominate κ, and the cut (the typical norm is a
    geometric mean) keeps single steps from dominating the update.

    c near 0 means that the method's bias does not matter here (or cannot be seen behind the noise),
    c near 1 that it does. c is reported as `shrinkage` in the metrics and by `diagnose`. With
    `per_leaf`, every leaf of the parameters has its own.

    Biased, unless c is 1. Time: the method, plus K times what `unbiased` adds.
    Bytes carried: those of the method, K states and 2 K sets of parameters. Needs an estimator
    that carries a deterministic approximation (`Estimator.influence`).

    Reference: introduced in norewind; after James & Stein, Estimation with quadratic loss (1961).

    Args:
        estimator: the biased estimator.
        carries: K, at least 2.
        per_leaf: learn one c for every leaf of the parameters, instead of one for all.
        decay: the decay of the running means.
        limit: the largest norm of an r̃_k, in units of the typical one.
        noise: the source of the signs, called as `noise(key, like) -> (signs, next_key)`.

    Returns:
        The estimator.

    Raises:
        ModelError: the estimator does not carry such an approximation, or there are fewer than 2 carries.
        ValueError: `decay` is not between 0 and 1, or `limit` is not above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.elman(inputs=3, hidden=4, outputs=3)
    >>> traces = norewind.estimators.snap1(cell.transition, norewind.losses.cross_entropy)
    >>> estimator = norewind.estimators.shrunk(traces, carries=4)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry.rest.s_tilde.shape, float(estimator.report(carry)["shrinkage"])
    ((4, 4), 0.0)
    """
    influence = influence_of("shrunk", estimator)
    _check_options(carries, decay, limit)
    model, slower = estimator.model, 1 - (1 - decay) / RATIO_MEMORY
    advance_rest = make_advance_rest(influence, paper_normaliser, noise)

    def init(params, state, key):
        keys = jax.random.split(as_key(key), carries)
        rest = jax.vmap(lambda key: init_carry(params, state, key))(keys)
        groups = len(jax.tree.leaves(params)) if per_leaf else 1
        zeros = jnp.zeros(groups)
        means = zeros_like(rest.theta_tilde)
        return ShrunkCarry(rest, influence.init(params, state), means, jnp.zeros(2), zeros, zeros)

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        after = influence.advance(params, state, carry.approximation, x, point)

        def one_carry(one):
            new, loss_tangent = advance_rest(params, point, one._replace(approximation=carry.approximation), after)
            return new._replace(approximation=()), loss_tangent

        rest, loss_tangents = jax.vmap(one_carry)(carry.rest)
        norms = jnp.abs(loss_tangents) * jax.vmap(norm)(carry.rest.theta_tilde)
        log_size = _typical(decay, carry.log_size, norms)
        loss_tangents = (loss_tangents * _cut(limit, log_size, norms)).astype(loss_tangents.dtype)
        means = jax.tree.map(lambda m, t: _toward(decay, m, loss_tangents, t), carry.means, carry.rest.theta_tilde)
        ratio, known = _agreement(means, carries, per_leaf)
        new = ShrunkCarry(
            rest,
            after,
            means,
            log_size,
            (slower * carry.agreement + (1 - slower) * ratio).astype(carry.agreement.dtype),
            (slower * carry.weight + (1 - slower) * known).astype(carry.weight.dtype),
        )
        mean_rest = weighted_sum(loss_tangents / carries, carry.rest.theta_tilde)
        known_part = influence.gradient(params, point, carry.approximation)
        grad = _plus(known_part, shrinkage(new, carries), mean_rest)
        return point.state, new, Estimate(point.loss, grad, point.output)

    def reset(params, state, carry, when):
        # What was learned about the rest remains true, and the noise continues.
        fresh = init(params, state, jax.random.key(0))
        rest = fresh.rest._replace(key=carry.rest.key)
        return where(when, carry._replace(rest=rest, approximation=fresh.approximation), carry)

    def report(carry):
        return {"shrinkage": jnp.mean(shrinkage(carry, carries))}

    return Estimator.build(init, step, model, reset=reset, report=report)


def shrinkage(carry: ShrunkCarry, carries: int) -> jax.Array:
    """Return c, one number or one per leaf of the parameters; 0 before anything is known.

    Args:
        carry: the carry of `shrunk`.
        carries: K.
    """
    known = carry.weight > 0
    share = jnp.where(known, jnp.clip(carry.agreement / jnp.where(known, carry.weight, 1), 0, 1), 0)
    return share / (share + (1 - share) / carries)


def _check_options(carries: int, decay: float, limit: float) -> None:
    checks.check_at_least_one("shrunk: carries", carries)
    if carries < 2:
        raise checks.ModelError("shrunk: carries must be at least 2: one carry cannot tell signal from noise.")
    if not 0 < decay < 1:
        raise ValueError(f"shrunk: decay must be between 0 and 1, not {decay}.")
    if not limit > 0:
        raise ValueError(f"shrunk: limit must be above 0, not {limit}.")


def _typical(decay: float, log_size: jax.Array, norms: jax.Array) -> jax.Array:
    """The running sums of log ‖r̃_k‖ and of their weights; a step in which a norm is zero does not count."""
    seen = jnp.all(norms > 0)
    logs = jnp.mean(jnp.log(jnp.where(seen, norms, 1)))
    return jnp.where(seen, decay * log_size + (1 - decay) * jnp.stack([logs, 1.0]), log_size).astype(log_size.dtype)


def _cut(limit: float, log_size: jax.Array, norms: jax.Array) -> jax.Array:
    """The factor for each r̃_k that brings its norm down to `limit` times the typical one; 1 for most."""
    typical = jnp.exp(log_size[0] / jnp.where(log_size[1] > 0, log_size[1], 1))
    is_large = (log_size[1] > 0) & (norms > limit * typical)
    return jnp.where(is_large, limit * typical / jnp.where(is_large, norms, 1), 1)


def _plus(grad: Tree, factors: jax.Array, rest: Tree) -> Tree:
    """Add the rest times one factor, or one for every leaf."""
    leaves, structure = jax.tree.flatten(grad)
    factors = jnp.broadcast_to(factors, len(leaves))
    rests = zip(leaves, factors, jax.tree.leaves(rest), strict=True)
    return jax.tree.unflatten(
        structure, [(g + c.astype(jnp.finfo(g.dtype).dtype) * r).astype(g.dtype) for g, c, r in rests]
    )


def _toward(decay: float, means: jax.Array, loss_tangents: jax.Array, theta_tilde: jax.Array) -> jax.Array:
    real = jnp.finfo(means.dtype).dtype
    factors = ((1 - decay) * loss_tangents).astype(real).reshape(-1, *(1,) * (theta_tilde.ndim - 1))
    return (jnp.asarray(decay, real) * means + factors * theta_tilde).astype(means.dtype)


def _agreement(means: Tree, carries: int, per_leaf: bool) -> tuple[jax.Array, jax.Array]:
    """A/B for all leaves together or for each of them, and 1 where it is known (B > 0)."""
    flat = [leaf.reshape(carries, -1) for leaf in jax.tree.leaves(means)]
    products = [jnp.real(leaf @ jnp.conj(leaf).T) for leaf in flat]
    stacked = jnp.stack(products if per_leaf else [sum(products[1:], start=products[0])])
    squares = jnp.trace(stacked, axis1=1, axis2=2)
    among = (jnp.sum(stacked, axis=(1, 2)) - squares) / (carries - 1)
    known = squares > 0
    return jnp.where(known, among / jnp.where(known, squares, 1), 0), known
