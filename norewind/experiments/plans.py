"""Which runs the paper's experiments consist of, in the order in which they are made."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from norewind.experiments.settings import ALPHA, TextSetting

CELLS = ("gru", "lstm")
MEMORIES = (16, 2, 1)
"""The quick ones first: whoever interrupts has the most finished runs."""
TRUNCATION = 4
"""BPTT on the distant brackets: deliberately shorter than what has to be remembered."""


def anbn_table(*, seeds: int, characters: int) -> Iterator[TextSetting]:
    """The twelve cells of the table on aⁿbⁿ(1, 32): a whole table of one seed before the next."""
    for seed, cell, memory, method in product(range(seeds), CELLS, MEMORIES, ("bptt", "uoro")):
        yield _anbn(cell=cell, method=method, memory=memory, characters=characters, seed=seed)


def brackets_curves(*, seeds: int, characters: int) -> Iterator[TextSetting]:
    """The four curves on distant brackets (1, 5, 10)."""
    usual = {"task": "brackets", "task_arguments": (1, 5, 10), "alpha": ALPHA["brackets"]}
    for seed, (method, memory), cell in product(range(seeds), (("bptt", TRUNCATION), ("uoro", 1)), CELLS):
        yield _setting(**usual, cell=cell, method=method, memory=memory, characters=characters, seed=seed)


def anbn_controls(*, seeds: int, characters: int, more_seeds: int) -> Iterator[TextSetting]:
    """What could explain a difference to the paper in UORO's cells: ρ, precision, length; and divergence.

    Each control changes one thing in a cell of the table. The last one repeats the
    GRU's cell over `more_seeds` more, to see how many diverge.
    """
    for seed in range(seeds):
        yield _anbn(cell="gru", characters=characters, seed=seed, rho="released")
    for seed in range(seeds):
        yield _anbn(cell="gru", characters=characters, seed=seed, precision="double")
    for seed in range(seeds):
        yield _anbn(cell="gru", characters=3 * characters, seed=seed)
    for seed in range(seeds, seeds + more_seeds):
        yield _anbn(cell="gru", characters=characters, seed=seed)


def _anbn(**rest: Any) -> TextSetting:
    usual = {"task": "anbn", "task_arguments": (1, 32), "alpha": ALPHA["anbn"], "method": "uoro", "memory": 1}
    return _setting(**{**usual, **rest})


def _setting(**entries: Any) -> TextSetting:
    return TextSetting(**entries)
