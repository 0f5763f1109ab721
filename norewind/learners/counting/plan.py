"""The sizes of a learner of symbols, and a run of these sizes."""

from typing import NamedTuple

import numpy as np

from norewind.checks import ModelError
from norewind.learners.counting import bits, contexts, slots

_SHARE_OF_HISTORY = 16
_LINE_OF_CACHE = 64


class Plan(NamedTuple):
    """What never changes.

    A symbol is a path of `depth` bits from the root of a binary tree, the highest bit first. A
    node is named by the bits that lead to it behind a leading one: the root is 1, the
    children of node c are 2c and 2c + 1, and symbol s is the leaf 2^depth + s. The levels
    come in groups of at most four, each of which has one row of the table for each context:
    group g has levels `groups[g]` to `groups[g + 1]`. `starts` and `pairs` give each context
    and group a region of its own, so that no two ever write to one row. `sets` is the first
    row of each set of weights.
    """

    symbols: int
    depth: int
    nodes: int
    groups: np.ndarray
    features: np.ndarray
    multipliers: np.ndarray
    classes: np.ndarray
    starts: np.ndarray
    pairs: np.ndarray
    sets: np.ndarray


class CountsRun(NamedTuple):
    """Everything that counts know, as arrays whose sizes never change.

    The table of counters (see `slots`); the past in short, the last two lines, the symbols
    of the past in a ring, and where each hashed run of symbols was last seen (see
    `contexts`); for each level and context, and for the match, the probability of a one
    after a history; the weights of both layers, and the adaptive maps (see `bits`).
    """

    table: np.ndarray
    past: np.ndarray
    lines: np.ndarray
    ring: np.ndarray
    places: np.ndarray
    histories: np.ndarray
    weights: np.ndarray
    last: np.ndarray
    maps: np.ndarray


class Work(NamedTuple):
    """Scratch: the contexts' features, hashes, checks and rows, members' masses of nodes, and a bit's mixing."""

    features: np.ndarray
    hashes: np.ndarray
    checks: np.ndarray
    rows: np.ndarray
    masses: np.ndarray
    inputs: np.ndarray
    chosen: np.ndarray
    made: np.ndarray


