"""PyTorch's operations, by the names in an exported program, as JAX functions."""

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp


def _scaled(a, b, alpha=1):
    return b if isinstance(alpha, int) and alpha == 1 else alpha * b


def _slice(x, dim=0, start=None, end=None, step=1):
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


def _select(x, dim, index):
    return jnp.take(x, index, axis=dim)


def _split(x, sizes, dim=0):
    if isinstance(sizes, int):
        sizes = [sizes] * (x.shape[dim] // sizes) + ([x.shape[dim] % sizes] if x.shape[dim] % sizes else [])
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return jnp.split(x, ends, axis=dim)


def _expand(x, shape):
    missing = len(shape) - x.ndim
    whole = [x.shape[i - missing] if size == -1 else size for i, size in enumerate(shape)]
    return jnp.broadcast_to(x, whole)


def _layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean = jnp.mean(x, axes, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean((x - mean) ** 2, axes, keepdims=True) + eps)
    out = (x - mean) * inverse
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias), mean, inverse


def _squeeze(x, dims=None):
    dims = range(x.ndim) if dims is None else (dims,) if isinstance(dims, int) else dims
    return jnp.squeeze(x, tuple(d for d in dims if x.shape[d] == 1))


def _view(x, shape):
    known = prod(size for size in shape if size != -1)
    return x.reshape([x.size // known if size == -1 else size for size in shape])


def _reduced(function: Callable) -> Callable:
    return lambda x, dims=None, keepdim=False: function(x, axis=None if dims is None else tuple(dims), keepdims=keepdim)


def _gelu(x, approximate="none"):
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _clamp(x, low=None, high=None):
    return jnp.clip(x, low, high)


def _leaky(x, slope=0.01):
    return jnp.where(x > 0, x, slope * x)


def _elu(x, alpha=1, scale=1, input_scale=1):
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.where(x > 0, 0.0, x) * input_scale))


_BY_NAME: dict[str, Callable[..., Any]] = {
    "add.Tensor": lambda a, b, alpha=1: a + _scaled(a, b, alpha),
    "add.Scalar": lambda a, b, alpha=1: a + _scaled(a, b, alpha),
    "sub.Tensor": lambda a, b, alpha=1: a - _scaled(a, b, alpha),
    "sub.Scalar": lambda a, b, alpha=1: a - _scaled(a, b, alpha),
    "rsub.Scalar": lambda a, b, alpha=1: b - _scaled(b, a, alpha),
    "rsub.Tensor": lambda a, b, alpha=1: b - _scaled(b, a, alpha),
    "mul.Tensor": operator.mul,
    "mul.Scalar": operator.mul,
    "div.Tensor": operator.truediv,
    "div.Scalar": operator.truediv,
    "neg.default": operator.neg,
    "pow.Tensor_Scalar": operator.pow,
    "exp.default": jnp.exp,
    "expm1.default": jnp.expm1,
    "log.default": jnp.log,
    "log1p.default": jnp.log1p,
    "sqrt.default": jnp.sqrt,
    "rsqrt.default": jax.lax.rsqrt,
    "reciprocal.default": jnp.reciprocal,
    "abs.default": jnp.abs,
    "sin.default": jnp.sin,
    "cos.default": jnp.cos,
    "sigmoid.default": jax.nn.sigmoid,
    "tanh.default": jnp.tanh,
    "relu.default": jax.nn.relu,
    "gelu.default": _gelu,
    "elu.default": _elu,
    "leaky_relu.default": _leaky,
    "clamp.default": _clamp,
    "maximum.default": jnp.maximum,
    "minimum.default": jnp.minimum,
    "where.self": jnp.where,
    "gt.Scalar": operator.gt,
    "lt.Scalar": operator.lt,
    "ge.Scalar": operator.ge,
    "le.Scalar": operator.le,
    "mm.default": jnp.matmul,
    "mv.default": jnp.matmul,
    "bmm.default": jnp.matmul,
    "dot.default": jnp.dot,
    "addmm.default": lambda bias, a, b, beta=1, alpha=1: beta * bias + alpha * (a @ b),
    "linear.default": lambda x, weight, bias=None: x @ weight.T + (0 if bias is None else bias),
    "t.default": jnp.transpose,
    "permute.default": jnp.transpose,
    "transpose.int": jnp.swapaxes,
    "view.default": _view,
    "reshape.default": _view,
    "_unsafe_view.default": _view,
    "unsqueeze.default": jnp.expand_dims,
    "squeeze.default": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "expand.default": _expand,
    "slice.Tensor": _slice,
    "select.int": _select,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "cat.default": lambda parts, dim=0: jnp.concatenate(parts, dim),
    "stack.default": lambda parts, dim=0: jnp.stack(parts, dim),
    "clone.default": lambda x: x,
    "alias.default": lambda x: x,
    "detach.default": jax.lax.stop_gradient,
    "_to_copy.default": lambda x: x,
    "full.default": lambda shape, value: jnp.full(shape, value),
    "full_like.default": lambda x, value: jnp.full_like(x, value),
    "sum.dim_IntList": _reduced(jnp.sum),
    "mean.dim": _reduced(jnp.mean),
    "amax.default": _reduced(jnp.max),
    "_softmax.default": lambda x, dim, half=False: jax.nn.softmax(x, dim),
    "_log_softmax.default": lambda x, dim, half=False: jax.nn.log_softmax(x, dim),
    "native_layer_norm.default": _layer_norm,
}

OPERATIONS: dict[str, Callable[..., Any]] = {f"aten.{name}": function for name, function in _BY_NAME.items()}
OPERATIONS["<built-in function getitem>"] = operator.getitem
