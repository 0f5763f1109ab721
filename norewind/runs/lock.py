"""The lock of a run folder: one process holds it at a time, and its file marks the folder as a run folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from norewind.checkpoint import checkpoints
from norewind.files import naming, open_itself
from norewind.runs.settings import SettingsError

LOCK = "lock"
SIGN = b"This folder belongs to a run of norewind.\n"


class FolderInUse(RuntimeError):
    """Another process is training in this folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, or raise `FolderInUse`."""
    path = folder / LOCK
    # A symbolic link could lead to somebody's own file: this refuses it, as the library does not follow it either.
    os.close(open_itself(path, os.O_RDWR | os.O_CREAT))
    try:
        lock = filelock.FileLock(path, timeout=0).acquire()
    except filelock.Timeout:
        raise FolderInUse(f"{folder}: another process is training in it. Wait until it ends.") from None
    with lock:
        with naming(path):
            if not path.stat().st_size:
                path.write_bytes(SIGN)
        yield


def check_is_ours(folder: Path) -> None:
    """Refuse a folder with files that are not from a run: training might overwrite them."""
    lock = folder / LOCK
    begins = lock.read_bytes()[: len(SIGN)] if lock.is_file() and not lock.is_symlink() else None
    names = set(os.listdir(folder)) - ({LOCK} if begins == b"" else set())
    if names and begins != SIGN and not checkpoints(folder / "checkpoints"):
        raise SettingsError(f"{folder} is not empty, and its files are not those of a run. Choose another folder.")


def make_folder(path: Path) -> list[Path]:
    """Make a folder, and return those that were made for it, the innermost first."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return new


def remove_unused(made: list[Path], settings: str) -> None:
    """Remove folders that were made for a run that failed before it had anything to keep."""
    if not made:
        return
    folder = made[0]
    with suppress(OSError):
        kept = [path for path in folder.iterdir() if path.name not in (LOCK, settings, "checkpoints")]
        if any(path.is_dir() or path.stat().st_size for path in kept):
            return
        with suppress(FileNotFoundError):
            (folder / "checkpoints").rmdir()
        for path in (*kept, folder / settings, folder / LOCK):
            path.unlink(missing_ok=True)
        for path in made:
            path.rmdir()
