"""PyTorch's operations, by the names in an exported program, as JAX functions."""

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from norewind.cells import torch_layers as layers


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


def _squeeze(x, dims=None):
    dims = range(x.ndim) if dims is None else (dims,) if isinstance(dims, int) else dims
    return jnp.squeeze(x, tuple(d for d in dims if x.shape[d] == 1))


def _view(x, shape):
    known = prod(size for size in shape if size != -1)
    return x.reshape([x.size // known if size == -1 else size for size in shape])


def _reduced(function: Callable) -> Callable:
    return lambda x, dims=None, keepdim=False: function(x, axis=layers.axes(dims), keepdims=keepdim)


def _largest(function: Callable, place: Callable) -> Callable:
    """Values along a dimension, and where they are."""
    return lambda x, dim, keepdim=False: (function(x, dim, keepdims=keepdim), place(x, dim, keepdims=keepdim))


def _var(x, dims=None, correction=1, keepdim=False):
    return jnp.var(x, layers.axes(dims), ddof=1 if correction is None else correction, keepdims=keepdim)


def _index(x, places):
    return x[tuple(slice(None) if place is None else place for place in places)]


def _placed(x, new, dim=0, start=None, end=None, step=1):
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, end, step)
    return x.at[tuple(index)].set(new)


def _divided(a, b, rounding_mode=None):
    return {None: lambda x: x, "floor": jnp.floor, "trunc": jnp.trunc}[rounding_mode](a / b)


def _round(x, decimals=0):
    return jnp.round(x, decimals)


def _nothing(*_, **__):
    """A check, which was made while the module was exported."""


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
    "div.Tensor_mode": _divided,
    "pow.Tensor_Scalar": operator.pow,
    "pow.Scalar": operator.pow,
    "pow.Tensor_Tensor": operator.pow,
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
    "tan.default": jnp.tan,
    "atan.default": jnp.arctan,
    "atan2.default": jnp.arctan2,
    "hypot.default": jnp.hypot,
    "sinh.default": jnp.sinh,
    "cosh.default": jnp.cosh,
    "erf.default": jax.lax.erf,
    "sign.default": jnp.sign,
    "floor.default": jnp.floor,
    "ceil.default": jnp.ceil,
    "trunc.default": jnp.trunc,
    "round.default": _round,
    "fmod.Scalar": jnp.fmod,
    "fmod.Tensor": jnp.fmod,
    "remainder.Scalar": jnp.mod,
    "remainder.Tensor": jnp.mod,
    "sigmoid.default": jax.nn.sigmoid,
    "tanh.default": jnp.tanh,
    "relu.default": jax.nn.relu,
    "gelu.default": _gelu,
    "elu.default": _elu,
    "leaky_relu.default": _leaky,
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp,
    "hardtanh.default": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
    "maximum.default": jnp.maximum,
    "minimum.default": jnp.minimum,
    "where.self": jnp.where,
    "logical_not.default": jnp.logical_not,
    "logical_and.default": jnp.logical_and,
    "logical_or.default": jnp.logical_or,
    "bitwise_not.default": jnp.bitwise_not,
    "bitwise_and.Tensor": jnp.bitwise_and,
    "bitwise_or.Tensor": jnp.bitwise_or,
    "bitwise_xor.Tensor": jnp.bitwise_xor,
    "isnan.default": jnp.isnan,
    "isinf.default": jnp.isinf,
    "any.default": jnp.any,
    "any.dim": _reduced(jnp.any),
    "any.dims": _reduced(jnp.any),
    "_assert_tensor_metadata.default": _nothing,
    "_assert_async.msg": _nothing,
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
    "flip.default": jnp.flip,
    "repeat.default": jnp.tile,
    "index.Tensor": _index,
    "index_select.default": lambda x, dim, places: jnp.take(x, places, axis=dim),
    "gather.default": lambda x, dim, places, sparse_grad=False: jnp.take_along_axis(x, places, dim),
    "embedding.default": layers.embedding,
    "constant_pad_nd.default": layers.pad,
    "slice_scatter.default": _placed,
    "select_scatter.default": lambda x, new, dim, place: x.at[(slice(None),) * (dim % x.ndim) + (place,)].set(new),
    "copy.default": lambda x, new: jnp.broadcast_to(new, x.shape),
    "arange.start_step": jnp.arange,
    "scalar_tensor.default": jnp.asarray,
    "clone.default": lambda x: x,
    "alias.default": lambda x: x,
    "detach.default": jax.lax.stop_gradient,
    "_to_copy.default": lambda x: x,
    "full.default": lambda shape, value: jnp.full(shape, value),
    "full_like.default": lambda x, value: jnp.full_like(x, value),
    "sum.dim_IntList": _reduced(jnp.sum),
    "mean.dim": _reduced(jnp.mean),
    "mean.default": jnp.mean,
    "prod.default": jnp.prod,
    "prod.dim_int": _reduced(jnp.prod),
    "cumsum.default": jnp.cumsum,
    "cumprod.default": jnp.cumprod,
    "amax.default": _reduced(jnp.max),
    "amin.default": _reduced(jnp.min),
    "max.default": jnp.max,
    "min.default": jnp.min,
    "max.dim": _largest(jnp.max, jnp.argmax),
    "min.dim": _largest(jnp.min, jnp.argmin),
    "argmax.default": lambda x, dim=None, keepdim=False: jnp.argmax(x, dim, keepdims=keepdim),
    "argmin.default": lambda x, dim=None, keepdim=False: jnp.argmin(x, dim, keepdims=keepdim),
    "var.correction": _var,
    "var_mean.correction": lambda x, dims=None, correction=1, keepdim=False: (
        _var(x, dims, correction, keepdim),
        jnp.mean(x, layers.axes(dims), keepdims=keepdim),
    ),
    "linalg_vector_norm.default": layers.norm,
    "_softmax.default": lambda x, dim, half=False: jax.nn.softmax(x, dim),
    "_log_softmax.default": lambda x, dim, half=False: jax.nn.log_softmax(x, dim),
    "native_layer_norm.default": layers.layer_norm,
    "native_group_norm.default": layers.group_norm,
    "_native_batch_norm_legit_no_training.default": layers.batch_norm,
    "convolution.default": layers.convolution,
    "_trilinear.default": layers.trilinear,
}
for _name in ("eq", "ne", "gt", "lt", "ge", "le"):
    _BY_NAME |= {f"{_name}.{kind}": getattr(operator, _name) for kind in ("Scalar", "Tensor")}

OPERATIONS: dict[str, Callable[..., Any]] = {f"aten.{name}": function for name, function in _BY_NAME.items()}
OPERATIONS["<built-in function getitem>"] = operator.getitem
