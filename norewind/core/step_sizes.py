"""Step sizes that need no choosing, as optax gradient transformations: ObGD, intentional updates and IDBD.

All of them need the error δ besides the gradient. They take it from the loss, |δ| = √(2ℓ), which `online` passes as
`value`: it is the error itself for the squared error ½ δ² of one number and for `norewind.td`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from norewind.core.trees import Tree, zeros_like

TINY = 1e-8
ERROR_DECAY = 0.9998  # of the running means of δ² and |δ|, as in the authors' program


def obgd(learning_rate: float = 1.0, *, kappa: float = 2.0) -> optax.GradientTransformationExtraArgs:
    """ObGD, overshooting-bounded gradient descent: shortens the steps that would overshoot the target.

    With the gradient −δ e (for `norewind.td`, e is the trace; otherwise the slope of the prediction),

        θ ← θ + α δ e / max(1, κ α max(|δ|, 1) ‖e‖₁)

    Reference: Elsayed, Vasan & Mahmood, Streaming Deep Reinforcement Learning Finally Works (2024), algorithm 3. They
    use κ = 2 for values and 3 for policies.

    Args:
        learning_rate: α, the longest step.
        kappa: κ, the factor by which a step may be too long before it is shortened.

    Returns:
        The transformation; its `update` needs the loss as `value`.

    Raises:
        ValueError: an argument is not above 0.

    >>> import jax.numpy as jnp
    >>> optimizer = obgd()
    >>> error, slope = -3.0, jnp.array([1.0, -1.0])
    >>> updates, _ = optimizer.update(-error * slope, optimizer.init(slope), value=0.5 * error**2)
    >>> updates.tolist()
    [-0.25, 0.25]
    """
    _check_above_zero("obgd", learning_rate=learning_rate, kappa=kappa)

    def update(updates, state, params=None, **known):
        del params
        error = _error(known)
        slope = _ratio(optax.tree.norm(updates, ord=1), error)
        step = learning_rate / jnp.maximum(1, kappa * learning_rate * jnp.maximum(error, 1) * slope)
        return _scaled(-step, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


class IntentionalState(NamedTuple):
    """The state of `intentional`.

    Attributes:
        steps: the number of updates.
        square: the running mean of the squared slope of every parameter.
        slope_norm: the running mean of the squared slope in units of its root mean square, summed over the parameters.
        mean_square_error: the running mean of δ².
        mean_abs_error: the running mean of |δ|, clipped.
    """

    steps: jax.Array
    square: Tree
    slope_norm: jax.Array
    mean_square_error: jax.Array
    mean_abs_error: jax.Array


def intentional(
    fraction: float = 0.5, *, decay: float = 0.0, normalise: bool = False, b2: float = 0.999, clip: float = 20.0
) -> optax.GradientTransformationExtraArgs:
    """Intentional updates: steps of the length that removes a given fraction of the error.

    With slope ∂v, trace e, and v̂ the root mean square of each parameter's slope (with Adam's bias
    correction), all products being sums over the parameters,

        σ = running mean of (∂v · ∂v/v̂)        z = e · e/v̂
        θ ← θ + η/√(σ z) · δ e/v̂

    Without a trace σ z is (∂v · ∂v/v̂)², if the running mean is that of one step (decay = 0): to first order the
    prediction then moves by η δ. δ is clipped to `clip` times its root mean square. For a policy
    (`normalise`), δ is also divided by the running mean of |δ|, so that the policy moves by about η.

    This follows the authors' program, with its constants.

    Reference: Sharifnassab, Elsayed, De Asis, Mahmood & Sutton, Intentional Updates for Streaming Reinforcement
    Learning (2026).

    Args:
        fraction: η, the fraction of the error to remove; they use 0.5 for values and 0.05 for policies.
        decay: γλ of the trace, from 0 to below 1: the running mean σ has the same memory.
        normalise: divide δ by its mean size.
        b2: the decay of the mean square of the slopes.
        clip: the largest |δ|, in units of its root mean square.

    Returns:
        The transformation; its `update` needs the loss as `value`, and the slope as `value_grad` if there is a trace.

    Raises:
        ValueError: `fraction` or `clip` is not above 0, or `decay` is not in [0, 1).

    >>> import jax.numpy as jnp
    >>> optimizer = intentional(0.5)
    >>> error, slope = -3.0, jnp.array([1.0, -2.0])
    >>> updates, _ = optimizer.update(-error * slope, optimizer.init(slope), value=0.5 * error**2)
    >>> round(float(updates @ slope), 4)
    -1.5
    """
    _check_above_zero("intentional", fraction=fraction, clip=clip)
    if not 0 <= decay < 1:
        raise ValueError(f"intentional: decay must be at least 0 and below 1, not {decay}.")

    def init(params):
        return IntentionalState(
            jnp.zeros((), jnp.int32), zeros_like(params), jnp.zeros(()), jnp.ones(()), jnp.zeros(())
        )

    def update(updates, state, params=None, **known):
        del params
        steps, error = optax.safe_increment(state.steps), _error(known)
        trace = _scaled(_ratio(1.0, error), updates)
        slope = trace if known.get("value_grad") is None else known["value_grad"]
        square = optax.tree.update_moment_per_elem_norm(slope, state.square, b2, 2)
        root_mean_square = jax.tree.map(lambda v: jnp.sqrt(v / (1 - b2**steps)) + TINY, square)
        slope_norm = decay * state.slope_norm + (1 - decay) * _weighted_square(slope, root_mean_square)
        length = jnp.sqrt(slope_norm / (1 - decay**steps) * _weighted_square(trace, root_mean_square))
        # The first mean is 1, as in the authors' program: at the beginning, hardly anything is clipped.
        mean_square = ERROR_DECAY * state.mean_square_error + (1 - ERROR_DECAY) * error**2
        clipped = jnp.minimum(error, clip * jnp.sqrt(mean_square / (1 - ERROR_DECAY**steps)))
        size = ERROR_DECAY * state.mean_abs_error + (1 - ERROR_DECAY) * clipped
        factor = _ratio(clipped, error) * fraction / jnp.maximum(length, TINY)
        if normalise:
            factor = factor / jnp.maximum(size / (1 - ERROR_DECAY**steps), 1e-12)
        moved = jax.tree.map(lambda g, v: (-factor * g / v).astype(g.dtype), updates, root_mean_square)
        return moved, IntentionalState(jnp.asarray(steps), square, slope_norm, mean_square, size)

    return optax.GradientTransformationExtraArgs(init, update)


class IDBDState(NamedTuple):
    """The state of `idbd`, two trees like the parameters.

    Attributes:
        beta: β, the logarithms of the step sizes.
        memory: h, the decaying sums of recent updates.
    """

    beta: Tree
    memory: Tree


def idbd(learning_rate: float = 0.01, *, meta_rate: float = 0.01) -> optax.GradientTransformationExtraArgs:
    """IDBD, incremental delta-bar-delta: a step size for every parameter, learned by gradient descent.

    With the gradient −δ x,

        β ← β + θ δ x h                        α = e^β
        w ← w + α δ x                          h ← h (1 − α x²)⁺ + α δ x

    for each parameter, from h = 0. A change of β is limited to ±2, and β to at least −10.

    For least squares with inputs x this is the paper's method. For any other model x is the
    slope of the prediction, and for any other loss the curvature x² is replaced by g²/(2ℓ), g the gradient
    and ℓ the loss; it is the diagonal of the Gauss–Newton matrix for the squared error of one number, and a guess
    otherwise.

    Reference: Sutton, Adapting bias by gradient descent: an incremental version of delta-bar-delta (1992).

    Args:
        learning_rate: e^β at the beginning.
        meta_rate: θ, the learning rate of β.

    Returns:
        The transformation; its `update` needs the loss as `value`.

    Raises:
        ValueError: an argument is not above 0.

    >>> import jax.numpy as jnp
    >>> optimizer = idbd(0.1)
    >>> error, x = 2.0, jnp.array([1.0, 0.0])
    >>> updates, state = optimizer.update(-error * x, optimizer.init(x), value=0.5 * error**2)
    >>> updates.round(3).tolist()
    [0.20000000298023224, 0.0]
    """
    _check_above_zero("idbd", learning_rate=learning_rate, meta_rate=meta_rate)

    def init(params):
        return IDBDState(jax.tree.map(lambda p: jnp.full_like(p, jnp.log(learning_rate)), params), zeros_like(params))

    def update(updates, state, params=None, **known):
        del params
        scale = _ratio(1.0, _error(known))

        def raised(beta, g, h):
            return jnp.maximum(beta + jnp.clip(-meta_rate * g * h, -2, 2), -10)

        def remembered(beta, g, h):
            rate = jnp.exp(beta)
            return (h * jnp.maximum(0, 1 - rate * (scale * g) ** 2) - rate * g).astype(h.dtype)

        beta = jax.tree.map(raised, state.beta, updates, state.memory)
        memory = jax.tree.map(remembered, beta, updates, state.memory)
        return jax.tree.map(lambda b, g: -jnp.exp(b) * g, beta, updates), IDBDState(beta, memory)

    return optax.GradientTransformationExtraArgs(init, update)


def _error(known: dict[str, Any]) -> jax.Array:
    """|δ| = √(2ℓ)."""
    if known.get("value") is None:
        raise ValueError("this optimizer needs the loss: call update(gradient, state, value=loss).")
    return jnp.sqrt(2 * jnp.maximum(known["value"], 0))


def _ratio(a, b: jax.Array) -> jax.Array:
    """Return a/b, and 0 where b is 0: without an error there is no gradient to scale."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _scaled(factor: jax.Array, tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), tree)


def _weighted_square(slope: Tree, root_mean_square: Tree) -> jax.Array:
    squares = jax.tree.map(lambda g, v: jnp.sum(jnp.abs(g) ** 2 / v), slope, root_mean_square)
    return sum(jax.tree.leaves(squares), jnp.zeros(()))


def _check_above_zero(caller: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{caller}: {name} must be above 0, not {number}.")
