"""The table of counters: 16 words of 32 bits a row, one row for a context and a group of up to four bits.

Word 0 is the context's check, so that a row of another context is noticed and started
anew. Word i is the slot of node i of the group (1 to 15): from the top, 18 bits of the
probability of a one, 8 of how often the node was seen, and 6 of its last five bits
behind a leading one. A fresh slot is all zeros, so the probability is kept with its top bit
flipped.
"""

import numpy as np

from norewind.kernels import kernel
from norewind.learners.counting.contexts import scrambled

WIDTH = 16
HISTORIES = 64
HALF = 1 << 17
_LIMIT = 250
_CELL_LIMIT = 127
_CELL_RATES = (65536 / (np.arange(1024) + 1.5)).astype(np.int64)
_RATES = (65536 / np.minimum(np.arange(256) + 1.2, _LIMIT)).astype(np.int64)


@kernel
def probability(slot):
    """The probability of a one, in 18 bits."""
    return np.int64(slot >> np.uint32(14)) ^ HALF


@kernel
def times_seen(slot):
    """How often the slot was seen, up to 255."""
    return np.int64(slot >> np.uint32(6)) & 255


@kernel
def history(slot):
    """The last five bits behind a leading one."""
    return np.int64(slot) & 63


@kernel
def learned(slot, bit):
    """The slot after this bit: p ← p + (bit − p) · max(1/(n + 1.2), 1/limit)."""
    p, n, last = probability(slot), times_seen(slot), history(slot)
    p += (((bit << 18) - p) * _RATES[n]) >> 16
    last = 2 * max(last, 1) + bit
    if last >= HISTORIES:
        last = last % 32 + 32
    return np.uint32((p ^ HALF) << 14 | min(n + 1, 255) << 6 | last)


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
