"""Standard output and error as they may be: closed, of any encoding, of any width."""

import io
import os
import shutil
import sys

NARROWEST = 40
"""Help is not wrapped to fewer columns: in one of a single column, wrapping it would never end."""


def prepare() -> None:
    """Make standard output and error safe to write to."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # Closed, so the next file to be opened would get this number, and what is printed. Messages to standard
            # error may get lost, but writing to a closed standard output must fail.
            os.open(os.devnull, os.O_WRONLY if descriptor == 2 else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, io.TextIOWrapper):
            file.reconfigure(errors="backslashreplace")
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)


def drop_output() -> None:
    """Keep Python from flushing a standard output that is closed or full again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
