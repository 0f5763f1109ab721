"""The sizes of a learner of symbols, and the creation of runs of these sizes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.core.checks import ModelError
from norewind.engines.aligned_arrays import aligned_array, aligned_copy
from norewind.learners.counting import bits, contexts, table

_SHARE_OF_HISTORY = 16


class CountsPlan(NamedTuple):
    """The constants of a learner of symbols.

    A symbol is a path of `depth` bits from the root of a binary tree, the highest bit first. A
    node is named by the bits that lead to it, after a leading one: the root is 1, the
    children of node c are 2c and 2c + 1, and symbol s is the leaf 2^depth + s. The levels
    are in groups of at most three, each of which has one row of the table for each context.

    Attributes:
        symbols: the number of symbols.
        depth: the number of bits of a symbol.
        nodes: the number of nodes that are distinguished when selecting weights.
        groups: group g has levels `groups[g]` to `groups[g + 1]`.
        features: the features of each context in text, then in binary data.
        multipliers: the random numbers of each context.
        classes: the class of each symbol.
        starts: the first row of each group and context in the table. Regions never overlap.
        pairs: the number of pairs of rows in each region.
        sets: the first row of each set of weights.
        hashed: what hashes select: the number of pairs of symbols, the first map of words, and the number of these at
            each level.
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
    hashed: np.ndarray


class CountsRun(NamedTuple):
    """The whole state of counts, as arrays whose sizes never change.

    Attributes:
        table: the table of counters (see `table`).
        past: a summary of the past (see `contexts`).
        lines: the last two lines.
        ring: the symbols of the past.
        places: where each hashed run of symbols was last seen.
        repeats: how often symbols of binary data repeated at each distance.
        followers: the last two symbols that followed each symbol of binary data.
        histories: for each level and context, and for the match, the probability of a one after a history.
        weights: the weights of the first layer (see `bits`).
        uses: how often each of their rows was used.
        last: the weights of the second layer.
        maps: the adaptive maps.
    """

    table: np.ndarray
    past: np.ndarray
    lines: np.ndarray
    ring: np.ndarray
    places: np.ndarray
    repeats: np.ndarray
    followers: np.ndarray
    histories: np.ndarray
    weights: np.ndarray
    uses: np.ndarray
    last: np.ndarray
    maps: np.ndarray


class Scratch(NamedTuple):
    """Scratch arrays of one call.

    Attributes:
        features: the features of the past.
        hashes: the hash of each context.
        checks: the check of each context's row.
        firsts: the first row of each context's pair of rows.
        rows: the row of each context.
        masses: the probability of every node by each expert.
        inputs: the mixer inputs.
        chosen: the selected rows of weights and of the map.
        predictions: the log-odds and the probability of each set.
    """

    features: np.ndarray
    hashes: np.ndarray
    checks: np.ndarray
    firsts: np.ndarray
    rows: np.ndarray
    masses: np.ndarray
    inputs: np.ndarray
    chosen: np.ndarray
    predictions: np.ndarray


