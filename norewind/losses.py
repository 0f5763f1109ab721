"""Losses of one sample, for use as an estimator's `loss(output, target)`."""

import jax
import jax.numpy as jnp

from norewind.checks import ModelError


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """−log p(target) in nats, for logits over symbols and the symbol that came.

    >>> import jax.numpy as jnp
    >>> round(float(cross_entropy(jnp.zeros(4), jnp.array(2))) / BIT, 6)
    2.0
    """
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
            "Give them the same shape: broadcasting would count errors twice."
        )
    return 0.5 * jnp.sum((prediction - target) ** 2)


BIT = 0.6931471805599453
"""One bit in nats: divide a cross entropy by it to get bits."""
