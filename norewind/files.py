"""Files that are complete or absent, never written through a link, and named in errors."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let errors of the operating system name the file. (The error of a full disk does not.)"""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def open_itself(path: Path, flags: int) -> int:
    """A descriptor of the file itself: a symbolic link is refused, as it could lead to somebody's own file."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if path.is_symlink():
            why = "a symbolic link, and norewind does not write through links; remove it"
            raise OSError(error.errno, why, os.fspath(path)) from None
        raise


def _temporary(path: Path) -> Path:
    """A name beside the file that no other process and no other thread uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.part")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it appears complete, or the old one stays, even if the machine crashes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        # Nobody knows the temporary name.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    finally:
        temporary.unlink(missing_ok=True)
    # A renamed file is only safe once its folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
