"""Unbiased Online Recurrent Optimization: Algorithm 1 of the paper."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from norewind.core.combinators import parallel_model
from norewind.core.estimator import Estimate, Estimator, FastMeans, Loss, Transition, linearise, model_of, one_sample
from norewind.core.noise import Noise, as_key, random_signs
from norewind.core.trees import Tree, combine, norm, real_leaves, weighted_sum, zeros_like


class UOROCarry(NamedTuple):
    """The two factors of UORO's estimate, with E[s̃ ⊗ θ̃] = ∂s/∂θ.

    Attributes:
        s_tilde: s̃, shaped like the floating leaves of the state.
        theta_tilde: θ̃, shaped like the parameters.
        key: the PRNG key of the next step's noise.
    """

    s_tilde: Tree
    theta_tilde: Tree
    key: jax.Array


def init_carry(params: Tree, state: Tree, key: jax.Array) -> UOROCarry:
    """The carry before the first step.

    Args:
        params: the parameters.
        state: the state.
        key: the PRNG key that seeds the noise.

    Returns:
        A carry with s̃ = 0 and θ̃ = 0.
    """
    return UOROCarry(zeros_like(real_leaves(state)), zeros_like(params), as_key(key))


def _paper(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    return jnp.sqrt(numerator / (denominator + 1e-7)) + 1e-7


def _released(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    return jnp.sqrt((numerator + 1e-5) / (denominator + 1e-5))


Normaliser = Callable[[jax.Array, jax.Array], jax.Array]
NORMALISERS: dict[str, Normaliser] = {"paper": _paper, "released": _released}


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


def uoro(
    transition: Transition, loss: Loss, *, rho: Literal["paper", "released"] = "paper", noise: Noise = random_signs
) -> Estimator:
    """UORO: an unbiased rank-one estimate s̃ ⊗ θ̃ of RTRL's influence ∂s/∂θ, at the cost of evaluating the model.

    At every step, with J = ∂s'/∂s, I = ∂s'/∂θ and ν a vector of random signs,

        g̃ = (∂ℓ/∂s · s̃) θ̃ + ∂ℓ/∂θ
        ρ0 = √(‖θ̃‖ / (‖J s̃‖ + ε)) + ε        ρ1 = √(‖νᵀI‖ / (‖ν‖ + ε)) + ε
        s̃ ← ρ0 J s̃ + ρ1 ν                    θ̃ ← θ̃/ρ0 + νᵀI/ρ1

    starting from zeros. For frozen parameters E[g̃] is the exact gradient; while they
    are being learned, the carried influence is slightly stale, as in RTRL.

    Unbiased. Time: one evaluation of the model, one forward and two reverse derivatives.
    Bytes carried: one state and one set of parameters. Needs only a differentiable model
    (see `norewind.core.Model`).

    Reference: Tallec & Ollivier, Unbiased Online Recurrent Optimization (2017), Algorithm 1.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.
        rho: the normalisers: `"paper"`, as above with ε = 1e-7, or `"released"`, √((‖·‖ + ε) / (‖·‖ + ε)) with
            ε = 1e-5, as in the authors' code. Both are unbiased.
        noise: the source of ν, called as `noise(key, like) -> (signs, next_key)`.

    Returns:
        The estimator.

    Raises:
        ValueError: `rho` is neither `"paper"` nor `"released"`.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.uoro(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> jax.tree.structure(estimate.grad) == jax.tree.structure(params)
    True
    """
    if rho not in NORMALISERS:
        raise ValueError(f"rho must be one of {', '.join(map(repr, NORMALISERS))}, not {rho!r}.")
    normaliser = NORMALISERS[rho]
    model = model_of(transition, loss)

    def advance(point, carry):
        """The next s̃ and θ̃, and ∂ℓ/∂s · s̃."""
        pushed, loss_tangent = point.jvp(carry.s_tilde)  # J s̃ and ∂ℓ/∂s · s̃
        signs, key = noise(carry.key, pushed)
        _, signs_back = point.pull_back(signs)  # νᵀI
        return UOROCarry(*merge(normaliser, (pushed, carry.theta_tilde), (signs, signs_back)), key), loss_tangent

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        new, loss_tangent = advance(point, carry)
        grad = combine(loss_tangent, carry.theta_tilde, jnp.ones_like(loss_tangent), point.loss_grads()[1])
        return point.state, new, Estimate(point.loss, grad, point.output)

    def mean_of_all(point, loss_tangents, carries):
        past = weighted_sum(loss_tangents / len(loss_tangents), carries.theta_tilde)
        one = jnp.ones_like(point.loss)
        return Estimate(point.loss, combine(one, past, one, point.loss_grads()[1]), point.output)

    def mean_step(params, state, carries, x, target):
        point = linearise(model, params, state, x, target)
        new, loss_tangents = jax.vmap(lambda carry: advance(point, carry))(carries)
        return point.state, new, mean_of_all(point, loss_tangents, carries)

    def streams_step(params, states, carries, xs, targets):
        def one_stream(state, carry, x, target):
            return advance(linearise(model, params, state, x, target), carry)

        new, loss_tangents = jax.vmap(one_stream)(states, carries, xs, targets)
        # ∂ℓ/∂θ of all streams at once, without writing out each stream's own. XLA shares the evaluation of the model.
        point = linearise(parallel_model(model), params, states, xs, targets)
        return point.state, new, mean_of_all(point, loss_tangents, carries)

    # A window spreads that cost over T samples: another reverse pass through its loop would cost more than it saves.
    faster = streams_step if model.samples is one_sample else None
    return Estimator.build(init_carry, step, model, fast_means=FastMeans(mean_step, faster))
