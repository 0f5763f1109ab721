"""UORO, Algorithm 1 of the paper: for the whole influence, or for the part that an approximation leaves out."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from norewind.core import checks
from norewind.core.combinators import parallel_model
from norewind.core.estimator import (
    Estimate,
    Estimator,
    FastMeans,
    Influence,
    Loss,
    Transition,
    linearise,
    one_sample,
)
from norewind.core.noise import Noise, as_key, random_signs
from norewind.core.trees import Tree, combine, norm, real_leaves, square_root, weighted_sum, zeros_like
from norewind.estimators.bptt import bptt

# ε of the paper: keeps normalisers finite and above 0.
EPSILON = 1e-7


class UOROCarry(NamedTuple):
    """The two factors of UORO's estimate, with D + E[s̃ ⊗ θ̃] = ∂s/∂θ.

    Attributes:
        s_tilde: s̃, shaped like the floating leaves of the state.
        theta_tilde: θ̃, shaped like the parameters.
        key: the PRNG key of the next step's noise.
        approximation: D, the approximation that `unbiased` completes; empty for UORO itself, where D = 0.
    """

    s_tilde: Tree
    theta_tilde: Tree
    key: jax.Array
    approximation: Tree = ()


def init_carry(params: Tree, state: Tree, key: jax.Array) -> UOROCarry:
    """The carry before the first step.

    Args:
        params: the parameters.
        state: the state before the first step.
        key: the PRNG key that seeds the noise.

    Returns:
        A carry with s̃ = 0 and θ̃ = 0.
    """
    return UOROCarry(zeros_like(real_leaves(state)), zeros_like(params), as_key(key))


def paper_normaliser(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """Return ρ = √(numerator / (denominator + ε)) + ε."""
    return square_root(numerator / (denominator + EPSILON)) + EPSILON


def released_normaliser(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    return jnp.sqrt((numerator + 1e-5) / (denominator + 1e-5))


Normaliser = Callable[[jax.Array, jax.Array], jax.Array]
NORMALISERS: dict[str, Normaliser] = {"paper": paper_normaliser, "released": released_normaliser}


def merge(normaliser: Normaliser, past: tuple[Tree, Tree], new: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """Merge two products a ⊗ a' and b ⊗ b' into one, (ρ0 a + ρ1 b) ⊗ (a'/ρ0 + b'/ρ1).

    If b and b' share a random sign as a factor, the mean of the result is the sum of the two.

    Args:
        normaliser: computes ρ from the norms of a' and a (or of b' and b).
        past: a and a'.
        new: b and b'.

    Returns:
        The two factors of the result.
    """
    (a, a_right), (b, b_right) = past, new
    rho0, rho1 = normaliser(norm(a_right), norm(a)), normaliser(norm(b_right), norm(b))
    return combine(rho0, a, rho1, b), combine(1 / rho0, a_right, 1 / rho1, b_right)


def _clipped(left: Tree, right: Tree, limit: float) -> Tree:
    """The right factor of a product, scaled down so that the size of the product is at most the limit."""
    size = norm(left) * norm(right)
    factor = jnp.where(size > limit, limit / jnp.where(size > limit, size, 1), 1)
    return jax.tree.map(lambda leaf: factor.astype(jnp.finfo(leaf.dtype).dtype) * leaf, right)


def uoro(
    transition: Transition,
    loss: Loss,
    *,
    rho: Literal["paper", "released"] = "paper",
    decay: float = 1.0,
    clip: float | None = None,
    noise: Noise = random_signs,
) -> Estimator:
    """UORO: an unbiased rank-one estimate s̃ ⊗ θ̃ of RTRL's influence ∂s/∂θ, at a cost proportional to evaluating it.

    At every step, with J = ∂s'/∂s, I = ∂s'/∂θ and ν a vector of random signs,

        g̃ = (∂ℓ/∂s · s̃) θ̃ + ∂ℓ/∂θ
        ρ0 = √(‖θ̃‖ / (‖J s̃‖ + ε)) + ε        ρ1 = √(‖νᵀI‖ / (‖ν‖ + ε)) + ε
        s̃ ← ρ0 J s̃ + ρ1 ν                    θ̃ ← θ̃/ρ0 + νᵀI/ρ1

    starting from zeros. For frozen parameters E[g̃] is the exact gradient; while they
    are being learned, the carried influence is slightly stale, as in RTRL. It is
    `unbiased(bptt(transition, loss))`: s̃ ⊗ θ̃ stands for the whole influence.

    Unbiased. Time: one evaluation of the model, one forward and two reverse derivatives.
    Bytes carried: one state and one set of parameters. Needs only a differentiable model
    (see `norewind.core.Model`).

    Reference: Tallec & Ollivier, Unbiased Online Recurrent Optimization (2017), Algorithm 1.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.
        rho: the normalisers: `"paper"`, as above with ε = 1e-7, or `"released"`, √((‖·‖ + ε) / (‖·‖ + ε)) with
            ε = 1e-5, as in the authors' code. Both are unbiased.
        decay: multiply the carried product by this factor at every step, for a model whose influence would explode.
            Below 1 it makes UORO biased: what happened k steps ago counts decayᵏ times.
        clip: the largest size ‖s̃‖ ‖θ̃‖ of the carried product; a larger one is scaled down. This makes UORO biased
            wherever it takes effect.
        noise: the source of ν, called as `noise(key, like) -> (signs, next_key)`.

    Returns:
        The estimator.

    Raises:
        ValueError: `rho` is neither `"paper"` nor `"released"`, `decay` is not in (0, 1], or `clip` is not above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.uoro(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> jax.tree.structure(estimate.grad) == jax.tree.structure(params)
    True
    """
    return unbiased(bptt(transition, loss), rho=rho, decay=decay, clip=clip, noise=noise)


def unbiased(
    estimator: Estimator,
    *,
    rho: Literal["paper", "released"] = "paper",
    decay: float = 1.0,
    clip: float | None = None,
    noise: Noise = random_signs,
) -> Estimator:
    """Make a biased method unbiased: UORO estimates the part of the influence that its approximation leaves out.

    Let D be the method's approximation of the influence ∂s/∂θ, and D' the one after the
    step. The rest, R = ∂s/∂θ − D, obeys R' = J R + (J D + I − D'). s̃ ⊗ θ̃ estimates
    it: at every step, with J = ∂s'/∂s, I = ∂s'/∂θ and ν a vector of random signs,

        g̃ = ∂ℓ/∂s · D + (∂ℓ/∂s · s̃) θ̃ + ∂ℓ/∂θ
        r = (νᵀJ) D + νᵀI − νᵀD'
        ρ0 = √(‖θ̃‖ / (‖J s̃‖ + ε)) + ε        ρ1 = √(‖r‖ / (‖ν‖ + ε)) + ε
        s̃ ← ρ0 J s̃ + ρ1 ν                    θ̃ ← θ̃/ρ0 + r/ρ1

    starting from zeros. The mean is the exact gradient for any D with any update that does not
    depend on ν; the better the approximation, the smaller the variance, and where it is exact
    there is no noise. `unbiased(bptt(...))` (D = 0) is `uoro`. The carried approximation of `snap1`,
    `rflo`, `eprop`, `lstm97`, `sketched` or `rtrl` can be completed, also over windows:
    `unbiased(snap1(*window(transition, loss)))`. Weights without a trace (shared by several
    units, such as an embedding) are allowed here: they belong to the rest.

    Unbiased for frozen parameters, like UORO. Time: the method plus UORO, and two more
    products of a row with D. Bytes carried: D, one state and one set of parameters. Needs an
    estimator that carries a deterministic approximation (`Estimator.influence`).

    Reference: introduced in norewind; Tallec & Ollivier (2017), with any approximation as control variate.

    Args:
        estimator: the biased estimator.
        rho: the normalisers, as in `uoro`.
        decay: a factor of the carried product at every step, as in `uoro`; biased below 1.
        clip: the largest size of the carried product, as in `uoro`; biased wherever it takes effect.
        noise: the source of ν, called as `noise(key, like) -> (signs, next_key)`.

    Returns:
        The estimator.

    Raises:
        ModelError: the estimator does not carry such an approximation.
        ValueError: `rho` is neither `"paper"` nor `"released"`, `decay` is not in (0, 1], or `clip` is not above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.lstm(inputs=3, hidden=4, outputs=3)
    >>> traces = norewind.estimators.snap1(cell.transition, norewind.losses.cross_entropy)
    >>> estimator = norewind.unbiased(traces)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> [trace["embedding"] is None for trace in carry.approximation]
    [True, True]
    """
    influence = influence_of("unbiased", estimator)
    if rho not in NORMALISERS:
        raise ValueError(f"rho must be one of {', '.join(map(repr, NORMALISERS))}, not {rho!r}.")
    if not 0 < decay <= 1:
        raise ValueError(f"decay must be above 0 and at most 1, not {decay!r}.")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be above 0, not {clip!r}.")
    model = estimator.model
    advance_rest = make_advance_rest(influence, NORMALISERS[rho], noise, decay, clip)

    def init(params, state, key):
        return init_carry(params, state, key)._replace(approximation=influence.init(params, state))

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        after = influence.advance(params, state, carry.approximation, x, point)
        new, loss_tangent = advance_rest(params, point, carry, after)
        known = influence.gradient(params, point, carry.approximation)
        grad = combine(loss_tangent, carry.theta_tilde, jnp.ones_like(loss_tangent), known)
        return point.state, new, Estimate(point.loss, grad, point.output)

    def mean_of_all(point, loss_tangents, carries, known):
        past, one = weighted_sum(loss_tangents / len(loss_tangents), carries.theta_tilde), jnp.ones_like(point.loss)
        return Estimate(point.loss, combine(one, past, one, known), point.output)

    def mean_step(params, state, carries, x, target):
        point = linearise(model, params, state, x, target)
        # All carries have the same approximation, so it is advanced once.
        before = jax.tree.map(lambda leaf: leaf[0], carries.approximation)
        after = influence.advance(params, state, before, x, point)
        advance = jax.vmap(lambda carry: advance_rest(params, point, carry._replace(approximation=before), after))
        new, loss_tangents = advance(carries)
        known = influence.gradient(params, point, before)
        return point.state, new, mean_of_all(point, loss_tangents, carries, known)

    def streams_step(params, states, carries, xs, targets):
        def one_stream(state, carry, x, target):
            point = linearise(model, params, state, x, target)
            after = influence.advance(params, state, carry.approximation, x, point)
            from_past = influence.product(params, point.loss_grads()[0], carry.approximation)
            return *advance_rest(params, point, carry, after), from_past

        new, loss_tangents, from_past = jax.vmap(one_stream)(states, carries, xs, targets)
        # ∂ℓ/∂θ of all streams at once, without writing out each stream's own. XLA shares the evaluation of the model.
        point = linearise(parallel_model(model), params, states, xs, targets)
        known = jax.tree.map(lambda grad, each: grad + jnp.mean(each, axis=0), point.loss_grads()[1], from_past)
        return point.state, new, mean_of_all(point, loss_tangents, carries, known)

    # A window spreads that cost over T samples: another reverse pass through its loop would cost more than it saves.
    faster = streams_step if model.samples is one_sample else None
    return Estimator.build(init, step, model, fast_means=FastMeans(mean_step, faster))


def influence_of(caller: str, estimator: Estimator) -> Influence:
    """Return the approximation of the influence that an estimator carries.

    Args:
        caller: the name of the method that needs it, for the message.
        estimator: the estimator.

    Raises:
        ModelError: it is not an estimator, or it carries none.
    """
    checks.check_estimator(caller, estimator)
    if estimator.influence is None:
        raise checks.ModelError(
            f"{caller} completes a method that carries a deterministic approximation of the influence, such as bptt, "
            "snap1, rflo, lstm97 or sketched. This estimator has none (Estimator.influence). Combinators belong "
            f"outside: average({caller}(snap1(...)), 4), {caller}(snap1(*window(...)))."
        )
    return estimator.influence


def make_advance_rest(
    influence: Influence, normaliser: Normaliser, noise: Noise, decay: float = 1.0, clip: float | None = None
) -> Callable:
    """Return the function that advances s̃ ⊗ θ̃, the estimate of what an approximation D leaves over.

    Args:
        influence: how D is multiplied.
        normaliser: computes ρ from two norms.
        noise: the source of ν.
        decay: a factor of the carried product.
        clip: the largest size of the carried product; None for no limit.

    Returns:
        `advance(params, point, carry, after) -> (carry, ∂ℓ/∂s · s̃)`, where `after` is D' and the result has the s̃
        before the step in ∂ℓ/∂s · s̃.
    """

    def advance(params, point, carry, after):
        pushed, loss_tangent = point.jvp(carry.s_tilde)  # J s̃ and ∂ℓ/∂s · s̃
        signs, key = noise(carry.key, pushed)
        row, immediate = point.pull_back(signs)  # νᵀJ and νᵀI
        advanced = influence.product(params, row, carry.approximation)
        kept = influence.product(params, signs, after)
        rest = jax.tree.map(lambda i, a, k: i + a - k, immediate, advanced, kept)
        past = carry.theta_tilde if decay == 1 else jax.tree.map(lambda leaf: decay * leaf, carry.theta_tilde)
        left, right = merge(normaliser, (pushed, past), (signs, rest))
        return UOROCarry(left, right if clip is None else _clipped(left, right, clip), key, after), loss_tangent

    return advance
