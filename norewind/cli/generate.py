"""`norewind generate`: write the text of a task."""

import sys
from math import inf
from typing import Annotated

import tyro

from norewind.cli.running import drop_output
from norewind.names import TaskName
from norewind.runs.settings import SettingsError, option

CHUNK = 100_000


def generate(
    name: Annotated[TaskName, tyro.conf.Positional, tyro.conf.arg(name="task")],
    *,
    samples: float = 1e6,
    seed: int = 0,
    parameters: Annotated[tuple[int, ...], option("INT ...", "the paper's")] = (),
) -> None:
    """Write the text of a task to standard output.

    Args:
        name: The task, aⁿbⁿ or distant brackets.
        samples: The number of characters to write; can be written as 1e6.
        seed: The seed of the random text.
        parameters: The parameters of the task: k l for anbn (the paper's are 1 32), s k a for brackets (1 5 10).
    """
    from norewind.names import task

    if not 0 <= samples < inf:
        raise SystemExit(f"norewind generate: --samples must be 0 or more, but it is {samples:g}.")
    if seed < 0:
        raise SettingsError(f"--seed must be at least 0, but it is {seed}.")
    try:
        text = task(name, parameters)
    except (TypeError, ValueError) as error:
        raise SystemExit(f"norewind generate: {error}") from None
    try:
        for start, chunk in zip(range(0, int(samples), CHUNK), text.chunks(seed, CHUNK), strict=False):
            sys.stdout.write(text.decode(chunk[: int(samples) - start]))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (head, for example).
        drop_output()
