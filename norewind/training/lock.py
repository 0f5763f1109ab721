"""One process per run folder."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_held = threading.local()


class FolderInUse(RuntimeError):
    """Another process is training in this folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if need be. The lock goes with the process, however it ends.

    A function that holds a folder may call one that wants to hold it as well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mine = _held.__dict__.setdefault("folders", set())
    place = folder.resolve()
    if place in mine:
        yield
        return
    try:
        import fcntl
    except ImportError:  # Windows has no such locks: there, nobody checks
        yield
        return
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"{folder}: another process is working in it. Wait for it, or choose another folder."
            ) from None
        mine.add(place)
        try:
            yield
        finally:
            mine.remove(place)
