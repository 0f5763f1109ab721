"""One process per run folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderInUse(RuntimeError):
    """Another process is training in this folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder. The lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks: there, nobody checks
        yield
        return
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FolderInUse(
                f"{folder}: another process is working in it. Wait for it, or choose another folder."
            ) from None
        yield