def planned(symbols: int, members: int, megabytes: float, classes: np.ndarray | None) -> tuple[Plan, CountsRun]:
    """A plan for a run of at most this many megabytes, and what it starts with, except for the table's memory."""
    chosen, depth = contexts.contexts_of(classes is not None), (symbols - 1).bit_length()
    number = -(-depth // 4)
    groups = np.array([-(-depth * i // number) for i in range(number + 1)])
    nodes = 1 << depth if depth <= 8 else 32 * depth
    recent, of_pairs = min(symbols, bits.RECENT_ROWS), min(symbols**2, bits.PAIR_ROWS)
    of_kinds = 1 if classes is None else bits.KIND_ROWS
    sizes = np.array([recent, of_kinds, 3 * of_kinds, of_pairs, 1])
    sets = np.cumsum([0, 4 * nodes, *depth * sizes])
    none = np.zeros((number, len(chosen)), np.int64)
    kinds = np.zeros(symbols, np.int32) if classes is None else classes
    plan = Plan(symbols, depth, nodes, groups, *contexts.features_of(chosen), kinds, none, none, sets)
    run = _without_table(plan, members, megabytes * 1e6)
    size = megabytes * 1e6 - sum(leaf.nbytes for leaf in run)
    return _with_regions(plan, chosen, size), run


def fresh(plan: Plan, start: CountsRun) -> CountsRun:
    """Nothing has been seen."""
    rows = int(plan.starts[-1, -1] + 2 * plan.pairs[-1, -1]) + 1
    return CountsRun(empty_table(rows), *(leaf.copy() for leaf in start[1:]))


def empty_table(rows: int) -> np.ndarray:
    """Rows of zeros, each of which is one line of the processor's cache."""
    words = np.zeros((rows + 1) * slots.WIDTH, np.uint32)
    first = -words.ctypes.data % _LINE_OF_CACHE // words.itemsize
    return words[first : first + rows * slots.WIDTH].reshape(rows, slots.WIDTH)


def aligned(table: np.ndarray) -> np.ndarray:
    """The table itself, or a copy in which every row is one line of the cache, as a restored one may not be."""
    if table.ctypes.data % _LINE_OF_CACHE == 0:
        return table
    copy = empty_table(len(table))
    copy[:] = table
    return copy


def work_of(plan: Plan, run: CountsRun, members: int) -> Work:
    """Scratch for a call."""
    count = len(plan.multipliers)
    return Work(
        np.zeros(contexts.FEATURES, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros(count, np.int64),
        np.zeros((members, 2 << plan.depth)),
        np.zeros(run.weights.shape[1] - 1, np.int32),
        np.zeros(bits.CHOSEN, np.int64),
        np.zeros((bits.SETS + 1, 2), np.int64),
    )


def _without_table(plan: Plan, members: int, size: float) -> CountsRun:
    kind = np.dtype(np.uint8 if plan.symbols <= 256 else np.uint16 if plan.symbols <= 65536 else np.int32)
    history = 64
    while 2 * history * (kind.itemsize + 1) <= size / _SHARE_OF_HISTORY:
        history *= 2
    count = len(plan.multipliers)
    start = [0.7 / count] * (bits.PER_CONTEXT * count) + [0.25] * bits.OTHERS + [0.3] * members + [0]
    guesses = np.array([_guess(history) for history in range(slots.HISTORIES)])
    reliability = 1 - 0.5 / (np.arange(slots.HISTORIES) + 1.5)
    histories = slots.fresh_cell(np.array([*[guesses] * count, reliability]))
    recent = min(plan.symbols, bits.RECENT_ROWS)
    return CountsRun(
        np.zeros((0, slots.WIDTH), np.uint32),
        np.zeros(contexts.PAST, np.int64),
        np.zeros((2, contexts.LINE), np.int32),
        np.zeros(history, kind),
        np.zeros(history // 4, np.uint32),
        np.tile(histories, (plan.depth, 1, 1)),
        np.tile((np.array(start) * bits.WEIGHT).astype(np.int32), (int(plan.sets[-1]), 1)),
        np.full((int(plan.sets[1]), bits.SETS), bits.WEIGHT // bits.SETS, np.int32),
        np.tile(bits.FRESH_MAP, (recent * plan.nodes, 1)),
    )


def _with_regions(plan: Plan, chosen: dict[tuple[int, ...], float], size: float) -> Plan:
    """Share `size` bytes out, but give no context more than it can use.

    A symbol's later bits have more nodes to begin from than its first, and get more rows.
    """
    shares = np.where(np.arange(len(plan.starts)) == 0, 1.0, 1.2)[:, None] * list(chosen.values())
    useful = [[contexts.useful_rows(one, plan.symbols) * 2.0**level for one in chosen] for level in plan.groups[:-1]]

    def pairs_of(share: float) -> np.ndarray:
        return np.ceil(np.minimum(share * shares, useful) / 2).astype(np.int64)

    def fits(pairs: np.ndarray) -> bool:
        return (2 * pairs.sum() + 2) * 4 * slots.WIDTH <= size

    low, high = 1.0, size
    if not fits(pairs_of(low)):
        missing = (2 * pairs_of(low).sum() + 2) * 4 * slots.WIDTH - size
        raise ModelError(f"counts: {missing / 1e6:.3g} megabytes are missing to hold the tables. Raise megabytes.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(pairs_of(middle)) else (low, middle)
    pairs = pairs_of(low)
    starts = 2 * (np.cumsum(pairs.ravel()) - pairs.ravel()).reshape(pairs.shape)
    return plan._replace(starts=starts, pairs=pairs)


def _guess(history: int) -> float:
    """What a recency-weighted count of the bits says."""
    ones, total, weight = 0.4, 0.8, 1.0
    for place in range(history.bit_length() - 1):
        ones, total = ones + weight * (history >> place & 1), total + weight
        weight *= 0.9
    return ones / total
