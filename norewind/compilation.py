"""Compiled loops, with compiler options that make them faster."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

# Avoids copies of large arrays in a compiled loop (docs/speed.md).
FASTER_LOOPS = {"xla_cpu_copy_insertion_use_region_analysis": True}


def compiled_loop(function: Callable, **options: Any) -> Callable:
    """`jax.jit(function, **options)` for a function that is one long loop."""
    plain = jax.jit(function, **options)
    faster = jax.jit(function, **options, compiler_options=FASTER_LOOPS)

    def call(*arguments, **keywords):
        # Only an outermost jit may have options; inside a caller's jit, the caller's options apply.
        inside_a_jit = isinstance(jnp.zeros(()), Tracer)
        chosen = plain if inside_a_jit or not _knows_faster_loops() else faster
        return chosen(*arguments, **keywords)

    return call


@lru_cache
def _knows_faster_loops() -> bool:
    """Whether this XLA has the option. It refuses to compile with an unknown one, so try it once."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: 0, compiler_options=FASTER_LOOPS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
