"""Compiled JAX loops, with hints that make the compiler generate faster code."""

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import jax
from jax.core import Tracer
from jax.experimental.xla_metadata import set_xla_metadata

# On a CPU, JAX hands every program to another thread, which takes longer than a small program itself (docs/speed.md).
# The setting works only if nothing has run yet, and the environment variable overrides it.
if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
    jax.config.update("jax_cpu_enable_async_dispatch", False)

# Avoids copies of large arrays in a compiled loop (docs/speed.md).
FASTER_LOOPS = {"xla_cpu_copy_insertion_use_region_analysis": True}
NARROW = {"xla_cpu_prefer_vector_width": 64}


def compiled_loop(function: Callable, *, narrow: bool = False, **options: Any) -> Callable:
    """`jax.jit(function, **options)` for a function that is one long loop.

    Args:
        function: the function to compile.
        narrow: use narrow vectors, which suits arrays of few numbers.
        **options: options of `jax.jit`.

    Returns:
        The compiled function. Inside a caller's own transformation, the compiler options of the caller apply.
    """
    plain = jax.jit(function, **options)

    @lru_cache(maxsize=1)
    def hinted() -> Callable:
        return jax.jit(function, compiler_options=_supported(**FASTER_LOOPS, **(NARROW if narrow else {})), **options)

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((arguments, keywords)))
        return (plain if traced else hinted())(*arguments, **keywords)

    return call


@lru_cache
def _supported(**options: Any) -> dict[str, Any]:
    """Return the options if this version of XLA has them, otherwise none. XLA rejects unknown options: try once."""
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return options


# On a CPU, XLA hands the parts of a program to threads, which takes longer than the parts themselves if the program is
# small. A call that is marked like this, and not inlined, becomes one piece of machine code instead (docs/speed.md).
ONE_KERNEL = {"xla_cpu_small_call": "true", "inlineable": "false"}
# XLA turns large sums into library calls, which are not possible inside one piece.
WITHOUT_LIBRARIES = {"xla_cpu_experimental_ynn_fusion_type": ""}
MAX_KERNEL_BYTES = 2**20  # bytes of arguments: large products are faster in the libraries that one piece cannot call
NOT_IN_A_KERNEL = ("custom_call", "scatter", "sort", "fft", "convolution", "rng", "cholesky", "triangular_solve")


def compiled_kernel(function: Callable, *arguments: Any) -> Callable:
    """`jax.jit(function)`, as one piece of machine code if that is possible for the given arguments.

    Args:
        function: the function to compile.
        *arguments: examples of its arguments.

    Returns:
        The compiled function.
    """
    plain = jax.jit(function)
    size = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(arguments))
    if jax.default_backend() != "cpu" or size > MAX_KERNEL_BYTES:
        return plain

    def unmarked(*arguments):
        with set_xla_metadata(**dict.fromkeys(ONE_KERNEL)):
            return function(*arguments)

    inner = jax.jit(unmarked)

    def marked(*arguments):
        with set_xla_metadata(**ONE_KERNEL):
            return inner(*arguments)

    kernel = jax.jit(marked, compiler_options=_supported(**WITHOUT_LIBRARIES))
    program = kernel.lower(*arguments).as_text()
    if any(f"stablehlo.{operation}" in program for operation in NOT_IN_A_KERNEL):
        return plain
    try:
        jax.block_until_ready(kernel(*arguments))
    except jax.errors.JaxRuntimeError:
        return plain
    return kernel
