"""Compiled loops and small programs, with hints to the compiler that make them faster."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from norewind.programs import Program

# Avoids copies of large arrays in a compiled loop (docs/speed.md).
FASTER_LOOPS = {"xla_cpu_copy_insertion_use_region_analysis": True}
NARROW = {"xla_cpu_prefer_vector_width": 128}


def compiled(function: Callable, **options: Any) -> Program:
    """`jax.jit(function, **options)`, kept between processes."""
    return Program(function, options)


def compiled_loop(function: Callable, *, narrow: bool = False, **options: Any) -> Program:
    """`compiled(function, **options)` for a function that is one long loop; `narrow` is for arrays of few numbers."""
    hints = FASTER_LOOPS | (NARROW if narrow else {})
    return Program(function, options, hints, lambda: bool(_known(**hints)))


@lru_cache
def _known(**options: Any) -> dict[str, Any]:
    """The options, if this XLA has them. It refuses to compile with unknown ones, so try it once."""
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return options


# XLA on a CPU hands the parts of a program to threads, which takes longer than the parts of a small one. A call that is
# marked so, and not inlined, becomes one piece of machine code instead (docs/speed.md).
ONE_KERNEL = {"xla_cpu_small_call": "true", "inlineable": "false"}
# Of large sums, XLA makes calls of a library, which one piece cannot have.
WITHOUT_LIBRARIES = {"xla_cpu_experimental_ynn_fusion_type": ""}
LARGEST_KERNEL = 2**20  # bytes of arguments: large products are faster in the libraries that one piece cannot call
NOT_IN_A_KERNEL = ("custom_call", "scatter", "sort", "fft", "convolution", "rng", "cholesky", "triangular_solve")


def compiled_kernel(function: Callable, *arguments: Any) -> Callable:
    """`jax.jit(function)`, as one piece of machine code if that is possible for such arguments."""
    plain = jax.jit(function)
    size = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(arguments))
    if jax.default_backend() != "cpu" or size > LARGEST_KERNEL:
        return plain

    def unmarked(*arguments):
        with set_xla_metadata(**dict.fromkeys(ONE_KERNEL)):
            return function(*arguments)

    inner = jax.jit(unmarked)

    def marked(*arguments):
        with set_xla_metadata(**ONE_KERNEL):
            return inner(*arguments)

    kernel = jax.jit(marked, compiler_options=_known(**WITHOUT_LIBRARIES))
    program = kernel.lower(*arguments).as_text()
    if any(f"stablehlo.{operation}" in program for operation in NOT_IN_A_KERNEL):
        return plain
    try:
        jax.block_until_ready(kernel(*arguments))
    except jax.errors.JaxRuntimeError:
        return plain
    return kernel


@lru_cache
def calling_thread() -> Any:
    """A CPU whose programs run in the thread that calls them; None where there is none.

    JAX hands every program to another thread, which takes longer than a small program itself.
    """
    if jax.default_backend() != "cpu":
        return None
    try:
        from jaxlib import xla_client

        return xla_client.make_cpu_client(asynchronous=False).local_devices()[0]
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return None  # not a public function: without it, everything works as fast as before
