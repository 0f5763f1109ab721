"""Compiled programs are kept between processes: the next one starts sooner. Importing this does not import JAX."""

import os
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from norewind.machine import processor

VARIABLE = "NOREWIND_CACHE"
FOLDER = "JAX_COMPILATION_CACHE_DIR"
PROGRAMS = "NOREWIND_PROGRAMS"
"""Names the folder of whole programs (programs.py), also to processes that this one starts."""
PROGRAM, USED, LOCK = "-cache", "-atime", ".lockfile"
"""How JAX names what it keeps (jax._src.lru_cache)."""
LARGEST = 100_000_000
"""The largest size in bytes of JAX's cache, and of our own. Beyond it, the least recently used programs are removed."""


def keep_compiled() -> None:
    """Let JAX, which is not imported yet, keep what it compiles in the user's cache folder.

    The environment variable NOREWIND_CACHE names another folder, or turns this off with
    `off`. A cache that is configured in JAX itself is left alone.
    """
    if FOLDER not in os.environ:
        chosen = _chosen()
        for name, value in chosen.items():
            os.environ.setdefault(name, str(value))
        if chosen:
            os.environ[PROGRAMS] = str(Path(chosen[FOLDER]) / "programs")


def keep_compiled_from_now() -> None:
    """`keep_compiled` where JAX is imported already: what it compiles from now on is kept.

    Whole programs are kept only if none has run in this process yet (programs.py looks once).
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    chosen = {} if getattr(jax.config, FOLDER.lower()) is not None else _chosen()
    for name, value in chosen.items():
        if name not in os.environ:
            jax.config.update(name.lower(), value)
    if chosen:
        os.environ[PROGRAMS] = str(Path(chosen[FOLDER]) / "programs")
        compilation_cache.reset_cache()  # JAX looks only once whether there is one


def _chosen() -> dict[str, Any]:
    """JAX's options by the names of their environment variables; none if nothing is to be kept, or can be."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "off":
        return {}
    try:
        folder = (Path(chosen) if chosen else _users_cache() / "norewind") / _machine()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError):
        return {}  # no home, or one that cannot be written to
    if not all(os.access(place, os.R_OK | os.W_OK) for place in (folder, folder / LOCK) if place.exists()):
        return {}
    _repair(folder)
    # It is only about time: a full disk there, for instance, is none of the user's troubles with a run.
    warnings.filterwarnings("ignore", "Error .* persistent compilation cache entry")
    return {
        FOLDER: str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": LARGEST,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.05,
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
    }


def _repair(folder: Path) -> None:
    """Remove programs that a kill or a full disk left half written: with one of them, JAX can store no other.

    JAX writes a program, and then when it was used.
    """
    names = set(os.listdir(folder))
    broken = [name for name in names if name.endswith(PROGRAM) and name.removesuffix(PROGRAM) + USED not in names]
    if broken:
        from filelock import FileLock, Timeout

        try:
            with FileLock(folder / LOCK, timeout=0):
                for name in broken:
                    if not (folder / (name.removesuffix(PROGRAM) + USED)).exists():
                        (folder / name).unlink(missing_ok=True)
        except (OSError, Timeout):
            return  # it is in use


def _users_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _machine() -> str:
    """A name for what compiled programs depend on: the version of JAX, and the kind of processor."""
    return f"jax-{version('jax')}-{processor().replace(' ', '-')}"
