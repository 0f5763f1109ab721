"""Standard output and error that may be closed or on a full disk, and terminals of any encoding and width."""

import io
import os
import shutil
import sys
from typing import Any

# The minimum width for wrapping help: at a width of one column, wrapping would never end.
NARROWEST = 40


class _LossyFile(io.FileIO):
    """A file whose reader may be gone or whose disk may be full. Messages are then lost, and work continues."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare() -> None:
    """Make standard output and error safe to write to."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # Closed, so the next file to be opened would get this number, and with it all printed output. Messages to
            # standard error may be lost, but writing to a closed standard output must fail.
            os.open(os.devnull, os.O_WRONLY if descriptor == 2 else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        encoding = sys.stderr.encoding if sys.stderr else "utf-8"
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_LossyFile(2, "w", closefd=False)), encoding, line_buffering=True
        )
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, io.TextIOWrapper):
            file.reconfigure(errors="backslashreplace")
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)


def drop_output() -> None:
    """Prevent Python from flushing a closed or full standard output again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
