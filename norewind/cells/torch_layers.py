"""Layers of PyTorch as JAX functions, with the arguments that they have in an exported program."""

from math import inf

import jax
import jax.numpy as jnp


def axes(dims):
    """In PyTorch, no dimensions are all of them."""
    return (dims,) if isinstance(dims, int) else tuple(dims) if dims else None


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    last = tuple(range(x.ndim - len(shape), x.ndim))
    mean = jnp.mean(x, last, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean((x - mean) ** 2, last, keepdims=True) + eps)
    out = (x - mean) * inverse
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias), mean, inverse


def norm(x, order=2, dims=None, keepdim=False):
    if order == 0:
        raise ValueError("from_torch cannot convert a norm of order 0. Write that part in JAX.")
    if abs(order) == inf:
        return (jnp.max if order > 0 else jnp.min)(jnp.abs(x), axes(dims), keepdims=keepdim)
    total = jnp.sum(jnp.abs(x) ** order, axes(dims), keepdims=keepdim)
    # The gradient at zero is zero in PyTorch, and would be NaN here.
    return jnp.where(total > 0, jnp.where(total > 0, total, 1.0) ** (1 / order), 0.0)


def embedding(weight, places, padding=-1, *_):
    if padding >= 0:  # this row is not learned
        weight = weight.at[padding].set(jax.lax.stop_gradient(weight[padding]))
    return weight[places]


def pad(x, widths, value=0.0):
    pairs = [(*widths[place : place + 2], 0) for place in range(0, len(widths), 2)]
    pairs += [(0, 0, 0)] * (x.ndim - len(pairs))
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), pairs[::-1])


def convolution(x, weight, bias, stride, padding, dilation, transposed, _, groups):
    if transposed:
        raise ValueError("from_torch cannot convert a transposed convolution. Write that part in JAX.")
    pairs = [(width, width) for width in padding]
    out = jax.lax.conv_general_dilated(x, weight, stride, pairs, rhs_dilation=dilation, feature_group_count=groups)
    return out if bias is None else out + bias.reshape(-1, *[1] * len(stride))


def _by_channel(x, values):
    return values.reshape(1, -1, *[1] * (x.ndim - 2))


def batch_norm(x, weight, bias, mean, var, _, eps):
    out = (x - _by_channel(x, mean)) * jax.lax.rsqrt(_by_channel(x, var) + eps)
    out = out if weight is None else out * _by_channel(x, weight)
    return (out if bias is None else out + _by_channel(x, bias),)


def group_norm(x, weight, bias, batch, channels, size, groups, eps):
    out = layer_norm(x.reshape(batch, groups, -1), [channels // groups * size], eps=eps)[0].reshape(x.shape)
    out = out if weight is None else out * _by_channel(x, weight)
    return (out if bias is None else out + _by_channel(x, bias),)


def trilinear(a, b, c, missing_a, missing_b, missing_c, summed):
    """The product of three, each with a new dimension where it misses one, summed over some."""
    parts = [jnp.expand_dims(x, tuple(dims)) for x, dims in ((a, missing_a), (b, missing_b), (c, missing_c))]
    return jnp.sum(parts[0] * parts[1] * parts[2], tuple(summed))
