"""PyTorch's operations, by the names in an exported program, as JAX functions with the same arguments."""

import operator
from collections.abc import Callable
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _axes(dims):
    """The axes of a reduction. In PyTorch, no dimensions means all of them."""
    return (dims,) if isinstance(dims, int) else tuple(dims) if dims else None


def _along(x, dim=0, start=None, end=None, step=1):
    """The index of a slice along one dimension."""
    return (*[slice(None)] * (dim % x.ndim), slice(start, end, step))


def _split(x, sizes, dim=0):
    ends = range(sizes, x.shape[dim], sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
    return jnp.split(x, list(ends), axis=dim)


def _expand(x, shape):
    missing = len(shape) - x.ndim
    whole = [x.shape[i - missing] if size == -1 else size for i, size in enumerate(shape)]
    return jnp.broadcast_to(x, whole)


def _squeeze(x, dims=None):
    dims = range(x.ndim) if dims is None else np.atleast_1d(dims)
    return jnp.squeeze(x, tuple(int(d) for d in dims if x.shape[int(d)] == 1))


def _reduced(function: Callable) -> Callable:
    return lambda x, dims=None, keepdim=False: function(x, axis=_axes(dims), keepdims=keepdim)


def _with_places(function: Callable, place: Callable) -> Callable:
    """A reduction that returns values along a dimension, and their positions."""
    return lambda x, dim, keepdim=False: (function(x, dim, keepdims=keepdim), place(x, dim, keepdims=keepdim))


def _var(x, dims=None, correction=1, keepdim=False):
    return jnp.var(x, _axes(dims), ddof=1 if correction is None else correction, keepdims=keepdim)


def _divided(a, b, rounding_mode=None):
    return {None: lambda x: x, "floor": jnp.floor, "trunc": jnp.trunc}[rounding_mode](a / b)


def _elu(x, alpha=1, scale=1, input_scale=1):
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.where(x > 0, 0.0, x) * input_scale))


def _affine(x, weight, bias):
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    last = tuple(range(x.ndim - len(shape), x.ndim))
    mean = jnp.mean(x, last, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean((x - mean) ** 2, last, keepdims=True) + eps)
    return _affine((x - mean) * inverse, weight, bias), mean, inverse


def _by_channel(x, *values):
    return [None if value is None else value.reshape(1, -1, *[1] * (x.ndim - 2)) for value in values]


def _batch_norm(x, weight, bias, mean, var, _, eps):
    weight, bias, mean, var = _by_channel(x, weight, bias, mean, var)
    return (_affine((x - mean) * jax.lax.rsqrt(var + eps), weight, bias),)


def _group_norm(x, weight, bias, batch, channels, size, groups, eps):
    out = _layer_norm(x.reshape(batch, groups, -1), [channels // groups * size], eps=eps)[0].reshape(x.shape)
    return (_affine(out, *_by_channel(x, weight, bias)),)


def _norm(x, order=2, dims=None, keepdim=False):
    if order == 0:
        raise ValueError("from_torch cannot convert a norm of order 0. Write that part in JAX.")
    if abs(order) == inf:
        return (jnp.max if order > 0 else jnp.min)(jnp.abs(x), _axes(dims), keepdims=keepdim)
    total = jnp.sum(jnp.abs(x) ** order, _axes(dims), keepdims=keepdim)
    # The gradient at zero is zero in PyTorch, and would be NaN here.
    return jnp.where(total > 0, jnp.where(total > 0, total, 1.0) ** (1 / order), 0.0)


def _embedding(weight, places, padding=-1, *_):
    if padding >= 0:  # this row is not learned
        weight = weight.at[padding].set(jax.lax.stop_gradient(weight[padding]))
    return weight[places]


def _pad(x, widths, value=0.0):
    pairs = [(*widths[place : place + 2], 0) for place in range(0, len(widths), 2)]
    pairs += [(0, 0, 0)] * (x.ndim - len(pairs))
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), pairs[::-1])


def _convolution(x, weight, bias, stride, padding, dilation, transposed, _, groups):
    if transposed:
        raise ValueError("from_torch cannot convert a transposed convolution. Write that part in JAX.")
    pairs = [(width, width) for width in padding]
    out = jax.lax.conv_general_dilated(x, weight, stride, pairs, rhs_dilation=dilation, feature_group_count=groups)
    return out if bias is None else out + bias.reshape(-1, *[1] * len(stride))


def _trilinear(a, b, c, missing_a, missing_b, missing_c, summed):
    """The product of three arrays, each with new dimensions where it lacks them, summed over some dimensions."""
    parts = [jnp.expand_dims(x, tuple(dims)) for x, dims in ((a, missing_a), (b, missing_b), (c, missing_c))]
    return jnp.sum(parts[0] * parts[1] * parts[2], tuple(summed))


