"""`norewind generate`: write the text of a task."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import tyro

from norewind.cli.endings import drop_output
from norewind.names import TaskName

CHUNK = 100_000


def generate(
    task: Annotated[TaskName, tyro.conf.Positional],
    *,
    samples: float = 1e6,
    seed: int = 0,
    parameters: Annotated[
        tuple[int, ...], tyro.conf.arg(metavar="INT ...", help_behavior_hint="(default: the paper's)")
    ] = (),
) -> None:
    """Write the text of a task to standard output.

    Args:
        task: aⁿbⁿ or distant brackets.
        samples: how many characters to write. 1e6 is understood.
        seed: which of the endless texts to write.
        parameters: of the task: k l for anbn (the paper's are 1 32), s k a for brackets (1 5 10).
    """
    if not samples >= 0:
        raise SystemExit(f"norewind generate: --samples must not be negative, but it is {samples:g}.")
    try:
        for piece in _pieces(task, parameters, seed, int(samples)):
            sys.stdout.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (head, for example).
        drop_output()


def _pieces(name: TaskName, parameters: tuple[int, ...], seed: int, samples: int) -> Iterator[str]:
    from norewind.names import task

    try:
        text = task(name, parameters)
    except (TypeError, ValueError) as error:
        raise SystemExit(f"norewind generate: {error}") from None
    whole, rest = divmod(samples, CHUNK)
    chunks = text.chunks(seed, CHUNK)
    for chunk in islice(chunks, whole):
        yield text.decode(chunk)
    if rest:
        yield text.decode(next(chunks)[:rest])
