"""What keeps `make test` short: few parameters of many, and programs that are compiled with little effort."""

import os

import jax
import pytest

from norewind.engines.compilation import FASTER_LOOPS

# Compiles in a third of the time. For JAX 0.10 only.
SIMPLE_EMITTERS = "--xla_cpu_use_fusion_emitters=false"
# The options of a program that is looked at as users get it.
AS_USERS_DO = FASTER_LOOPS | ({"xla_cpu_use_fusion_emitters": True} if jax.__version_info__ < (0, 11) else {})
optimised = pytest.mark.skipif(
    "NOREWIND_TEST_OPTIMISED" not in os.environ, reason="test_optimised.py runs it, compiled as users do"
)


def slow_but(names, *quick):
    """The names as parameters of a test, all marked as slow but the quick ones."""
    assert set(quick) <= {getattr(name, "__name__", name) for name in names}, quick
    return [
        name if getattr(name, "__name__", name) in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


def as_users_run():
    """The environment of a process that compiles as it does for users, not as these tests do (conftest.py)."""
    environment = {**os.environ, "NOREWIND_TEST_OPTIMISED": "1"}
    del environment["JAX_DISABLE_MOST_OPTIMIZATIONS"]
    flags = environment.pop("XLA_FLAGS", "").replace(SIMPLE_EMITTERS, "").strip()
    return environment | ({"XLA_FLAGS": flags} if flags else {})
