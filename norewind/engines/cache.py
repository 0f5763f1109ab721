"""The cache of compiled code, for JAX and Numba, in a folder that only this user can write to.

Importing this module imports neither of them.
"""

import os
import stat
import sys
import warnings
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from norewind.engines.processor import processor

VARIABLE = "NOREWIND_CACHE"
FOLDER = "JAX_COMPILATION_CACHE_DIR"
# The names of the files in JAX's cache (jax._src.lru_cache).
PROGRAM = "-cache"
USED = "-atime"
LOCK = ".lockfile"
# The size in bytes above which JAX removes the least recently used programs from its cache.
MAX_CACHE_BYTES = 100_000_000
# The folders of this package whose files contain Numba kernels.
KERNELS = ("engines", "learners", "streams", "fleets", "scoring")


def keep_compiled() -> None:
    """Configure JAX to store compiled programs in the user's cache folder from now on. Does not import JAX.

    The environment variable NOREWIND_CACHE names another folder, or turns caching off
    with `off`. A cache that is configured in JAX itself is left alone.
    """
    jax = sys.modules.get("jax")
    if FOLDER in os.environ or (jax and getattr(jax.config, FOLDER.lower()) is not None):
        return
    options = {name: value for name, value in _jax_options().items() if name not in os.environ}
    if not jax:
        os.environ.update({name: str(value) for name, value in options.items()})
    elif options:
        from jax.experimental.compilation_cache import compilation_cache

        for name, value in options.items():
            jax.config.update(name.lower(), value)
        compilation_cache.reset_cache()  # JAX checks only once whether there is a cache


def numba_folder() -> Path | None:
    """Return the folder for Numba's cache; None if there is no safe one.

    Numba notices when the source file of a kernel has changed, but not when that of a kernel
    it calls has. So the name of the folder contains a checksum over all files with kernels.
    """
    package = Path(__file__).parents[1]
    files = sorted(path for name in KERNELS for path in (package / name).rglob("*.py"))
    stamps = repr([(path.name, (status := path.stat()).st_mtime_ns, status.st_size) for path in files])
    return _folder(f"numba-{version('numba')}-{zlib.crc32(stamps.encode()):08x}")


def _jax_options() -> dict[str, Any]:
    """Return JAX's options by the names of their environment variables; empty if caching is off or impossible."""
    folder = _folder(f"jax-{version('jax')}-{processor().replace(' ', '-')}")
    if folder is None or not os.access(folder / LOCK if (folder / LOCK).exists() else folder, os.R_OK | os.W_OK):
        return {}
    _repair(folder)
    # Caching is best effort; I/O errors are ignored.
    warnings.filterwarnings("ignore", "Error .* persistent compilation cache entry")
    return {
        FOLDER: str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": MAX_CACHE_BYTES,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.05,
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
    }


def _folder(name: str) -> Path | None:
    """Return a folder in the cache, created if needed; None if caching is off, impossible or unsafe."""
    setting = os.environ.get(VARIABLE, "")
    if setting == "off":
        return None
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "norewind"
        folder = Path(os.path.realpath(setting or home)) / name
        # One by one: `parents=True` would give the parents the default mode, which may let a group write to them.
        for path in (*reversed(folder.parents), folder):
            path.mkdir(mode=0o700, exist_ok=True)
        if problem := _why_unsafe(folder):
            warnings.warn(f"norewind does not cache compiled code: {problem}.", RuntimeWarning, stacklevel=2)
            return None
        folder.chmod(0o700)  # an older one may be readable by others
    except (OSError, RuntimeError, ValueError):
        return None  # no home directory, or one that is not writable
    return folder if os.access(folder, os.R_OK | os.W_OK) else None


def _why_unsafe(folder: Path) -> str | None:
    """Return the reason why another user could plant code in a folder, if any. Code in both caches is executed."""
    for path in (folder, *folder.parents):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return f"{path} is a symbolic link"
        if status.st_uid not in (0, os.getuid()) or (path == folder and status.st_uid != os.getuid()):
            return f"{path} belongs to another user"
        # In a folder with the sticky bit, such as /tmp, nobody else can replace our files.
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if others and (path == folder or not status.st_mode & stat.S_ISVTX):
            return f"{path} can be written to by other users (chmod go-w)"
    return None


def _repair(folder: Path) -> None:
    """Remove programs left half written by a kill or a full disk: if there is one, JAX cannot store any other.

    JAX writes a program first, and then the time when it was used.
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
            return  # another process is using the cache
