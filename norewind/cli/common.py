"""Code shared by all commands: signals, exit codes, messages without a traceback, and the options of parallel runs."""

import errno
import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, NoReturn

from norewind.cli import terminal
from norewind.engines.cache import keep_compiled
from norewind.errors import Diverged, NorewindError
from norewind.training.settings import Settings, SettingsError, field_kinds, option

# Something is wrong with the stream, the settings, the folder or a checkpoint.
BAD_INPUT = 1
# The run diverged; its last good checkpoint is kept.
DIVERGED = 3

# Possible errors of standard output, which has no file name. (A closed one is a bad descriptor.)
OUTPUT_ERRORS = (errno.EBADF, errno.ENOSPC, errno.EFBIG, errno.EIO)


@dataclass(frozen=True)
class Processes:
    """Runs, or the shards of one, are trained at the same time in separate processes.

    Attributes:
        jobs: The number of runs or shards to train at the same time.
        ray: Train in this Ray cluster. auto uses a running one, or starts one on this machine.
    """

    jobs: Annotated[int | None, option("N", "one per core")] = None
    ray: Annotated[str | None, option("ADDRESS", "processes on this machine")] = None


THIS_MACHINE = Processes()


class StopOnSignal:
    """Turns Ctrl-C, SIGTERM and SIGHUP (a closed terminal) into a request to stop soon. A second Ctrl-C stops at once.

    If SIGHUP is already ignored, as with `nohup`, it stays ignored.
    """

    received: int | None = None

    def __enter__(self) -> "StopOnSignal":
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
        handled = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - ignored
        self._before = {number: signal.signal(number, self._request) for number in handled}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number, frame):
        if self.received == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def __call__(self) -> bool:
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects of a process that was ended by a signal."""
        return 0 if self.received is None else 128 + self.received


@contextmanager
def command_line(program: str, command: str = "", mistakes: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Run a command with safe standard output, a cache of compiled programs, and messages without a traceback.

    Args:
        program: the name of the program.
        command: the name of the command, if the program has several.
        mistakes: further types of errors to report without a traceback.
    """
    terminal.prepare()
    keep_compiled()
    # Without a home folder, matplotlib stores its list of fonts elsewhere, and prints five lines about it.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        with explain_errors(f"{program} {command}".strip(), mistakes=mistakes):
            yield
    except KeyboardInterrupt:
        exit_with(f"{program}: interrupted.", 128 + signal.SIGINT)
    finally:
        terminal.drop_output()


@contextmanager
def explain_errors(
    command: str,
    folder: Path | None = None,
    stop: StopOnSignal | None = None,
    mistakes: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """End the command with a message and an exit code, not a traceback, on mistakes, full disks and divergence.

    Args:
        command: the program and its command, such as "norewind train", with which messages begin.
        folder: the run folder, if a run is being trained.
        stop: the signals. A failure after a signal ends with the signal's exit code.
        mistakes: further types of errors to report without a traceback.
    """

    def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
        exit_with(f"{command}: {as_options(message)}", (stop and stop.exit_code) or code)

    try:
        yield
    except BrokenPipeError:
        # The reader has seen enough (head, for example).
        terminal.drop_output()
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        terminal.drop_output()
        file = error.filename or ("standard output" if error.errno in OUTPUT_ERRORS else None)
        prefix = f"{file}: " if file else ""
        fail(f"{prefix}{error.strerror or error}.{_describe_kept(folder)}")
    except MemoryError as error:
        fail(f"not enough memory: {error}.{_describe_kept(folder)}")
    except Diverged as error:
        again = " The same settings would diverge again: start a new run with a lower --rate or another --seed."
        fail(f"the run diverged: {error.reason}{_describe_kept(folder, again)}", DIVERGED)
    except (NorewindError, *mistakes) as error:
        fail(str(error))


def _describe_kept(folder: Path | None, remedy: str | None = None) -> str:
    """Describe what is left of a failed run, and what to do."""
    from norewind.training.folder import last_good_checkpoint

    if folder is None:
        return ""
    if checkpoint := last_good_checkpoint(folder):
        return f" The last good checkpoint, {checkpoint}, is kept.{remedy or f' To continue: norewind resume {folder}'}"
    return f" There was no checkpoint yet.{remedy or ''}"


@contextmanager
def until_stopped(command: str, folder: Path | None = None) -> Iterator[StopOnSignal]:
    """Run a command to its end or until a signal, then end the process with the exit code that a shell expects.

    Args:
        command: the name of the command.
        folder: the run folder, if a run is being trained.

    Yields:
        A function that returns True once the command should stop.
    """
    with StopOnSignal() as stop, explain_errors(f"norewind {command}", folder, stop):
        yield stop
    raise SystemExit(stop.exit_code)


@contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal while the block runs.

    Args:
        description: the name of the work.
        total: the amount of work, if it is known.

    Yields:
        A function that updates the bar: `completed`, `total` and `description` are its keywords.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield partial(progress.update, progress.add_task(description, total=total))


def check_range(option: str, value: float | None, low: float, high: float = inf) -> None:
    """Reject a number that is outside a range or not finite.

    Args:
        option: the name of the option, for the message.
        value: the number; None if the option is not set.
        low: the smallest allowed number.
        high: the largest allowed number.

    Raises:
        SettingsError: the number is rejected.
    """
    if value is not None and not (low <= value <= high and value < inf):
        bounds = f"at least {low}" if high == inf else f"from {low:,} to {high:,}"
        raise SettingsError(f"{option} must be {'finite' if value == inf else bounds}, but it is {value}.")


def check_figure(option: str, path: Path | None) -> None:
    """Reject the file of a figure whose format is not known.

    Args:
        option: the name of the option, for the message.
        path: the file; None if the option is not set.

    Raises:
        SettingsError: the file is rejected.
    """
    if path is not None and path.suffix not in (".png", ".pdf", ".svg"):
        raise SettingsError(f"{option} must end in .png, .pdf or .svg, not {path}.")


def as_options(message: str) -> str:
    r"""Rewrite the settings that a message names, which are written as in Python, as options of the command line.

    Args:
        message: the message of an error.

    >>> as_options('skip such rows (bad="skip"), pass final=True, or name their column (key=)')
    'skip such rows (--bad skip), pass --final, or name their column (--key)'
    >>> print(as_options(r'pass delimiter=";" or delimiter="\t"'))
    pass --delimiter ';' or --delimiter $'\t'
    """

    def option(match: re.Match) -> str:
        value = match[2].strip('"')
        # A shell would interpret other characters; it reads \t as a tab only after a $.
        if re.search(r"[^\w.:=/-]", value):
            value = f"$'{value}'" if "\\" in value else f"'{value}'"
        name = f"--{match[1].replace('_', '-')}"
        return name if value in ("", "True") else f"{name} {value}"

    names = "|".join([*field_kinds(Settings), *vars(THIS_MACHINE), "continues", "damaged", "readout"])
    return re.sub(rf"""(?<![\w.,:"'])({names})=(True|\d+|"[^"]*"|(?![\w"'\[]))""", option, message)


def exit_with(message: str, code: int) -> NoReturn:
    """Print a message on standard error and end the process.

    Args:
        message: the message.
        code: the exit code.
    """
    print(message, file=sys.stderr)
    raise SystemExit(code) from None
