"""Prediction of one bit: mixes the counters of every context, the match and the experts into one probability.

Logistic mixing in two layers: several sets of weights, in each of which the context selects a row;
weights for their results; then two adaptive maps, selected by the last symbol and by the
current word. Every set of the first layer makes its own prediction and learns from its own
error. The last set has one row for each level of the tree; rows of the other sets start as a
copy of it when they are first used.

Everything learned belongs to at most one level of the tree of bits. So learning from
a symbol's first bits does not change the predictions of its last bits, and the
probabilities of all symbols can be computed at once.
"""

import numpy as np

from norewind.engines.kernels import kernel, prefetch
from norewind.learners.counting.contexts import LATEST, LENGTH, SHAPE, TONE, WORD, scramble
from norewind.learners.counting.logistic import INPUT, LOGIT, ONE, clip_logit, probabilities, squash, stretch
from norewind.learners.counting.table import HALF, PROBABILITY_BITS, adapt, history, learn_bit, probability, times_seen

SETS = 6
GENERAL = SETS - 1
# The entries of `chosen`: the rows of the sets of weights; the rows of the maps, and the place in them; the match.
MAP, WORD_MAP, KNOT, SHARE, MATCH, BUCKET, CHOSEN = range(SETS, SETS + 7)
# The number of inputs per context, and of other inputs: two of the match and a constant.
PER_CONTEXT, OTHERS = 3, 3
# The number of rows of weights selected by the last symbol, by the last two, and by the kinds of the last ones.
RECENT_ROWS, PAIR_ROWS, KIND_ROWS = 256, 512, 256
BUCKETS, KNOTS, WORD_MAPS = 32, 16, 2048
# The unit of weights, and the multiple to which their rows are padded with zeros, for the processor's vectors.
WEIGHT, VECTORS = 1 << 20, 32

_BIAS = int(0.3 * INPUT)
_MAP_RATE, _LAST_RATE = int(0.02 * 65536), int(0.001 * 65536)
# The learning rate of a row of weights decreases with the number of its uses, here in steps of 64.
_MAX_USES, _USES_BITS = 65535, 6
_RATES = ((0.002 + 0.013 / (1 + np.arange(1024) * 64 / 500)) * 65536).astype(np.int32)
_REACH, _KNOT_BITS = 15 * LOGIT // 2, 12
INITIAL_MAP = np.rint(probabilities(np.arange(KNOTS) - 7.5) * (ONE << 6)).astype(np.int32)
# The step of a weight is a rate (16 bits) times an error (16 bits), of which 25 bits are kept, times an input (8 bits).
# A weight has 20 bits; 16 of them are used in sums, which must fit into 32 bits.
_STEP_CUT, _WEIGHT_CUT = 7, 4
_SHIFT, _LAST_SHIFT = 16 + 16 - _STEP_CUT + 8 - 20, 16 + 16 + 12 - 20
_ROUND, _LAST_ROUND = 1 << (_SHIFT - 1), 1 << (_LAST_SHIFT - 1)
# Gives even odds to a node that no symbol reaches, and is far below any mass that matters.
_TINY_MASS = 1e-30


