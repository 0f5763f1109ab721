"""Compiled programs are kept between commands: the next one starts sooner. Importing this does not import JAX."""

import os
from importlib.metadata import version
from pathlib import Path

from norewind.machine import processor

VARIABLE = "NOREWIND_CACHE"
LARGEST = 200_000_000
"""The largest size of the cache in bytes. Beyond it, JAX removes the least recently used programs."""


def keep_compiled() -> None:
    """Let JAX keep what it compiles in the user's cache folder.

    The environment variable NOREWIND_CACHE names another folder, or turns this off with
    `off`. A cache that is configured in JAX itself is left alone.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "off" or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = (Path(chosen) if chosen else _users_cache() / "norewind") / _machine()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError):
        return  # no home, or one that cannot be written to
    if os.access(folder, os.W_OK):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(LARGEST))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def _users_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _machine() -> str:
    """A name for what compiled programs depend on: the version of JAX, and the kind of processor."""
    return f"jax-{version('jax')}-{processor().replace(' ', '-')}"
