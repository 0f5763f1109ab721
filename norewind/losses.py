"""Losses of one sample, for use as an estimator's `loss(output, target)`."""

from typing import Any

import jax
import jax.numpy as jnp

from norewind import ranges
from norewind.checks import ModelError
from norewind.trees import library


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """−log p(target) in nats, for logits over the symbols and the symbol that came.

    >>> import jax.numpy as jnp
    >>> round(float(cross_entropy(jnp.zeros(4), jnp.array(2))) / BIT, 6)
    2.0
    """
    if not jnp.issubdtype(jnp.result_type(target), jnp.integer):
        raise ModelError(
            f"cross_entropy: the target has dtype {jnp.result_type(target)}, but a symbol is an integer. Convert it "
            "(.astype(int)), or use squared_error for numbers."
        )
    ranges.note(ranges.TARGET, target, jnp.shape(logits)[-1])
    return -jax.nn.log_softmax(logits)[target]


def squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """½ Σ (prediction − target)².

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
    """½ Σ (prediction − target)² over the known targets; an unknown one is NaN.

    >>> import jax.numpy as jnp
    >>> float(known_squared_error(jnp.array([1.0, 2.0]), jnp.array([0.0, jnp.nan])))
    0.5
    """
    return squared_error(prediction, jnp.where(jnp.isnan(target), jax.lax.stop_gradient(prediction), target))


def known_gaussian(output: jax.Array, target: jax.Array) -> jax.Array:
    """−log of a Gaussian density in nats, summed over the known targets; an unknown one is NaN.

    The first half of the output is the means; `log_variance` turns the second half into
    the logarithms of the variances.

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
    """−log p(target) in nats for the number of a class, summed over several if there are; an unknown one is NaN.

    The logits of all classes stand side by side, once for each target.

    >>> import jax.numpy as jnp
    >>> round(float(known_cross_entropy(jnp.zeros(8), jnp.array([2.0, jnp.nan]))) / BIT, 6)
    2.0
    """
    known = ~jnp.isnan(target)
    places = jnp.where(known, target, 0).astype(int)
    logs = jax.nn.log_softmax(logits.reshape(len(target), -1))
    return -jnp.sum(jnp.where(known, jnp.take_along_axis(logs, places[:, None], axis=1)[:, 0], 0))


def log_variance(output: Any) -> Any:
    """The logarithm of a variance, from any number: between −10 and 10, so that no prediction is infinitely certain."""
    return 10 * library(output).tanh(output / 10)


# One bit in nats: divide a cross entropy by it to get bits.
BIT = 0.6931471805599453
