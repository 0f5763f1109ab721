"""Helpers that keep `make test` fast: most parameters are marked slow, and programs compile without optimisations."""

import os

import jax
import pytest

from norewind.engines.compilation import FASTER_LOOPS

# Makes compiling three times as fast. For JAX 0.10 only.
SIMPLE_EMITTERS = "--xla_cpu_use_fusion_emitters=false"
# Tiny programs compile 12 % faster if XLA does not divide them among threads.
ONE_THREAD = "--xla_cpu_parallel_codegen_split_count=1"
# Compiler options of programs that are inspected as users get them.
AS_USERS_DO = FASTER_LOOPS | ({"xla_cpu_use_fusion_emitters": True} if jax.__version_info__ < (0, 11) else {})
optimised = pytest.mark.skipif(
    "NOREWIND_TEST_OPTIMISED" not in os.environ, reason="test_optimised.py runs it, compiled as users do"
)


def slow_but(names, *quick):
    """Return names as parameters of a test, all of them marked slow except the quick ones."""
    assert set(quick) <= {getattr(name, "__name__", name) for name in names}, quick
    return [
        name if getattr(name, "__name__", name) in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


def as_users_run():
    """Return the environment of a process that compiles with optimisations, unlike these tests (conftest.py)."""
    environment = {**os.environ, "NOREWIND_TEST_OPTIMISED": "1"}
    del environment["JAX_DISABLE_MOST_OPTIMIZATIONS"]
    flags = environment.pop("XLA_FLAGS", "").replace(SIMPLE_EMITTERS, "").replace(ONE_THREAD, "").strip()
    return environment | ({"XLA_FLAGS": flags} if flags else {})
