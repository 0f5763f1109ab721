"""The table of counters: 8 words of 32 bits per row, and one row per context and group of up to three bits.

Word 0 is the context's check, so that a row of another context is noticed and
reset. Word i is the slot of node i of the group (1 to 7). From the top it has 18 bits of the
probability of a one, 8 of how often the node was seen, and 6 of its history: the last five
bits after a leading one. A fresh slot is all zeros, so the probability is kept with its
top bit flipped.
"""

import numpy as np

from norewind.engines.kernels import kernel, prefetch
from norewind.learners.counting.contexts import scramble

LEVELS = 3
WIDTH = 1 << LEVELS
HISTORY_BITS, COUNT_BITS, PROBABILITY_BITS = 6, 8, 18
HISTORIES, HALF = 1 << HISTORY_BITS, 1 << (PROBABILITY_BITS - 1)
_MAX_COUNT = (1 << COUNT_BITS) - 1
_RATES = (65536 / np.minimum(np.arange(_MAX_COUNT + 1) + 1.08, 250)).astype(np.int32)
_CELL_LIMIT = 1023
_CELL_RATES = (65536 / (np.arange(_CELL_LIMIT + 1) + 1.5)).astype(np.int32)


@kernel
def probability(slot):
    """Return the probability of a one, in 18 bits."""
    return np.int64(slot >> (COUNT_BITS + HISTORY_BITS)) ^ HALF


@kernel
def times_seen(slot):
    """Return how often the slot was seen, up to 255."""
    return np.int64(slot >> HISTORY_BITS) & _MAX_COUNT


@kernel
def history(slot):
    """Return the last five bits after a leading one."""
    return np.int64(slot) & (HISTORIES - 1)


@kernel
def learn_bit(slot, bit):
    """Return the slot after a bit: p ← p + (bit − p)/(n + 1.08).

    Args:
        slot: a probability, how often it was seen, and the last bits, in one integer.
        bit: the bit that occurred, 0 or 1.
    """
    p, n, past = probability(slot), times_seen(slot), max(history(slot), 1)
    p += (((bit << PROBABILITY_BITS) - p) * _RATES[n]) >> 16
    past = 2 * past + bit
    past = past & (HISTORIES - 1) | past >> HISTORY_BITS << (HISTORY_BITS - 1)
    return np.uint32((p ^ HALF) << (COUNT_BITS + HISTORY_BITS) | min(n + 1, _MAX_COUNT) << HISTORY_BITS | past)


@kernel
def seek_pairs(table, starts, pairs, group, start, hashes, checks, firsts):
    """Compute where each context's pair of rows for a group of bits is, and have the processor fetch it.

    Args:
        table: the table of counters.
        starts: the first row of each group and context.
        pairs: the number of pairs of rows of each group and context.
        group: the group of bits.
        start: the node at which the group begins.
        hashes: the hash of each context.
        checks: where to write the check of each context.
        firsts: where to write the first row of each pair.
    """
    for context in range(len(hashes)):
        check = scramble(np.uint32(hashes[context] + np.uint32(start * 0x9E3779B1)))
        first = starts[group, context] + 2 * ((np.int64(check) * pairs[group, context]) >> 32)
        prefetch(table, first)
        checks[context], firsts[context] = check, first


@kernel
def find_rows(table, checks, firsts, learn, rows):
    """Find each context's row in its pair.

    If neither row belongs to the context, the less used one is replaced. Without
    `learn`, nothing changes: the last row of the table, which is always empty, is used instead.

    Args:
        table: the table of counters.
        checks: the check of each context.
        firsts: the first row of each pair.
        learn: whether rows may be replaced.
        rows: where to write the row of each context.
    """
    for context in range(len(checks)):
        check, first = checks[context], firsts[context]
        row = first + (table[first, 0] != check)
        if table[row, 0] != check:
            row = first + (times_seen(table[first, 1]) > times_seen(table[first + 1, 1]))
            if learn:
                table[row, 0] = check
                for node in range(1, WIDTH):
                    table[row, node] = 0
            else:
                row = len(table) - 1
        rows[context] = row


@kernel
def adapt(cell, bit):
    """Return an adaptive probability after a bit.

    Args:
        cell: 22 bits of the probability, and 10 of how often it was seen.
        bit: the bit that occurred, 0 or 1.
    """
    p, n = np.int64(cell >> 10), np.int64(cell & 1023)
    p += (((bit << 22) - p) * _CELL_RATES[n]) >> 16
    return np.uint32(p << 10 | min(n + 1, _CELL_LIMIT))


def init_cell(p: np.ndarray) -> np.ndarray:
    """Create adaptive probabilities with these initial values."""
    return (p * (1 << 22)).astype(np.uint32) << 10
