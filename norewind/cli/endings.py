"""How commands end: exit codes, messages without a traceback, signals."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

BAD_INPUT = 1
"""The stream, the settings, the folder or a checkpoint is not what it should be."""
DIVERGED = 3
"""The run blew up; its last good checkpoint is kept."""


class StopOnSignal:
    """Ctrl-C and SIGTERM, as a wish to stop soon; a second Ctrl-C does not wait."""

    def __init__(self):
        """No wish yet."""
        self.signal: int | None = None

    def __enter__(self) -> "StopOnSignal":
        """Listen."""
        self._before = {number: signal.signal(number, self._wish) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_) -> None:
        """Stop listening."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _wish(self, number, frame):
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def friendly(command: str, advice: str = "") -> Iterator[None]:
    """A user's mistake, a full disk or a divergence end the command with a message and a code, not a traceback."""
    from norewind.checkpoint import CheckpointError
    from norewind.learner import NonFiniteError
    from norewind.streams import StreamError
    from norewind.training.lock import FolderInUse
    from norewind.training.settings import SettingsError
    from norewind.training.watch import Diverged

    try:
        yield
    except (CheckpointError, FolderInUse, SettingsError, StreamError) as error:
        leave(f"norewind {command}: {error}", BAD_INPUT)
    except (Diverged, NonFiniteError) as error:
        leave(f"norewind {command}: the run diverged: {error}{advice}", DIVERGED)
    except BrokenPipeError:
        # The reader has seen enough (head, say). Python must not try to flush again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        leave(f"norewind {command}: {where}{error.strerror or error}.{advice}", BAD_INPUT)


def leave(message: str, code: int) -> NoReturn:
    """End with a message on standard error and an exit code."""
    print(message, file=sys.stderr)
    raise SystemExit(code) from None
