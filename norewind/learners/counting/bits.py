"""One bit: the counters of every context, the match and the members in, one probability out.

Logistic mixing in two layers: sets of weights, of each of which the context chooses a row,
weights for their results, then an adaptive map. Every set of the first layer predicts by
itself and learns from its own error. The last set has one row for each level of the tree;
rows of the others that were never used before begin as it is then.

Whatever is learned belongs to one level of the tree of bits at most. So nothing that is
learned from a symbol's first bits changes what is said about its last, and the
probabilities of all symbols can be had at once.
"""

import numpy as np

from norewind.kernels import kernel
from norewind.learners.counting import slots
from norewind.learners.counting.contexts import KINDS, LENGTH, LETTERS, NEWEST, scrambled
from norewind.learners.counting.logistic import LOGIT, ONE, clipped, probabilities, squash, stretch

SETS = 6
GENERAL = SETS - 1
# What `chosen` holds: the rows of the sets of weights; that of the map, and where in it; what the match expects.
MAP, KNOT, SHARE, MATCH, BUCKET, CHOSEN = range(SETS, SETS + 6)
# The inputs of each context, and others: two of the match and a constant.
PER_CONTEXT, OTHERS = 3, 3
# Rows of weights that the last symbol, the last two, and what the last four or eight were choose from.
RECENT_ROWS, PAIR_ROWS, KIND_ROWS = 256, 512, 256
BUCKETS, KNOTS = 32, 33
# The unit of weights.
WEIGHT = 1 << 20

_BIAS = int(0.3 * LOGIT)
_CONFIDENCE = int(0.15 * LOGIT / 4)
_MAP_RATE, _LAST_RATE = int(0.02 * 65536), int(0.001 * 65536)
# The rate at which a row of weights learns falls with the number of times it was used, here in steps of 64.
_MOST_USES, _USES_BITS = 65535, 6
_RATES = ((0.002 + 0.013 / (1 + np.arange(1024) * 64 / 1_000)) * 65536).astype(np.int64)
_REACH, _KNOT_BITS = 8 * LOGIT, 11
FRESH_MAP = np.rint(probabilities(np.arange(KNOTS) / 2 - 8) * (ONE << 6)).astype(np.int32)
# A step of a weight is a rate in 16 bits, times an error in 16, times an input in 12, and a weight has 20.
_SHIFT = 16 + 16 + 12 - 20
_ROUND = 1 << (_SHIFT - 1)
# Lets a node that no symbol reaches have even odds, and stays far below any mass that matters.
_TINY_MASS = 1e-30


@kernel
def hear_contexts(table, histories, rows, level, inner, inputs):
    """Write the inputs of each context at this node, zeros where it is new."""
    for k in range(len(rows)):
        slot, first = table[rows[k], inner], PER_CONTEXT * k
        n = slots.times_seen(slot)
        if n > 0:
            p = slots.probability(slot)
            inputs[first] = stretch(p >> (slots.PROBABILITY_BITS - 12))
            inputs[first + 1] = stretch(histories[level, k, slots.history(slot)] >> 20)
            inputs[first + 2] = ((p - slots.HALF) * min(n, 30) * _CONFIDENCE) >> (slots.PROBABILITY_BITS - 2)
        else:
            inputs[first] = inputs[first + 1] = inputs[first + 2] = 0


@kernel
def hear_match(past, histories, expects, depth, level, node, chosen, inputs):
    """Write the match's inputs: by how often one of this length was right. And a constant."""
    contexts = histories.shape[1] - 1
    first = PER_CONTEXT * contexts
    symbol = expects + (1 << depth)
    bucket = _bucket(past[LENGTH])
    inputs[first + 2] = _BIAS
    if expects < 0 or symbol >> (depth - level) != node:
        inputs[first] = inputs[first + 1] = 0
        chosen[MATCH] = chosen[BUCKET] = 0
    else:
        bit = symbol >> (depth - level - 1) & 1
        right = np.int64(histories[level, contexts, bucket] >> 10)
        sign = 2 * bit - 1
        inputs[first] = sign * stretch(right >> 10)
        inputs[first + 1] = sign * (right - (1 << 21)) >> 9
        chosen[MATCH], chosen[BUCKET] = 1 + bit, bucket


@kernel
def _bucket(length):
    """Lengths in 32 classes, finest where they are short."""
    classes = length if length < 16 else 12 + length // 4 if length < 32 else 18 + length // 16
    return min(classes, BUCKETS - 1)


