"""How commands end: exit codes, messages without a traceback, signals."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

BAD_INPUT = 1
"""Something is wrong with the stream, the settings, the folder or a checkpoint."""
DIVERGED = 3
"""The run diverged; its last good checkpoint is kept."""


class StopOnSignal:
    """Ctrl-C and SIGTERM as a request to stop soon. A second Ctrl-C stops at once."""

    def __init__(self):
        self.signal: int | None = None

    def __enter__(self) -> "StopOnSignal":
        self._before = {number: signal.signal(number, self._request) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number, frame):
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The code that a shell expects of a process that was ended by a signal."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def friendly(command: str, folder: Path | None = None, stop: StopOnSignal | None = None) -> Iterator[None]:
    """End the command with a message and an exit code, not a traceback, on mistakes, full disks and divergence.

    `folder` is where a run is being trained. A failure because of a signal ends with the signal's code.
    """
    from norewind.checkpoint import CheckpointError
    from norewind.learner import NonFiniteError
    from norewind.runs.folder import FolderInUse
    from norewind.runs.metrics import Diverged
    from norewind.runs.settings import SettingsError
    from norewind.streams import StreamError

    def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
        leave(f"norewind {command}: {message}", (stop and stop.exit_code) or code)

    try:
        yield
    except (CheckpointError, FolderInUse, SettingsError, StreamError) as error:
        fail(str(error))
    except NonFiniteError as error:
        where = int(error.run.samples) + 1
        fail(f"the run diverged: sample {where} gave numbers that are not finite.{_kept(folder, True)}", DIVERGED)
    except Diverged as error:
        fail(f"the run diverged: {error}{_kept(folder, True)}", DIVERGED)
    except BrokenPipeError:
        # The reader has seen enough (head, for example).
        drop_output()
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        drop_output()
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}.{_kept(folder, False)}")


def _kept(folder: Path | None, diverged: bool) -> str:
    """What is left of a run that ended badly, and what to do."""
    from norewind.checkpoint import checkpoints

    if folder is None:
        return ""
    found = checkpoints(folder / "checkpoints")
    kept = f" The last good checkpoint, {found[-1]}, is kept." if found else " There was no checkpoint yet."
    if diverged:
        return f"{kept} The same settings would diverge again: start a new run with a lower --rate or another --seed."
    return f"{kept} To go on: norewind resume {folder}" if found else kept


def drop_output() -> None:
    """Keep Python from flushing a standard output that is closed or full again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leave(message: str, code: int) -> NoReturn:
    """End with a message on standard error and an exit code."""
    print(message, file=sys.stderr)
    raise SystemExit(code) from None
