"""Files that are complete or absent, never written through a link, and named in error messages."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def name_in_errors(path: Path | str) -> Iterator[None]:
    """Make errors of the operating system name a file. (The error of a full disk does not do so by itself.)

    Args:
        path: the file that is used in this block.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def open_itself(path: Path, flags: int) -> int:
    """Open a file, but never through a symbolic link, which could point to any other file.

    Args:
        path: the path of the file.
        flags: the flags of `os.open`.

    Returns:
        A file descriptor.

    Raises:
        OSError: the path is a symbolic link, or the file cannot be opened.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if path.is_symlink():
            why = "it is a symbolic link, and norewind does not write through links; remove it"
            raise OSError(error.errno, why, os.fspath(path)) from None
        raise


def _temporary(path: Path) -> Path:
    """Return a name next to the file that no other process and no other thread uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.part")


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power failure: that of a new or renamed file does not until then.

    Args:
        path: the folder.
    """
    folder = os.open(path, os.O_RDONLY)
    try:
        with name_in_errors(path):
            os.fsync(folder)
    finally:
        os.close(folder)


def make_folder(path: Path) -> list[Path]:
    """Create a folder, and the missing ones above it, so that they survive a power failure.

    Args:
        path: the folder, which may exist.

    Returns:
        The folders that were missing, innermost first.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)
    return missing


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that either it is complete or the old one stays, even if the machine crashes.

    Args:
        path: the path of the file; its folder is created if needed.
        content: the bytes of the file.

    Raises:
        OSError: the file cannot be written.
    """
    make_folder(path.parent)
    temporary = _temporary(path)
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        # Name the file itself: the temporary name means nothing to the user.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
