"""The table of counters: 16 words of 32 bits a row, one row for a context and a group of up to four bits.

Word 0 is the context's check, so that a row of another context is noticed and started
anew. Word i is the slot of node i of the group (1 to 15). From the top it has 18 bits of the
probability of a one, 8 of how often the node was seen, and 6 of its history: the last five
bits behind a leading one. A fresh slot is all zeros, so the probability is kept with its
top bit flipped.
"""

import numpy as np

from norewind.kernels import kernel
from norewind.learners.counting.contexts import scrambled

WIDTH = 16
HISTORY_BITS, COUNT_BITS, PROBABILITY_BITS = 6, 8, 18
HISTORIES, HALF = 1 << HISTORY_BITS, 1 << (PROBABILITY_BITS - 1)
_MOST = (1 << COUNT_BITS) - 1
_RATES = (65536 / np.minimum(np.arange(_MOST + 1) + 1.08, 250)).astype(np.int64)
_CELL_LIMIT = 255
_CELL_RATES = (65536 / (np.arange(_CELL_LIMIT + 1) + 1.5)).astype(np.int64)


@kernel
def probability(slot):
    """The probability of a one, in 18 bits."""
    return np.int64(slot >> (COUNT_BITS + HISTORY_BITS)) ^ HALF


@kernel
def times_seen(slot):
    """How often the slot was seen, up to 255."""
    return np.int64(slot >> HISTORY_BITS) & _MOST


@kernel
def history(slot):
    """The last five bits behind a leading one."""
    return np.int64(slot) & (HISTORIES - 1)


@kernel
def learned(slot, bit):
    """The slot after this bit: p ← p + (bit − p)/(n + 1.08)."""
    p, n, past = probability(slot), times_seen(slot), max(history(slot), 1)
    p += (((bit << PROBABILITY_BITS) - p) * _RATES[n]) >> 16
    past = 2 * past + bit
    if past >= HISTORIES:
        past = past % (HISTORIES // 2) + HISTORIES // 2
    return np.uint32((p ^ HALF) << (COUNT_BITS + HISTORY_BITS) | min(n + 1, _MOST) << HISTORY_BITS | past)


@kernel
def find_rows(table, starts, pairs, group, start, learn, hashes, checks, rows):
    """Find each context's row for the group of bits that begins at the node `start`: one of two neighbours.

    If neither belongs to the context, the one that was used less makes room for it. Without
    `learn`, nothing changes: the last row of the table, which is always empty, stands in.
    """
    for context in range(len(hashes)):
        check = scrambled(np.uint32(hashes[context] + np.uint32(start * 0x9E3779B1)))
        first = starts[group, context] + 2 * ((np.int64(check) * pairs[group, context]) >> 32)
        # Nothing here waits for what is read, so the processor fetches the rows of all contexts at once.
        checks[context], rows[context] = check, first + (table[first, 0] != check)
    for context in range(len(hashes)):
        check, row = checks[context], rows[context]
        if table[row, 0] != check:
            # Neither is the context's own: the row is the second of the two.
            row -= times_seen(table[row - 1, 1]) <= times_seen(table[row, 1])
            if learn:
                table[row, 0] = check
                for node in range(1, WIDTH):
                    table[row, node] = 0
            else:
                row = len(table) - 1
            rows[context] = row


@kernel
def adapted(cell, bit):
    """An adaptive probability after this bit: 22 bits of it, and 10 of how often it was seen."""
    p, n = np.int64(cell >> 10), np.int64(cell & 1023)
    p += (((bit << 22) - p) * _CELL_RATES[n]) >> 16
    return np.uint32(p << 10 | min(n + 1, _CELL_LIMIT))


def fresh_cell(p: np.ndarray) -> np.ndarray:
    """Adaptive probabilities that begin like this."""
    return (p * (1 << 22)).astype(np.uint32) << 10
