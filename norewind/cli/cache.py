"""Compiled programs are kept between commands: the next one starts sooner. Importing this does not import JAX."""

import os
import warnings
from importlib.metadata import version
from pathlib import Path

from norewind.machine import processor

VARIABLE = "NOREWIND_CACHE"
PROGRAM, USED, LOCK = "-cache", "-atime", ".lockfile"
"""How JAX names what it keeps (jax._src.lru_cache)."""
LARGEST = 200_000_000
"""Bytes that the kept programs may take. Beyond it, JAX removes those that were not used for longest."""


def keep_compiled() -> None:
    """Let JAX keep what it compiles in the user's cache folder.

    The environment variable NOREWIND_CACHE names another folder, or turns this off with
    `off`. Whoever has told JAX itself what to do is not overruled.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "off" or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = (Path(chosen) if chosen else _users_cache() / "norewind") / _machine()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError):
        return  # no home, or one that cannot be written to
    if all(os.access(place, os.R_OK | os.W_OK) for place in (folder, folder / LOCK) if place.exists()):
        _repair(folder)
        # It is only about time: a full disk there, for instance, is none of the user's troubles with a run.
        warnings.filterwarnings("ignore", "Error .* persistent compilation cache entry")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(LARGEST))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


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