# Operations that another library has under the same name, with the same arguments; those without a dot are `default`.
_SAME_NAME = (
    (jnp, "abs any atan atan2 bitwise_not ceil cos cosh cumprod cumsum dot exp expm1 flip floor full full_like hypot"),
    (jnp, "isinf isnan log log1p logical_and logical_not logical_or max maximum mean min minimum prod reciprocal"),
    (jnp, "reshape round sign sin sinh sqrt tan tanh trunc where.self fmod.Scalar fmod.Tensor"),
    (jnp, "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor"),
    (jax.lax, "erf rsqrt"),
    (jax.nn, "relu sigmoid"),
    (operator, "neg mul.Tensor mul.Scalar pow.Tensor_Scalar pow.Scalar pow.Tensor_Tensor eq.Scalar eq.Tensor"),
    (operator, "ne.Scalar ne.Tensor gt.Scalar gt.Tensor lt.Scalar lt.Tensor ge.Scalar ge.Tensor le.Scalar le.Tensor"),
)

_OTHERS: dict[str, Callable[..., Any]] = {
    "add.Tensor add.Scalar": lambda a, b, alpha=1: a + alpha * b,
    "sub.Tensor sub.Scalar": lambda a, b, alpha=1: a - alpha * b,
    "rsub.Tensor rsub.Scalar": lambda a, b, alpha=1: b - alpha * a,
    "div.Tensor div.Scalar": operator.truediv,
    "div.Tensor_mode": _divided,
    "remainder.Scalar remainder.Tensor": jnp.mod,
    "gelu.default": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "elu.default": _elu,
    "leaky_relu.default": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
    "clamp.default clamp.Tensor": jnp.clip,
    "hardtanh.default": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
    "any.dim any.dims": _reduced(jnp.any),
    # Checks that were already made while the module was exported.
    "_assert_tensor_metadata.default _assert_async.msg": lambda *_, **__: None,
    "mm.default mv.default bmm.default": jnp.matmul,
    "addmm.default": lambda bias, a, b, beta=1, alpha=1: beta * bias + alpha * (a @ b),
    "linear.default": lambda x, weight, bias=None: x @ weight.T + (0 if bias is None else bias),
    "t.default permute.default": jnp.transpose,
    "transpose.int": jnp.swapaxes,
    "view.default _unsafe_view.default": jnp.reshape,
    "unsqueeze.default": jnp.expand_dims,
    "squeeze.default squeeze.dim squeeze.dims": _squeeze,
    "expand.default": _expand,
    "slice.Tensor": lambda x, *cut, **named: x[_along(x, *cut, **named)],
    "slice_scatter.default": lambda x, new, *cut, **named: x.at[_along(x, *cut, **named)].set(new),
    "select.int index_select.default": lambda x, dim, places: jnp.take(x, places, axis=dim),
    "select_scatter.default": lambda x, new, dim, place: x.at[(slice(None),) * (dim % x.ndim) + (place,)].set(new),
    "split.Tensor split_with_sizes.default": _split,
    "cat.default": lambda parts, dim=0: jnp.concatenate(parts, dim),
    "stack.default": lambda parts, dim=0: jnp.stack(parts, dim),
    "repeat.default": jnp.tile,
    "index.Tensor": lambda x, places: x[tuple(slice(None) if place is None else place for place in places)],
    "gather.default": lambda x, dim, places, sparse_grad=False: jnp.take_along_axis(x, places, dim),
    "embedding.default": _embedding,
    "constant_pad_nd.default": _pad,
    "copy.default": lambda x, new: jnp.broadcast_to(new, x.shape),
    "arange.start_step": jnp.arange,
    "scalar_tensor.default": jnp.asarray,
    "clone.default alias.default _to_copy.default": lambda x: x,
    "detach.default": jax.lax.stop_gradient,
    "sum.dim_IntList": _reduced(jnp.sum),
    "mean.dim": _reduced(jnp.mean),
    "prod.dim_int": _reduced(jnp.prod),
    "amax.default": _reduced(jnp.max),
    "amin.default": _reduced(jnp.min),
    "max.dim": _with_places(jnp.max, jnp.argmax),
    "min.dim": _with_places(jnp.min, jnp.argmin),
    "argmax.default": lambda x, dim=None, keepdim=False: jnp.argmax(x, dim, keepdims=keepdim),
    "argmin.default": lambda x, dim=None, keepdim=False: jnp.argmin(x, dim, keepdims=keepdim),
    "var.correction": _var,
    "var_mean.correction": lambda x, dims=None, correction=1, keepdim=False: (
        _var(x, dims, correction, keepdim),
        jnp.mean(x, _axes(dims), keepdims=keepdim),
    ),
    "linalg_vector_norm.default": _norm,
    "_softmax.default": lambda x, dim, half=False: jax.nn.softmax(x, dim),
    "_log_softmax.default": lambda x, dim, half=False: jax.nn.log_softmax(x, dim),
    "native_layer_norm.default": _layer_norm,
    "native_group_norm.default": _group_norm,
    "_native_batch_norm_legit_no_training.default": _batch_norm,
    "convolution.default": _convolution,
    "_trilinear.default": _trilinear,
}

OPERATIONS: dict[str, Callable[..., Any]] = {"<built-in function getitem>": operator.getitem}
OPERATIONS |= {f"aten.{name}": function for names, function in _OTHERS.items() for name in names.split()}
for _library, _names in _SAME_NAME:
    for _name in _names.split():
        _operation, _, _overload = _name.partition(".")
        OPERATIONS[f"aten.{_operation}.{_overload or 'default'}"] = getattr(_library, _operation)
