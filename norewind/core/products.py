"""Products of a matrix with a vector that let no derivative pass between units."""

import jax
import jax.numpy as jnp


@jax.custom_vjp
def own_product(weight: jax.Array, vector: jax.Array) -> jax.Array:
    """W v, differentiated as if every unit read only its own entry of v.

    Args:
        weight: the matrix W; unit i has the rows i, n + i, 2n + i, ...
        vector: the vector v with n entries, one per unit.

    Returns:
        The product.
    """
    return weight @ vector


def _own_backward(kept, cotangent):
    weight, vector = kept
    n = vector.size
    own = jnp.diagonal(weight.reshape(-1, n, n), axis1=1, axis2=2) * cotangent.reshape(-1, n)
    return jnp.outer(cotangent, vector), jnp.sum(own, axis=0)


own_product.defvjp(lambda weight, vector: (weight @ vector, (weight, vector)), _own_backward)


@jax.custom_vjp
def cut_product(weight: jax.Array, vector: jax.Array) -> jax.Array:
    """W v, with v treated as a constant in derivatives (but not in derivatives of those, as for meta-gradients).

    Args:
        weight: the matrix W.
        vector: the vector v.

    Returns:
        The product.
    """
    return weight @ vector


cut_product.defvjp(lambda weight, v: (weight @ v, v), lambda v, back: (jnp.outer(back, v), jnp.zeros_like(v)))
