"""The counts of norewind.learners once more, in plain Python: one symbol, one bit, one context at a time.

Slow and clear. Hashes are exact whole numbers. Probabilities that are remembered have 32 bits, as in the
tables, because their logits are looked up by their first twelve; everything else is a Python float.
"""

from math import exp, log

import numpy as np
from numpy import float32

from norewind.learners.counting import contexts
from norewind.learners.counting.symbol import RUN_MULTIPLIERS

WORD = 2**32


def scrambled(number):
    number = (number ^ number >> 16) * 0x7FEB352D % WORD
    number = (number ^ number >> 15) * 0x846CA68B % WORD
    return number ^ number >> 16


def logit(p):
    """Of the middle of one of 4096 equal parts."""
    p = (int(p * 4096) + 0.5) / 4096
    return log(p / (1 - p))


def moved(p, bit, rate):
    return p + (float32(bit) - p) * float32(rate)


def sigmoid(x):
    return 1 / (1 + exp(-x))


class Slot:
    """Counts of one node in one context."""

    def __init__(self):
        self.p, self.n, self.last = 2**17, 0, ""

    def one(self):
        return (self.p + 0.5) / 2**18

    def learn(self, bit):
        p = moved(float32(self.one()), bit, max(1 / (float32(self.n) + float32(1.2)), 1 / 250))
        self.p = min(max(int(p * 2**18), 0), 2**18 - 1)
        self.n = min(self.n + 1, 255)
        self.last = (self.last + str(bit))[-5:]


def guess(last):
    """What a count of the last bits says, each weighing 0.9 of the next one."""
    weights = [0.9**age for age in range(len(last))]
    ones = sum(weight for weight, bit in zip(weights, reversed(last), strict=True) if bit == "1")
    return (0.4 + ones) / (0.8 + sum(weights))


