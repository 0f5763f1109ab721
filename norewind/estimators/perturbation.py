"""Baselines that try random directions of the parameters: forward gradients and evolution strategies."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.core import checks
from norewind.core.estimator import Estimate, Estimator, Loss, Transition, linearise, model_of
from norewind.core.noise import Noise, as_key, gaussian, random_signs
from norewind.core.trees import Tree, as_arrays, named_leaves, real_leaves, zeros_like


class ForwardCarry(NamedTuple):
    """A direction, and how the state moves along it.

    Attributes:
        direction: v, shaped like the parameters.
        tangent: the derivative of the state along v, shaped like its real leaves.
        age: the number of steps taken with this direction.
        key: the PRNG key of the next direction.
    """

    direction: Tree
    tangent: Tree
    age: jax.Array
    key: jax.Array


def forward_gradient(
    transition: Transition, loss: Loss, *, horizon: int = 100, noise: Noise = random_signs
) -> Estimator:
    """Forward gradients, also known as DODGE: the derivative along a random direction v, times v.

    With J = ∂s'/∂s and I = ∂s'/∂θ,

        ṡ' = J ṡ + I v                         g = (∂ℓ/∂s · ṡ + ∂ℓ/∂θ · v) v

    from ṡ = 0. v is a vector of random signs, and is drawn again every `horizon` steps, when ṡ starts
    from zero again.

    Unbiased for a sequence of at most `horizon` steps from the start or a reset; beyond, the influence
    from before the latest v is dropped. With P parameters the expected ‖g‖² is that of the exact
    gradient times P, so the noise grows with the number of parameters, not of units. Time: one evaluation
    of the model and one forward derivative. Bytes carried: one state and one set of parameters. Needs real parameters.

    Reference: Silver et al., Learning by Directional Gradient Descent (2022); Baydin et al., Gradients without
    Backpropagation (2022).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.
        horizon: the number of steps for which a direction is kept.
        noise: the source of the directions, called as `noise(key, like) -> (direction, next_key)`.

    Returns:
        The estimator.

    Raises:
        ModelError: `horizon` is not a whole number above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.forward_gradient(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> int(carry.age)
    1
    """
    checks.check_at_least_one("forward_gradient: horizon", horizon)
    model = model_of(transition, loss)

    def init(params, state, key):
        _check_real("forward_gradient", params)
        tangent = zeros_like(real_leaves(state))
        return ForwardCarry(zeros_like(params), tangent, jnp.zeros((), jnp.int32), as_key(key))

    def step(params, state, carry, x, target):
        def draw():
            direction, key = noise(carry.key, params)
            return ForwardCarry(direction, zeros_like(carry.tangent), carry.age, key)

        direction, tangent, age, key = jax.lax.cond(carry.age == 0, draw, lambda: carry)
        point = linearise(model, params, state, x, target)
        forward = jax.linear_transpose(point.vjp, real_leaves(point.state), point.loss)
        tangent, slope = forward((tangent, direction))
        grad = jax.tree.map(lambda v: slope.astype(v.dtype) * v, direction)
        carry = ForwardCarry(direction, tangent, (age + 1) % horizon, key)
        return point.state, carry, Estimate(point.loss, grad, point.output)

    return Estimator.build(init, step, model)


class EvolutionCarry(NamedTuple):
    """The particles. Every leaf but the key has a leading axis of pairs.

    Attributes:
        plus: the states of the particles with the perturbations.
        minus: the states of those with the opposite perturbations.
        total: ξ, the sum of the perturbations of each pair so far, shaped like the parameters.
        key: the PRNG key of the next perturbations.
    """

    plus: Tree
    minus: Tree
    total: Tree
    key: jax.Array


def evolution(
    transition: Transition,
    loss: Loss,
    *,
    pairs: int = 1,
    sigma: float = 0.01,
    persistent: bool = True,
    noise: Noise = gaussian,
) -> Estimator:
    """Persistent evolution strategies: the loss of perturbed copies of the model, in antithetic pairs.

    At every step (or window) each of N pairs draws ε ~ N(0, σ²) and runs one copy of the model with
    θ + ε and one with θ − ε, each from its own state. With ξ the sum of a pair's perturbations so far,

        g = mean over pairs of ξ (ℓ₊ − ℓ₋) / (2σ²)

    Unbiased for the gradient of the mean loss of the perturbed copies, which tends to the model's as
    σ → 0. The variance grows with the number of parameters and, since ξ never forgets, with time. With
    `persistent=False` it is an ordinary evolution strategy: every step starts from the state of
    the model, and ξ is ε alone, so the influence of the past is dropped.

    Time: 2N + 1 evaluations of the model, no derivative. Bytes carried: 2N states and N sets of parameters.
    Needs real parameters, but neither a differentiable model nor a differentiable loss.

    Reference: Vicol, Metz & Sohl-Dickstein, Unbiased Gradient Estimation in Unrolled Computation Graphs with
    Persistent Evolution Strategies (2021).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.
        pairs: N, the number of pairs.
        sigma: σ, the standard deviation of a perturbation.
        persistent: carry the states and perturbations of the particles from step to step.
        noise: the source of ε/σ, called as `noise(key, like) -> (noise, next_key)`.

    Returns:
        The estimator.

    Raises:
        ModelError: `pairs` is not a whole number above 0.
        ValueError: `sigma` is not above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.evolution(cell.transition, norewind.losses.cross_entropy, pairs=8)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> carry.plus.shape
    (8, 4)
    """
    checks.check_at_least_one("evolution: pairs", pairs)
    if not sigma > 0:
        raise ValueError(f"evolution: sigma must be above 0, not {sigma}: the gradient comes from the noise.")
    model = model_of(transition, loss)

    def copies(tree):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (pairs, *jnp.shape(leaf))), as_arrays(tree))

    def init(params, state, key):
        _check_real("evolution", params)
        states = copies(state)
        return EvolutionCarry(states, states, zeros_like(copies(params)), as_key(key))

    def evaluate(params, state, x, target):
        state, output = checks.check_transition_result(transition(params, state, x), state)
        return state, checks.check_loss_result(loss(output, target)), output

    def step(params, state, carry, x, target):
        drawn, key = noise(carry.key, copies(params))

        def tried(factor, states):
            def perturbed(own, particle):
                moved = jax.tree.map(lambda p, e: (p + factor * sigma * e).astype(p.dtype), params, own)
                return evaluate(moved, particle, x, target)[:2]

            return jax.vmap(perturbed)(drawn, states if persistent else copies(state))

        new_state, value, output = evaluate(params, state, x, target)
        (plus, losses_plus), (minus, losses_minus) = tried(1, carry.plus), tried(-1, carry.minus)
        total = jax.tree.map(lambda t, e: (persistent * t + sigma * e).astype(t.dtype), carry.total, drawn)
        weights = (losses_plus - losses_minus) / (2 * sigma**2 * pairs)
        grad = jax.tree.map(lambda t: jnp.tensordot(weights.astype(t.dtype), t, 1), total)
        return new_state, EvolutionCarry(plus, minus, total, key), Estimate(value, grad, output)

    return Estimator.build(init, step, model)


def _check_real(caller: str, params: Tree) -> None:
    for place, leaf in named_leaves("params", as_arrays(params)):
        if jnp.iscomplexobj(leaf):
            raise checks.ModelError(
                f"{caller}: {place} is complex, and this method takes real parameters only. Split it into its real "
                "and its imaginary part, or use uoro."
            )
