"""One symbol of the stream after another: their bits, and every symbol's probability."""

import numpy as np

from norewind.kernels import kernel
from norewind.learners.counting import bits
from norewind.learners.counting.coding import coded
from norewind.learners.counting.contexts import SAMPLES, expected, hash_contexts, see
from norewind.learners.counting.logistic import ONE
from norewind.learners.counting.slots import find_rows


@kernel
def learn_chunk(plan, run, work, xs, targets, members, coder, data, losses, outputs):
    """Predict and learn as many symbols as there are losses.

    Depending on its mode, the coder writes the targets' code to `data`, or reads the targets from there. If
    `outputs` has rows, the log-probabilities of all symbols are written to them first.
    """
    # Names for what the inner loop uses: to take it from a tuple at every bit would take longer than to use it.
    depth, past, ring = plan.depth, run.past, run.ring
    table, histories, weights, last, maps = run.table, run.histories, run.weights, run.last, run.maps
    rows, inputs, chosen, made, hashes = work.rows, work.inputs, work.chosen, work.made, work.hashes
    groups, starts, pairs, sets, masses = plan.groups, plan.starts, plan.pairs, plan.sets, work.masses
    for t in range(len(losses)):
        expects = take(plan, run, work, xs[t], members, t, True)
        if len(outputs) > 0:
            all_symbols(plan, run, work, expects, outputs[t])
        node, loss, rate, target = 1, 0.0, bits.rate_of(past), targets[t]
        for group in range(len(groups) - 1):
            find_rows(table, starts, pairs, group, hashes, node, True, rows)
            inner = 1
            for level in range(groups[group], groups[group + 1]):
                bit = 0
                if can_be_one(plan.symbols, depth, level, node):
                    seen = bits.hear_contexts(table, histories, rows, level, inner, inputs)
                    bits.hear_match(past, histories, expects, depth, level, node, chosen, inputs)
                    bits.hear_members(masses, node, bits.PER_CONTEXT * len(rows) + bits.OTHERS, inputs)
                    bits.choose(past, sets, plan.nodes, depth, level, node, seen, chosen)
                    one = bits.mix(weights, last, maps, inputs, chosen, made)
                    bit = coded(coder, data, one, (target >> (depth - level - 1)) & 1)
                    loss -= np.log((one if bit == 1 else ONE - one) / ONE)
                    bits.count_bit(table, histories, rows, chosen, level, inner, bit)
                    bits.weigh_bit(weights, last, maps, inputs, chosen, made, rate, bit)
                node, inner = 2 * node + bit, 2 * inner + bit
        past[SAMPLES] += 1
        targets[t], losses[t] = node - (1 << depth), loss


@kernel
def look_chunk(plan, run, work, xs, members, outputs):
    """Write the log-probabilities of what follows each symbol, as many as `outputs` has rows, without learning."""
    for t in range(len(outputs)):
        expects = take(plan, run, work, xs[t], members, t, False)
        all_symbols(plan, run, work, expects, outputs[t])


@kernel
def take(plan, run, work, x, members, t, learn):
    """See a symbol, and prepare the prediction of the next one. Returns the symbol that the match expects."""
    see(run.past, run.lines, run.ring, run.places, plan.classes, np.int64(x), learn)
    expects = expected(run.past, run.ring)
    hash_contexts(run.past, run.lines, expects, plan.features, plan.multipliers, work.features, work.hashes)
    for member in range(len(work.masses)):
        mass = work.masses[member]
        mass[:] = 0
        for symbol in range(plan.symbols):
            mass[(1 << plan.depth) + symbol] = np.exp(np.float64(members[t, member, symbol]))
        for node in range((1 << plan.depth) - 1, 0, -1):
            mass[node] = mass[2 * node] + mass[2 * node + 1]
    return expects


@kernel
def can_be_one(symbols, depth, level, node):
    """Whether any of the symbols lies behind a one at this node."""
    return ((2 * node + 1) << (depth - level - 1)) - (1 << depth) < symbols


@kernel
def all_symbols(plan, run, work, expects, out):
    """Write the log-probability of every symbol to come next."""
    depth, past, rows, inputs, chosen = plan.depth, run.past, work.rows, work.inputs, work.chosen
    totals = np.zeros(2 << depth)
    for group in range(len(plan.groups) - 1):
        first, end = plan.groups[group], plan.groups[group + 1]
        for start in range(1 << first, 2 << first):
            if (start << (depth - first)) - (1 << depth) >= plan.symbols:
                break
            find_rows(run.table, plan.starts, plan.pairs, group, work.hashes, start, False, rows)
            for level in range(first, end):
                for inner in range(1 << (level - first), 2 << (level - first)):
                    node, one = ((start - 1) << (level - first)) + inner, 0
                    if can_be_one(plan.symbols, depth, level, node):
                        seen = bits.hear_contexts(run.table, run.histories, rows, level, inner, inputs)
                        bits.hear_match(past, run.histories, expects, depth, level, node, chosen, inputs)
                        bits.hear_members(work.masses, node, bits.PER_CONTEXT * len(rows) + bits.OTHERS, inputs)
                        bits.choose(past, plan.sets, plan.nodes, depth, level, node, seen, chosen)
                        one = bits.mix(run.weights, run.last, run.maps, inputs, chosen, work.made)
                    totals[2 * node] = totals[node] + np.log((ONE - one) / ONE)
                    totals[2 * node + 1] = totals[node] + (np.log(one / ONE) if one > 0 else -np.inf)
    for symbol in range(plan.symbols):
        out[symbol] = totals[(1 << depth) + symbol]