@kernel
def hear_members(masses, node, first, inputs):
    """Write the log-odds of a one by each member, from the masses it gives to the nodes."""
    for member in range(len(masses)):
        odds = np.log(masses[member, 2 * node + 1] + _TINY_MASS) - np.log(masses[member, 2 * node] + _TINY_MASS)
        inputs[first + member] = 0 if np.isnan(odds) else clipped(np.int64(odds * LOGIT))


@kernel
def choose(past, sets, nodes, depth, level, node, chosen):
    """Write the row of each set of weights, and of the adaptive map."""
    bucket = chosen[BUCKET]
    quality = (bucket > 0) + (bucket >= 16) + (bucket >= 20)
    row = node if depth <= 8 else 32 * level + node % 32
    last, before = past[NEWEST] % RECENT_ROWS, past[NEWEST + 1] % RECENT_ROWS
    pair = np.int64(scrambled(np.uint32(last * 257 + before))) % ((sets[GENERAL] - sets[4]) // depth)
    chosen[0] = sets[0] + quality * nodes + row
    chosen[1] = sets[1] + last * depth + level
    chosen[2] = sets[2] + past[LETTERS] * depth + level
    chosen[3] = sets[3] + (past[KINDS] * 3 + chosen[MATCH]) * depth + level
    chosen[4] = sets[4] + pair * depth + level
    chosen[GENERAL] = sets[GENERAL] + level
    chosen[MAP] = last * nodes + row


@kernel
def mix(weights, last, maps, inputs, chosen, made):
    """Two layers and the map: the probability of a one. What each set says stays in `made`."""
    total, uses = 0, len(inputs)
    for s in range(SETS):
        row, logit = chosen[s] if weights[chosen[s], uses] > 0 else chosen[GENERAL], 0
        for i in range(len(inputs)):
            logit += np.int64(weights[row, i]) * np.int64(inputs[i])
        logit = clipped(logit // WEIGHT)
        made[s, 0], made[s, 1] = logit, squash(logit)
        total += last[chosen[0], s] * logit
    logit = clipped(total // WEIGHT)
    made[SETS, 1] = one = squash(logit)
    place = min(max(logit + _REACH, 0), 2 * _REACH - 1)
    knot, share = place >> _KNOT_BITS, place & ((1 << _KNOT_BITS) - 1)
    chosen[KNOT], chosen[SHARE] = knot, share
    low, high = np.int64(maps[chosen[MAP], knot]), np.int64(maps[chosen[MAP], knot + 1])
    refined = (low + ((high - low) * share >> _KNOT_BITS)) >> 6
    return min(max((one + refined) // 2, 1), ONE - 1)


@kernel
def count_bit(table, histories, rows, level, inner, bit):
    """Learn from a bit what each context's slot says, and what its history meant."""
    for k in range(len(rows)):
        slot = table[rows[k], inner]
        if slots.times_seen(slot) > 0:
            past = slots.history(slot)
            histories[level, k, past] = slots.adapted(histories[level, k, past], bit)
        table[rows[k], inner] = slots.learned(slot, bit)


@kernel
def count_match(histories, chosen, level, bit):
    """Learn from a bit whether the match was right."""
    if chosen[MATCH] > 0:
        match, bucket = histories.shape[1] - 1, chosen[BUCKET]
        right = 1 if chosen[MATCH] == 1 + bit else 0
        histories[level, match, bucket] = slots.adapted(histories[level, match, bucket], right)


@kernel
def weigh_bit(weights, last, maps, inputs, chosen, made, bit):
    """Learn from a bit the weights of both layers, and the map."""
    last_step, uses = _LAST_RATE * (bit * ONE - made[SETS, 1]), len(inputs)
    for s in range(SETS):
        row = chosen[s]
        n = weights[row, uses]
        if n == 0:
            for i in range(len(inputs)):
                weights[row, i] = weights[chosen[GENERAL], i]
        weights[row, uses] = min(n + 1, _MOST_USES)
        step = _RATES[n >> _USES_BITS] * (bit * ONE - made[s, 1])
        for i in range(len(inputs)):
            weights[row, i] += (step * inputs[i] + _ROUND) >> _SHIFT
        last[chosen[0], s] += (last_step * made[s, 0] + _ROUND) >> _SHIFT
    row, knot, share = chosen[MAP], chosen[KNOT], chosen[SHARE]
    for k, part in ((knot, (1 << _KNOT_BITS) - share), (knot + 1, share)):
        maps[row, k] += ((bit * (ONE << 6) - maps[row, k]) * _MAP_RATE * part) >> (16 + _KNOT_BITS)
