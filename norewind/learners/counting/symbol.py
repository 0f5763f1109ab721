"""The loops over the symbols of a stream: their bits, and the probabilities of all symbols."""

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.counting import bits
from norewind.learners.counting.coding import code_bit
from norewind.learners.counting.contexts import add_symbol, expected_symbol, hash_contexts, keep_in_range
from norewind.learners.counting.logistic import ONE
from norewind.learners.counting.table import find_rows, seek_pairs


@kernel
def learn_chunk(plan, run, work, xs, targets, probabilities, coder, data, losses, outputs):
    """Predict and learn as many symbols as there are losses.

    Args:
        plan: the constants.
        run: the run, changed in place.
        work: scratch arrays.
        xs: the symbols.
        targets: the symbols that follow them; written when decoding.
        probabilities: those of the experts (samples, experts, symbols).
        coder: the state of the coder, which writes the targets' code to `data`, or reads the targets from it.
        data: the code.
        losses: where to write the losses, in nats.
        outputs: where to write the log-probabilities of all symbols; without rows, they are not computed.
    """
    # Unpacked here, because Numba counts references whenever an array is taken from a tuple.
    symbols, depth, nodes, groups, used, multipliers, classes, starts, pairs, sets, hashed = plan
    table, past, lines, ring, places, repeats, followers, histories, weights, uses, last, maps = run
    features, hashes, checks, firsts, rows, masses, inputs, chosen, predictions = work
    keep_in_range(past, symbols)
    for t in range(len(losses)):
        add_symbol(past, lines, ring, places, repeats, followers, classes, np.int64(xs[t]), True)
        expects = expected_symbol(past, ring)
        hash_contexts(past, lines, ring, followers, expects, used, multipliers, features, hashes)
        sum_below_nodes(probabilities, t, depth, masses)
        if len(outputs) > 0:
            all_symbols(plan, run, work, expects, outputs[t])
        seek_pairs(table, starts, pairs, 0, 1, hashes, checks, firsts)
        node, likelihood, target = 1, 1.0, targets[t]
        for group in range(len(groups) - 1):
            find_rows(table, checks, firsts, True, rows)
            inner = 1
            for level in range(groups[group], groups[group + 1]):
                bit, uncertain = 0, can_be_one(symbols, depth, level, node)
                if uncertain:
                    bits.write_context_inputs(table, histories, rows, level, inner, inputs)
                    bits.write_match_inputs(past, histories, expects, depth, level, node, chosen, inputs)
                    bits.write_expert_inputs(masses, node, bits.PER_CONTEXT * len(rows) + bits.OTHERS, inputs)
                    bits.choose_rows(past, maps, sets, hashed, nodes, depth, level, node, chosen)
                    one = bits.predict_bit(weights, uses, last, maps, inputs, chosen, predictions)
                    bit = code_bit(coder, data, one, (target >> (depth - level - 1)) & 1)
                    likelihood *= (one if bit == 1 else ONE - one) / ONE
                if level + 1 == groups[group + 1] < depth:
                    # Learning from the bit gives the processor time to fetch the rows of the next group.
                    seek_pairs(table, starts, pairs, group + 1, 2 * node + bit, hashes, checks, firsts)
                if uncertain:
                    bits.learn_contexts(table, histories, rows, level, inner, bit)
                    bits.learn_match(histories, chosen, level, bit)
                    bits.learn_mixer(weights, uses, last, maps, inputs, chosen, predictions, bit)
                node, inner = 2 * node + bit, 2 * inner + bit
        targets[t], losses[t] = node - (1 << depth), -np.log(likelihood)


@kernel
def predict_chunk(plan, run, work, xs, probabilities, outputs):
    """Write the log-probabilities of the symbol after each symbol, without learning.

    Args:
        plan: the constants.
        run: the run; only its past changes.
        work: scratch arrays.
        xs: the symbols.
        probabilities: those of the experts (samples, experts, symbols).
        outputs: where to write the log-probabilities; its length is the number of symbols to process.
    """
    keep_in_range(run.past, plan.symbols)
    for t in range(len(outputs)):
        add_symbol(
            run.past, run.lines, run.ring, run.places, run.repeats, run.followers, plan.classes, np.int64(xs[t]), False
        )
        expects = expected_symbol(run.past, run.ring)
        hash_contexts(
            run.past,
            run.lines,
            run.ring,
            run.followers,
            expects,
            plan.features,
            plan.multipliers,
            work.features,
            work.hashes,
        )
        sum_below_nodes(probabilities, t, plan.depth, work.masses)
        all_symbols(plan, run, work, expects, outputs[t])


@kernel
def sum_below_nodes(probabilities, t, depth, masses):
    """Write the probability of every node of the tree by each expert: the sum over the symbols below it.

    Args:
        probabilities: those of the experts (samples, experts, symbols).
        t: the number of the sample.
        depth: the number of bits of a symbol.
        masses: where to write the probabilities.
    """
    for expert in range(len(masses)):
        for symbol in range(probabilities.shape[2]):
            masses[expert, (1 << depth) + symbol] = probabilities[t, expert, symbol]
        for node in range((1 << depth) - 1, 0, -1):
            masses[expert, node] = masses[expert, 2 * node] + masses[expert, 2 * node + 1]


@kernel
def can_be_one(symbols, depth, level, node):
    """Return whether any symbol has a one at this node.

    Args:
        symbols: the number of symbols.
        depth: the number of bits of a symbol.
        level: the level of the node.
        node: the node, named by the bits that lead to it.
    """
    return ((2 * node + 1) << (depth - level - 1)) - (1 << depth) < symbols


@kernel
def all_symbols(plan, run, work, expects, out):
    """Write the log-probability of every symbol to be the next one.

    Args:
        plan: the constants.
        run: the run, which stays unchanged.
        work: scratch arrays.
        expects: the symbol that the match predicts; -1 if there is no match.
        out: where to write the log-probabilities.
    """
    depth, past, rows = plan.depth, run.past, work.rows
    inputs, chosen, predictions = work.inputs, work.chosen, work.predictions
    likelihoods = np.zeros(2 << depth)
    likelihoods[1] = 1
    for group in range(len(plan.groups) - 1):
        first, end = plan.groups[group], plan.groups[group + 1]
        for start in range(1 << first, 2 << first):
            if (start << (depth - first)) - (1 << depth) >= plan.symbols:
                break
            seek_pairs(run.table, plan.starts, plan.pairs, group, start, work.hashes, work.checks, work.firsts)
            find_rows(run.table, work.checks, work.firsts, False, rows)
            for level in range(first, end):
                for inner in range(1 << (level - first), 2 << (level - first)):
                    node, one = ((start - 1) << (level - first)) + inner, 0
                    if can_be_one(plan.symbols, depth, level, node):
                        bits.write_context_inputs(run.table, run.histories, rows, level, inner, inputs)
                        bits.write_match_inputs(past, run.histories, expects, depth, level, node, chosen, inputs)
                        bits.write_expert_inputs(work.masses, node, bits.PER_CONTEXT * len(rows) + bits.OTHERS, inputs)
                        bits.choose_rows(past, run.maps, plan.sets, plan.hashed, plan.nodes, depth, level, node, chosen)
                        one = bits.predict_bit(run.weights, run.uses, run.last, run.maps, inputs, chosen, predictions)
                    likelihoods[2 * node] = likelihoods[node] * ((ONE - one) / ONE)
                    likelihoods[2 * node + 1] = likelihoods[node] * (one / ONE)
    for symbol in range(plan.symbols):
        out[symbol] = np.log(likelihoods[(1 << depth) + symbol])
