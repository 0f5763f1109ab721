"""The sizes that a learner of symbols is compiled for."""

from typing import NamedTuple

import numpy as np

from norewind.checks import ModelError
from norewind.learners.counting import contexts, slots, tree

_SHARE_OF_HISTORY = 16


class Plan(NamedTuple):
    """`offsets` and `masks` give each context its own region of the table, so that no two ever write to one row.

    `history` is how many symbols are kept to find repeats in. `classes` says what each
    symbol is, or is None if that is not known.
    """

    symbols: int
    depth: int
    contexts: list[tuple[int, ...]]
    multipliers: np.ndarray
    members: int
    classes: np.ndarray | None
    history: int
    offsets: np.ndarray
    masks: np.ndarray

    @property
    def rows(self) -> int:
        """Rows in the table."""
        return int(self.offsets[-1]) + int(self.masks[-1]) + 1


def without_table(symbols: int, members: int, size: float, classes: np.ndarray | None) -> Plan:
    """A plan for a run of `size` bytes, a sixteenth of them for the history; the table has no rows yet."""
    chosen, depth = contexts.contexts_of(classes is not None), tree.depth_of(symbols)
    history = 64
    while 2 * history * (symbol_type(symbols).itemsize + 1) <= size / _SHARE_OF_HISTORY:
        history *= 2
    none = np.zeros(len(chosen), np.int32)
    multipliers = contexts.multipliers(chosen)
    return Plan(symbols, depth, chosen, multipliers, members, classes, history, none, none)


def with_table(plan: Plan, size: float) -> Plan:
    """Regions are powers of two, as large as `size` bytes allow, but no larger than a short context can use.

    What is left over when all are equal goes to the last contexts, which are the longest.
    """
    of_symbols = [max(context, default=0) < contexts.RECENT for context in plan.contexts]
    useful = [
        plan.depth * len(context) + 5 if counted else 31
        for context, counted in zip(plan.contexts, of_symbols, strict=True)
    ]
    row = 4 * slots.WIDTH
    fitting = [bits for bits in range(1, 31) if sum(row << min(bits, most) for most in useful) <= size]
    if not fitting:
        missing = (2 * row * len(useful) - size) / 1e6
        raise ModelError(f"counts: {missing:.3g} megabytes are missing to hold the tables. Raise megabytes.")
    bits = [min(fitting[-1], most) for most in useful]
    for last in reversed(range(len(bits))):
        if bits[last] < useful[last] and row * (sum(1 << one for one in bits) + (1 << bits[last])) <= size:
            bits[last] += 1
    sizes = np.array([1 << one for one in bits])
    offsets, masks = (np.cumsum(sizes) - sizes).astype(np.int32), (sizes - 1).astype(np.uint32)
    return plan._replace(offsets=offsets, masks=masks)


def symbol_type(symbols: int) -> np.dtype:
    """The smallest type that holds every symbol."""
    return np.dtype(np.uint8 if symbols <= 256 else np.uint16 if symbols <= 65536 else np.int32)