@kernel
def write_context_inputs(table, histories, rows, level, inner, inputs):
    """Write the mixer inputs of each context at a node. For a new context, only its history contributes.

    Args:
        table: the table of counters.
        histories: the adaptive probabilities after each history (level, context, history).
        rows: the row of each context in the table.
        level: the level of the node.
        inner: the number of the node within its group.
        inputs: where to write the inputs.
    """
    for k in range(len(rows)):
        slot, first = table[rows[k], inner], PER_CONTEXT * k
        p, n = probability(slot), times_seen(slot)
        inputs[first] = stretch(p >> (PROBABILITY_BITS - 12))
        inputs[first + 1] = stretch(histories[level, k, history(slot)] >> 20)
        inputs[first + 2] = (p - HALF) * min(n, 30) * (INPUT // 4) >> PROBABILITY_BITS


@kernel
def write_match_inputs(past, histories, expects, depth, level, node, chosen, inputs):
    """Write the mixer inputs of the match, based on how often matches of this length were right, and a constant.

    Args:
        past: the summary of the past.
        histories: the adaptive probabilities; the last entry of a level is that of the match.
        expects: the symbol that the match predicts; -1 if there is no match.
        depth: the number of bits of a symbol.
        level: the level of the node.
        node: the node, named by the bits that lead to it.
        chosen: where to write the predicted bit and the class of the length.
        inputs: where to write the inputs.
    """
    contexts = histories.shape[1] - 1
    first, symbol = PER_CONTEXT * contexts, expects + (1 << depth)
    length, match, sign, bucket = past[LENGTH], 0, 0, 0
    if expects >= 0 and symbol >> (depth - level) == node:
        bit = symbol >> (depth - level - 1) & 1
        match, sign, bucket = 1 + bit, 2 * bit - 1, _bucket(length)
    right = np.int64(histories[level, contexts, bucket] >> 10)
    inputs[first] = sign * stretch(right >> 10)
    inputs[first + 1] = sign * (right - (1 << 21)) >> 13
    inputs[first + 2] = _BIAS
    chosen[MATCH], chosen[BUCKET] = match, bucket


@kernel
def _bucket(length):
    """Return one of 32 classes of match lengths; short lengths have the finest classes."""
    classes = length if length < 16 else 12 + length // 4 if length < 32 else 18 + length // 16
    return min(classes, BUCKETS - 1)


@kernel
def write_expert_inputs(masses, node, first, inputs):
    """Write each expert's log-odds of a one.

    Args:
        masses: the probability of every node by each expert.
        node: the node, named by the bits that lead to it.
        first: the place of the first expert's input.
        inputs: where to write the inputs.
    """
    for expert in range(len(masses)):
        odds = np.log(masses[expert, 2 * node + 1] + _TINY_MASS) - np.log(masses[expert, 2 * node] + _TINY_MASS)
        inputs[first + expert] = 0 if np.isnan(odds) else clip_logit(np.int64(odds * LOGIT)) // (LOGIT // INPUT)


@kernel
def choose_rows(past, maps, sets, hashed, nodes, depth, level, node, chosen):
    """Select the row of each set of weights, and of each adaptive map, and have the processor fetch these maps.

    Args:
        past: the summary of the past.
        maps: the adaptive maps.
        sets: the first row of each set of weights.
        hashed: the number of pairs of symbols, the first map of words, and the number of these at each level.
        nodes: the number of nodes that are distinguished.
        depth: the number of bits of a symbol.
        level: the level of the node.
        node: the node, named by the bits that lead to it.
        chosen: where to write the rows.
    """
    bucket = chosen[BUCKET]
    quality = (bucket > 0) + (bucket >= 16) + (bucket >= 20)
    row = node if depth <= 8 else 32 * level + node % 32
    last, before = past[LATEST] % RECENT_ROWS, past[LATEST + 1] % RECENT_ROWS
    pair = np.int64(scramble(np.uint32(last * 257 + before))) * hashed[0] >> 32
    chosen[0] = sets[0] + quality * nodes + row
    chosen[1] = sets[1] + last * depth + level
    chosen[2] = sets[2] + past[SHAPE] * depth + level
    chosen[3] = sets[3] + (past[TONE] * 3 + chosen[MATCH]) * depth + level
    chosen[4] = sets[4] + pair * depth + level
    chosen[GENERAL] = sets[GENERAL] + level
    chosen[MAP] = last * nodes + row
    word = scramble(np.uint32(np.uint32(past[WORD]) * np.uint32(0x2F0B4C47) + np.uint32(node)))
    chosen[WORD_MAP] = hashed[1] + level * hashed[2] + (np.int64(word) * hashed[2] >> 32)
    prefetch(maps, chosen[MAP])
    prefetch(maps, chosen[WORD_MAP])


@kernel
def predict_bit(weights, uses, last, maps, inputs, chosen, predictions):
    """Compute the probability of a one by both layers and the maps.

    Args:
        weights: the weights of the first layer.
        uses: how often each of their rows was used.
        last: the weights of the second layer.
        maps: the adaptive maps.
        inputs: the mixer inputs.
        chosen: the selected rows; where to write the place in the maps.
        predictions: where to write the log-odds and the probability of each set.
    """
    total = 0
    for s in range(SETS):
        row, dot = chosen[s] if uses[chosen[s]] > 0 else chosen[GENERAL], np.int32(0)
        for i in range(len(inputs)):
            dot = np.int32(dot + np.int32(weights[row, i] >> _WEIGHT_CUT) * inputs[i])
        logit = clip_logit(np.int64(dot) // (WEIGHT // LOGIT * INPUT >> _WEIGHT_CUT))
        predictions[s, 0], predictions[s, 1] = logit, squash(logit)
        total += last[chosen[0], s] * logit
    logit = clip_logit(total // WEIGHT)
    predictions[SETS, 1] = one = squash(logit)
    place = min(max(logit + _REACH, 0), 2 * _REACH - 1)
    knot, share = place >> _KNOT_BITS, place & ((1 << _KNOT_BITS) - 1)
    chosen[KNOT], chosen[SHARE] = knot, share
    refined = 0
    for row in (chosen[MAP], chosen[WORD_MAP]):
        low, high = np.int64(maps[row, knot]), np.int64(maps[row, knot + 1])
        refined += (low + ((high - low) * share >> _KNOT_BITS)) >> 6
    return min(max((2 * one + refined) >> 2, 1), ONE - 1)


@kernel
def learn_contexts(table, histories, rows, level, inner, bit):
    """Update the slot of each context, and the probability after its history, with a bit.

    Args:
        table: the table of counters.
        histories: the adaptive probabilities after each history.
        rows: the row of each context in the table.
        level: the level of the node.
        inner: the number of the node within its group.
        bit: the bit that occurred, 0 or 1.
    """
    for k in range(len(rows)):
        slot = table[rows[k], inner]
        past = history(slot)
        histories[level, k, past] = adapt(histories[level, k, past], bit)
        table[rows[k], inner] = learn_bit(slot, bit)


@kernel
def learn_match(histories, chosen, level, bit):
    """Update with a bit how often matches of this length were right.

    Args:
        histories: the adaptive probabilities.
        chosen: the predicted bit and the class of the length, from `write_match_inputs`.
        level: the level of the node.
        bit: the bit that occurred, 0 or 1.
    """
    match, bucket = histories.shape[1] - 1, chosen[BUCKET]
    cell = histories[level, match, bucket]
    histories[level, match, bucket] = adapt(cell, np.int64(chosen[MATCH] == 1 + bit)) if chosen[MATCH] > 0 else cell


@kernel
def learn_mixer(weights, uses, last, maps, inputs, chosen, predictions, bit):
    """Update the weights of both layers, and the maps, with a bit.

    Args:
        weights: the weights of the first layer.
        uses: how often each of their rows was used.
        last: the weights of the second layer.
        maps: the adaptive maps.
        inputs: the mixer inputs.
        chosen: the selected rows.
        predictions: the results of `predict_bit`.
        bit: the bit that occurred, 0 or 1.
    """
    last_step = _LAST_RATE * (bit * ONE - predictions[SETS, 1])
    for s in range(SETS):
        row = chosen[s]
        n = uses[row]
        if n == 0:
            for i in range(len(inputs)):
                weights[row, i] = weights[chosen[GENERAL], i]
        uses[row] = min(n + 1, _MAX_USES)
        step = np.int32(_RATES[n >> _USES_BITS] * (bit * ONE - predictions[s, 1]) >> _STEP_CUT)
        for i in range(len(inputs)):
            weights[row, i] += np.int32(np.int32(step * inputs[i] + _ROUND) >> _SHIFT)
        last[chosen[0], s] += (last_step * predictions[s, 0] + _LAST_ROUND) >> _LAST_SHIFT
    knot, share = chosen[KNOT], chosen[SHARE]
    for row in (chosen[MAP], chosen[WORD_MAP]):
        for k, part in ((knot, (1 << _KNOT_BITS) - share), (knot + 1, share)):
            maps[row, k] += ((bit * (ONE << 6) - maps[row, k]) * _MAP_RATE * part) >> (16 + _KNOT_BITS)