class Oracle:
    """`learn(x, target, members)` gives the loss; `members` are lists of every symbol's probability."""

    def __init__(self, plan):
        self.plan, self.places = plan, plan.history // 4
        self.classes = [0] * plan.symbols if plan.classes is None else plan.classes.tolist()
        self.rows = {}
        self.stream = []
        self.words = [0, 0, 0]
        self.lines = [0, 0]
        self.seen_at, self.match = {}, (0, 0)
        self.histories = {}
        self.reliability = {}
        share = 1 / len(plan.contexts)
        self.start = [share] * (3 * len(plan.contexts)) + [0.25] * 2 + [0.3] * plan.members + [0.25]
        self.weights, self.last, self.maps = {}, {}, {}
        self.samples = 0

    def recent(self, back):
        return self.stream[-back] if back <= len(self.stream) else 0

    def see(self, x):
        self.stream.append(x)
        kind, position = self.classes[x], len(self.stream)
        if kind >= contexts.FIRST_LETTER:
            word = (self.words[0] + kind) * 0x2F0B4C47 % WORD
            self.words[0] = (word ^ word >> 15) | 1
        elif self.words[0]:
            self.words = [0, *self.words[:2]]
        if kind == contexts.NEWLINE:
            self.lines = [position, self.lines[0]]
        self.follow(x)

    def follow(self, x):
        """The match goes on, or one is looked for: the last place where the last five symbols were seen."""
        position = len(self.stream)
        pointer, length = self.match
        key = sum((self.recent(back) + 1) * int(RUN_MULTIPLIERS[back - 1]) for back in range(1, 6)) % WORD
        key = scrambled(key) % self.places
        found = self.seen_at.get(key, 0)
        if length and self.stream[pointer] == x:
            self.match = pointer + 1, length + 1
        else:
            length = 0
            while length < min(found, 32) and self.stream[found - 1 - length] == self.stream[-1 - length]:
                length += 1
            self.match = (found, length) if length >= 5 else (0, 0)
        self.seen_at[key] = position

    def hashes(self):
        column = len(self.stream) - self.lines[0]
        above = self.lines[1] + column
        above = self.stream[above] + 1 if above < self.lines[0] else 0
        pointer, length = self.match
        expected = (self.stream[pointer] + 1) * 32 + min(length, 31) if length else 0
        features = [self.recent(back) + 1 for back in range(1, 9)]
        features += [*self.words, above, min(column, 255), expected, 1]
        multipliers = self.plan.multipliers.tolist()
        return [sum(a * b for a, b in zip(row, features, strict=True)) % WORD for row in multipliers]

    def rows_for(self, hashes, start):
        """For each context the place of its row and the row: its check, and the slots of its nodes."""
        found = []
        for k, number in enumerate(hashes):
            check = scrambled((number + start * 0x9E3779B1) % WORD)
            place = check & int(self.plan.masks[k]) & ~1
            two = [self.rows.get((k, place + way), (0, {})) for way in (0, 1)]
            uses = [row[1][1].n if 1 in row[1] else 0 for row in two]
            way = next((way for way in (0, 1) if two[way][0] == check), int(uses[1] < uses[0]))
            found.append(((k, place + way), two[way] if two[way][0] == check else (check, {})))
        return zip(*found, strict=True)

    def learn(self, x, target, members=()):
        self.see(x)
        hashes, depth = self.hashes(), self.plan.depth
        starts = {9: (0, 3, 6), 8: (0, 4), 5: (0, 3), 1: (0,)}[depth]
        groups = [tuple(self.rows_for(hashes, (target + (1 << depth)) >> (depth - first))) for first in starts]
        node, loss = 1, 0.0
        for level in range(depth):
            first = max(start for start in starts if start <= level)
            inner = node % (1 << (level - first)) + (1 << (level - first))
            here = [row[1].setdefault(inner, Slot()) for row in groups[starts.index(first)][1]]
            bit = target >> (depth - level - 1) & 1
            loss += self.learn_bit(level, node, bit, here, members)
            node = 2 * node + bit
        for places, rows in groups:
            self.rows.update(zip(places, rows, strict=True))
        self.samples += 1
        return loss

    def learn_bit(self, level, node, bit, here, members):
        bits_left = self.plan.depth - level
        pointer, length = self.match
        expected = self.stream[pointer] + (1 << self.plan.depth) if length else 0
        agrees = length > 0 and expected >> bits_left == node
        says = expected >> (bits_left - 1) & 1
        bucket = (
            min(length if length < 16 else 12 + length // 4 if length < 32 else 18 + length // 16, 31) if agrees else 0
        )
        sign = 2 * says - 1 if agrees else 0
        reliable = self.reliability.setdefault((level, bucket), [float32(1 - 0.5 / (bucket + 1.5)), 0])

        known = [
            self.histories.setdefault((level, k, slot.last), float32(guess(slot.last))) for k, slot in enumerate(here)
        ]
        inputs = [logit(slot.one()) if slot.n else 0 for slot in here]
        inputs += [logit(p) if slot.n else 0 for p, slot in zip(known, here, strict=True)]
        inputs += [(slot.one() - 0.5) * min(slot.n, 30) * 0.15 for slot in here]
        inputs += [sign * logit(reliable[0]), sign * (2 * reliable[0] - 1)]
        inputs += [self.member_logit(member, level, node) for member in members] + [0.3]

        quality = (bucket > 0) + (bucket >= 16) + (bucket >= 20)
        seen = sum(slot.n > 0 for slot in here)
        direction = 1 + says if agrees else 0
        # Large alphabets share rows: 256 for symbols, 32 for the nodes of a level.
        row, one_back, two_back = node % 32 + 32 * level, self.recent(1) % 256, self.recent(2) % 256
        row = node if self.plan.depth <= 8 else row
        chosen = [(quality, row), (seen, level), (one_back, level), (direction, two_back, level)]
        sets = [self.weights.setdefault((i, one), list(self.start)) for i, one in enumerate(chosen)]
        logits = [min(max(float(np.dot(weights, inputs)), -12), 12) for weights in sets]
        last = self.last.setdefault((quality, row), [1 / 4] * 4)
        mixed = min(max(float(np.dot(last, logits)), -12), 12)

        knots = self.maps.setdefault((one_back, row), [sigmoid(i / 2 - 8) for i in range(33)])
        place = min(max((mixed + 8) * 2, 0), 31.999)
        knot, share = int(place), place - int(place)
        corrected = knots[knot] + share * (knots[knot + 1] - knots[knot])
        one = min(max((sigmoid(mixed) + corrected) / 2, 2**-16), 1 - 2**-16)
        if ((2 * node + 1) << (bits_left - 1)) - (1 << self.plan.depth) >= self.plan.symbols:
            one = 0.0

        rate = 0.002 + 0.013 / (1 + self.samples / 20_000)
        for weights, own in zip(sets, logits, strict=True):
            error = bit - sigmoid(own)
            weights[:] = [w + rate * error * x for w, x in zip(weights, inputs, strict=True)]
        last[:] = [w + 0.001 * (bit - sigmoid(mixed)) * x for w, x in zip(last, logits, strict=True)]
        knots[knot] += (bit - knots[knot]) * 0.02 * (1 - share)
        knots[knot + 1] += (bit - knots[knot + 1]) * 0.02 * share
        if bucket:
            step = max(1 / (float32(reliable[1]) + float32(1.5)), 0.005)
            reliable[0] = min(max(moved(reliable[0], says == bit, step), float32(0.3)), float32(1 - 1 / 4096))
            reliable[1] += 1
        for k, slot in enumerate(here):
            if slot.n:
                self.histories[level, k, slot.last] = moved(known[k], bit, 0.01)
            slot.learn(bit)
        return -log(one if bit else 1 - one)

    def member_logit(self, probabilities, level, node):
        below = self.plan.depth - level - 1
        base = 1 << self.plan.depth
        zeros, ones = (
            sum(probabilities[((2 * node + bit) << below) - base : ((2 * node + bit + 1) << below) - base])
            for bit in (0, 1)
        )
        return min(max(log(ones + 1e-30) - log(zeros + 1e-30), -12), 12)
