"""The sizes that a learner of symbols is compiled for."""

from typing import NamedTuple

import numpy as np

from norewind.learners import contexts, slots, tree


class Plan(NamedTuple):
    """`offsets` and `masks` give each context its own region of the table, so that no two ever write to one row."""

    symbols: int
    depth: int
    contexts: list[tuple[int, ...]]
    multipliers: np.ndarray
    offsets: np.ndarray
    masks: np.ndarray
    members: int

    @property
    def rows(self) -> int:
        """Rows in the table."""
        return int(self.offsets[-1]) + int(self.masks[-1]) + 1


def planned(symbols: int, members: int, tables: int, text: bool) -> Plan:
    """Regions are powers of two, as large as `tables` bytes allow, but no larger than a short context can use."""
    chosen = contexts.contexts_of(text)
    depth = tree.depth_of(symbols)
    useful = [depth * len(context) + 5 if max(context, default=0) < contexts.RECENT else 31 for context in chosen]
    row = 4 * slots.WIDTH
    fitting = [bits for bits in range(1, 31) if sum(row << min(bits, most) for most in useful) <= tables]
    if not fitting:
        raise ValueError(f"tables is {tables} bytes, but the {len(chosen)} contexts need at least {row * len(chosen)}.")
    sizes = np.array([1 << min(fitting[-1], most) for most in useful])
    offsets, masks = (np.cumsum(sizes) - sizes).astype(np.int32), (sizes - 1).astype(np.uint32)
    return Plan(symbols, depth, chosen, contexts.multipliers(chosen), offsets, masks, members)
