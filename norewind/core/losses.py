"""Losses of one sample, for use as an estimator's `loss(output, target)`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from norewind.core import checks
from norewind.core.checks import ModelError
from norewind.core.trees import Tree, array_module


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Return the cross entropy −log p(target) in nats. Divide it by `BIT` to get bits.

    Args:
        logits: one logit per symbol.
        target: the symbol that was observed, an integer.

    Returns:
        The loss, a scalar.

    Raises:
        ModelError: the target is not an integer, or out of range.

    >>> import jax.numpy as jnp
    >>> round(float(cross_entropy(jnp.zeros(4), jnp.array(2))) / BIT, 6)
    2.0
    """
    if not jnp.issubdtype(jnp.result_type(target), jnp.integer):
        raise ModelError(
            f"cross_entropy: the target has dtype {jnp.result_type(target)}, but a symbol is an integer. Convert it "
            "(.astype(int)), or use squared_error for numbers."
        )
    checks.check_in_range(checks.TARGET, target, jnp.shape(logits)[-1])
    return -jax.nn.log_softmax(logits)[target]


def squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Half the sum of the squared errors, ½ Σ (prediction − target)².

    Args:
        prediction: the predicted numbers.
        target: the observed numbers, in the same shape.

    Returns:
        The loss, a scalar.

    Raises:
        ModelError: the shapes differ.

    >>> import jax.numpy as jnp
    >>> float(squared_error(jnp.array([1.0, 2.0]), jnp.array([0.0, 0.0])))
    2.5
    """
    if jnp.shape(prediction) != jnp.shape(target):
        raise ModelError(
            f"squared_error: the prediction has shape {jnp.shape(prediction)} but the target {jnp.shape(target)}. "
            "Give both the same shape: broadcasting would count some errors several times."
        )
    return 0.5 * jnp.sum((prediction - target) ** 2)


def known_squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Half the sum of the squared errors over the known targets, ½ Σ (prediction − target)².

    Args:
        prediction: the predicted numbers.
        target: the observed numbers, in the same shape; NaN if unknown.

    Returns:
        The loss, a scalar.

    Raises:
        ModelError: the shapes differ.

    >>> import jax.numpy as jnp
    >>> float(known_squared_error(jnp.array([1.0, 2.0]), jnp.array([0.0, jnp.nan])))
    0.5
    """
    return squared_error(prediction, jnp.where(jnp.isnan(target), jax.lax.stop_gradient(prediction), target))


def known_gaussian(output: jax.Array, target: jax.Array) -> jax.Array:
    """Return the negative log density of the known targets under Gaussians, in nats, summed.

    Args:
        output: the means, followed by as many numbers that `log_variance` turns into logarithms of variances.
        target: the observed numbers; NaN if unknown.

    Returns:
        The loss, a scalar.

    >>> import jax.numpy as jnp
    >>> round(float(known_gaussian(jnp.array([1.0, 2.0, 0.0, 0.0]), jnp.array([1.0, jnp.nan]))), 4)
    0.9189
    """
    mean, spread = jnp.split(output, 2)
    spread = log_variance(spread)
    known = ~jnp.isnan(target)
    error = mean - jnp.where(known, target, 0)
    nats = 0.5 * (error**2 * jnp.exp(-spread) + spread + jnp.log(2 * jnp.pi))
    return jnp.sum(jnp.where(known, nats, 0))


def known_cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Return the cross entropy −log p(target) in nats, summed over the known targets.

    Args:
        logits: one logit per class for the first target, then for the second, and so on, in one vector.
        target: the number of the observed class for each target; NaN if unknown.

    Returns:
        The loss, a scalar.

    >>> import jax.numpy as jnp
    >>> round(float(known_cross_entropy(jnp.zeros(8), jnp.array([2.0, jnp.nan]))) / BIT, 6)
    2.0
    """
    known = ~jnp.isnan(target)
    places = jnp.where(known, target, 0).astype(int)
    logs = jax.nn.log_softmax(logits.reshape(len(target), -1))
    return -jnp.sum(jnp.where(known, jnp.take_along_axis(logs, places[:, None], axis=1)[:, 0], 0))


def log_variance(output: Any) -> Any:
    """Map any number to the logarithm of a variance, between −10 and 10, so that no prediction is infinitely certain.

    Args:
        output: a number or an array, of NumPy or JAX.

    Returns:
        The logarithms, in the same shape.
    """
    return 10 * array_module(output).tanh(output / 10)


# One bit in nats: divide a cross entropy by it to get bits.
BIT = 0.6931471805599453


def value(output: jax.Array, target: Tree) -> jax.Array:
    """Return the prediction itself, its first number: the loss of an estimator inside `norewind.td`.

    Args:
        output: the predicted value, a number or an array that begins with it.
        target: not used.

    Returns:
        The value, a scalar.

    >>> import jax.numpy as jnp
    >>> float(value(jnp.array([2.5]), None))
    2.5
    """
    del target
    return jnp.ravel(output)[0]


def actor_critic(entropy: float = 0.0) -> Callable[[jax.Array, Tree], jax.Array]:
    """Make the loss of a streaming actor-critic inside `norewind.td`: v + log π(a) + sign(δ) τ H(π).

    The output of the model is [v, logits of the actions]. Multiplied by δ, its trace moves the
    value towards the reward and the policy towards actions that turned out better than expected; the
    sign makes the entropy H(π) grow regardless of δ.

    Reference: Elsayed, Vasan & Mahmood, Streaming Deep Reinforcement Learning Finally Works (2024), stream AC(λ).

    Args:
        entropy: τ, the weight of the entropy.

    Returns:
        The loss, a function of the output and a `norewind.core.td.Choice`.

    >>> import jax.numpy as jnp
    >>> loss = actor_critic()
    >>> round(float(loss(jnp.array([2.0, 0.0, 0.0]), (jnp.array(1), jnp.array(1.0)))), 4)
    1.3069
    """

    def loss(output, target):
        action, sign = target
        log_policy = jax.nn.log_softmax(output[1:])
        spread = -jnp.sum(jnp.exp(log_policy) * log_policy)
        return output[0] + log_policy[action] + entropy * jax.lax.stop_gradient(sign) * spread

    return loss