def make_plan(
    symbols: int, experts: int, megabytes: float, classes: Sequence[int] | np.ndarray | None
) -> tuple[CountsPlan, CountsRun]:
    """Plan a run of limited size.

    Args:
        symbols: the number of symbols.
        experts: the number of other predictions that are mixed in.
        megabytes: the maximum size of a run, in millions of bytes.
        classes: the class of each symbol; None unless the stream is text.

    Returns:
        The plan, and the initial run without its table.

    Raises:
        ModelError: there are too few megabytes.
    """
    chosen, depth = contexts.contexts_of(classes is not None), (symbols - 1).bit_length()
    number = -(-depth // table.LEVELS)
    groups = np.array([-(-depth * i // number) for i in range(number + 1)])
    nodes = 1 << depth if depth <= 8 else 32 * depth
    recent, of_pairs = min(symbols, bits.RECENT_ROWS), min(symbols**2, bits.PAIR_ROWS)
    of_kinds = 1 if classes is None else bits.KIND_ROWS
    sizes = np.array([recent, of_kinds, 3 * of_kinds, of_pairs, 1])
    sets = np.cumsum([0, 4 * nodes, *depth * sizes])
    hashed = np.array([of_pairs, recent * nodes, min(recent * nodes // depth, bits.WORD_MAPS)])
    none = np.zeros((number, len(chosen)), np.int64)
    kinds = np.zeros(symbols, np.int32) if classes is None else np.asarray(classes, np.int32)
    plan = CountsPlan(symbols, depth, nodes, groups, *contexts.features_of(chosen), kinds, none, none, sets, hashed)
    run = _without_table(plan, experts, megabytes * 1e6)
    size = megabytes * 1e6 - sum(leaf.nbytes for leaf in run)
    return _with_regions(plan, chosen, size), run


def init_counts(plan: CountsPlan, start: CountsRun) -> CountsRun:
    """Create a run that has seen nothing.

    Args:
        plan: the sizes.
        start: the initial run without its table.
    """
    rows = int(plan.starts[-1, -1] + 2 * plan.pairs[-1, -1]) + 1
    return with_aligned_tables(
        CountsRun(aligned_array(np.zeros, (rows, table.WIDTH), np.uint32), *(leaf.copy() for leaf in start[1:]))
    )


def with_aligned_tables(run: CountsRun) -> CountsRun:
    """Return the run with its tables aligned to the lines of the processor's cache; they may not be after a restore.

    A pair of rows of the table of counters fills one line, and so does an adaptive map.
    """
    return run._replace(table=aligned_copy(run.table), maps=aligned_copy(run.maps))


def allocate_scratch(plan: CountsPlan, run: CountsRun, experts: int) -> Scratch:
    """Allocate the scratch arrays of a call.

    Args:
        plan: the sizes.
        run: a run of these sizes.
        experts: the number of other predictions that are mixed in.
    """
    count = len(plan.multipliers)
    return Scratch(
        np.zeros(contexts.FEATURES, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros((experts, 2 << plan.depth)),
        np.zeros(run.weights.shape[1], np.int32),
        np.zeros(bits.CHOSEN, np.int64),
        np.zeros((bits.SETS + 1, 2), np.int64),
    )


def _without_table(plan: CountsPlan, experts: int, size: float) -> CountsRun:
    kind = np.dtype(np.uint8 if plan.symbols <= 256 else np.uint16 if plan.symbols <= 65536 else np.int32)
    history = 64
    while 2 * history * (kind.itemsize + 2) <= size / _SHARE_OF_HISTORY:
        history *= 2
    count = len(plan.multipliers)
    start = [0.7 / count] * (bits.PER_CONTEXT * count) + [0.25] * bits.OTHERS + [0.3] * experts
    start += [0] * (-len(start) % bits.VECTORS)
    guesses = np.array([_guess(history) for history in range(table.HISTORIES)])
    reliability = 1 - 0.5 / (np.arange(table.HISTORIES) + 1.5)
    histories = table.init_cell(np.array([*[guesses] * count, reliability]))
    return CountsRun(
        np.zeros((0, table.WIDTH), np.uint32),
        np.zeros(contexts.PAST, np.int64),
        np.zeros((2, contexts.LINE_SYMBOLS), np.int32),
        np.zeros(history, kind),
        np.zeros((len(contexts.MATCH_LENGTHS), history // 4), np.uint32),
        np.zeros(contexts.DISTANCES, np.int32),
        np.zeros(256, np.int32),
        np.tile(histories, (plan.depth, 1, 1)),
        np.tile((np.array(start) * bits.WEIGHT).astype(np.int32), (int(plan.sets[-1]), 1)),
        np.zeros(int(plan.sets[-1]), np.int32),
        np.full((int(plan.sets[1]), bits.SETS), bits.WEIGHT // bits.SETS, np.int32),
        np.tile(bits.INITIAL_MAP, (int(plan.hashed[1] + plan.depth * plan.hashed[2]), 1)),
    )


def _with_regions(plan: CountsPlan, chosen: dict[tuple[int, ...], float], size: float) -> CountsPlan:
    """Distribute `size` bytes among the contexts, but give no context more than it can use.

    A symbol's later bits have more possible starting nodes than its first bits, and get more rows.
    """
    shares = np.where(np.arange(len(plan.starts)) == 0, 1.0, 1.1)[:, None] * list(chosen.values())
    useful = [[contexts.useful_rows(one, plan.symbols) * 2.0**level for one in chosen] for level in plan.groups[:-1]]

    def pairs_of(share: float) -> np.ndarray:
        return np.ceil(np.minimum(share * shares, useful) / 2).astype(np.int64)

    def fits(pairs: np.ndarray) -> bool:
        return (2 * pairs.sum() + 2) * 4 * table.WIDTH <= size

    low, high = 1.0, size
    if not fits(pairs_of(low)):
        missing = (2 * pairs_of(low).sum() + 2) * 4 * table.WIDTH - size
        raise ModelError(f"Counts: {missing / 1e6:.3g} more megabytes are needed for the tables. Raise megabytes.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(pairs_of(middle)) else (low, middle)
    pairs = pairs_of(low)
    starts = 2 * (np.cumsum(pairs.ravel()) - pairs.ravel()).reshape(pairs.shape)
    return plan._replace(starts=starts, pairs=pairs)


def _guess(history: int) -> float:
    """Estimate the probability of a one from a history, by a recency-weighted count of its bits."""
    ones, total, weight = 0.4, 0.8, 1.0
    for place in range(history.bit_length() - 1):
        ones, total = ones + weight * (history >> place & 1), total + weight
        weight *= 0.9
    return ones / total
