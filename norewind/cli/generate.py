"""`norewind generate`: write the text of a task."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Literal

import tyro

from norewind.cli.endings import drop_output

CHUNK = 100_000


def generate(
    task: Annotated[Literal["anbn", "brackets"], tyro.conf.Positional],
    *,
    characters: float = 1e6,
    seed: int = 0,
    parameters: tuple[int, ...] = (),
) -> None:
    """Write the text of a task to the standard output.

    Args:
        task: aⁿbⁿ or distant brackets.
        characters: how many characters to write (1e6 is understood).
        seed: which of the endless texts to write.
        parameters: the task's own, by default those of the paper: k l = 1 32 for anbn, s k a = 1 5 10 for brackets.
    """
    if not characters >= 0:
        raise SystemExit(f"norewind generate: --characters must not be negative, but it is {characters:g}.")
    try:
        for piece in _pieces(task, parameters, seed, int(characters)):
            sys.stdout.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (head, say).
        drop_output()


def _pieces(task: str, parameters: tuple[int, ...], seed: int, characters: int) -> Iterator[str]:
    from norewind import tasks

    try:
        text = {"anbn": tasks.anbn, "brackets": tasks.distant_brackets}[task](*parameters)
    except (TypeError, ValueError) as error:
        raise SystemExit(f"norewind generate: {error}") from None
    whole, rest = divmod(characters, CHUNK)
    chunks = text.chunks(seed, CHUNK)
    for chunk in islice(chunks, whole):
        yield text.decode(chunk)
    if rest:
        yield text.decode(next(chunks)[:rest])
