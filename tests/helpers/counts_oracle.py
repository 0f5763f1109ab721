"""A slow reference for norewind.learners.Counts in plain Python: one symbol, one bit, one context at a time.

Slow and clear: whole numbers of Python, dictionaries in place of hashed arrays, logarithms in place of tables. Only
what is arbitrary (the multipliers of hashes, the sizes of tables) is taken from the plan.
"""

from collections import defaultdict
from math import exp, isnan, log

import numpy as np

WORD = 2**32
UNIT = 4096  # of log-odds
INPUT = 256  # the unit of mixer inputs
LARGEST = 12 * UNIT
WEIGHT = 2**20


def scrambled(number):
    number = (number ^ number >> 16) * 0x7FEB352D % WORD
    number = (number ^ number >> 15) * 0x846CA68B % WORD
    return number ^ number >> 16


def clipped(logit):
    return max(-LARGEST, min(LARGEST, logit))


def stretch(p):
    """Return the log-odds of the middle of one of 4096 intervals."""
    middle = (p + 0.5) / 4096
    return round((log(middle) - log(1 - middle)) * INPUT)


def squash(logit):
    """Interpolate between two points that are 1/128 apart."""

    def point(i):
        return round(2**22 / (1 + exp(-((i << 5) - LARGEST) / UNIT)))

    low, share = divmod(logit + LARGEST, 32)
    return min(max((point(low) * (32 - share) + point(low + 1) * share) >> 11, 1), 65535)


class Slot:
    """Counts of one node in one context."""

    def __init__(self):
        self.p, self.n, self.last = 2**17, 0, ""

    def learn(self, bit):
        self.p += ((2**18 * bit - self.p) * int(65536 / min(self.n + 1.08, 250))) >> 16
        self.n = min(self.n + 1, 255)
        self.last = (self.last + str(bit))[-5:]


class Cell:
    """A probability in 22 bits that learns fast at first."""

    def __init__(self, p):
        self.p, self.n = int(p * 2**22), 0

    def learn(self, bit):
        self.p += ((2**22 * bit - self.p) * int(65536 / (self.n + 1.5))) >> 16
        self.n = min(self.n + 1, 1023)


class Weights:
    """A row of weights, and the number of its uses."""

    def __init__(self, values):
        self.values, self.uses = list(values), 0

    def learn(self, inputs, error):
        step = int((0.002 + 0.013 / (1 + self.uses // 64 * 64 / 500)) * 65536) * error >> 7
        self.values = [w + ((step * x + 2**12) >> 13) for w, x in zip(self.values, inputs, strict=True)]
        self.uses = min(self.uses + 1, 65535)


def weighed(weights, inputs):
    """Return the log-odds of a 32-bit sum, with 16 of the 20 bits of each weight."""
    total = sum((w >> 4) * x for w, x in zip(weights, inputs, strict=True))
    return clipped(((total + WORD // 2) % WORD - WORD // 2) >> 12)


def guess(last):
    """Return the probability from a count of the last bits, each weighted 0.9 times the next one."""
    weights, ones, total = 1.0, 0.4, 0.8
    for bit in reversed(last):
        ones, total, weights = ones + weights * (bit == "1"), total + weights, weights * 0.9
    return ones / total


def bucket_of(length):
    return min(31, length if length < 16 else 12 + length // 4 if length < 32 else 18 + length // 16)


class Oracle:
    def __init__(self, plan, members, places):
        self.number_of_places, self.plan, self.depth, self.contexts = places, plan, plan.depth, len(plan.multipliers)
        self.text, self.words, self.lines = [], [0, 0, 0], [[], []]
        self.table, self.history_cells, self.match_cells = {}, {}, {}
        self.start = [int(0.7 / self.contexts * WEIGHT)] * (3 * self.contexts) + [WEIGHT // 4] * 3
        self.start += [int(0.3 * WEIGHT)] * members
        self.weights = {}
        self.last = defaultdict(lambda: [WEIGHT // 6] * 6)
        self.maps = defaultdict(lambda: [round(2**22 / (1 + exp(7.5 - knot))) for knot in range(16)])
        self.general = [Weights(self.start) for _ in range(self.depth)]
        self.pointer, self.length, self.places = 0, 0, {12: {}, 4: {}}
        self.controls, self.period = 0, 2
        self.repeats, self.followers = defaultdict(int), defaultdict(list)

    def learn(self, x, target, members):
        """Return the loss of the target after x, in nats. `members` are the probabilities of the experts."""
        self.see(x)
        hashes = self.hashes()
        node, likelihood = 1, 1.0
        for level in range(self.depth):
            bit = target >> (self.depth - 1 - level) & 1
            found = [self.slot(hashes, k, level, node) for k in range(self.contexts)]
            if (2 * node + 1) << (self.depth - 1 - level) < self.plan.symbols + 2**self.depth:
                one = self.predict_and_learn(level, node, found, members, bit)
                likelihood *= (one if bit else 65536 - one) / 65536
            else:
                assert bit == 0
            node = 2 * node + bit
        return -log(likelihood)

    def see(self, x):
        text = self.text
        if self.length and text[self.pointer] == x:
            self.length, self.pointer = min(self.length + 1, 65535), self.pointer + 1
        else:
            self.length = 0
        self.read_binary(x)
        text.append(x)
        for least, places in self.places.items():
            hashed = 0
            for i in range(least):
                hashed = (hashed + self.recent(i) + 1) * 0x2F0B4C47 % WORD
            latest = scrambled(hashed) % self.number_of_places
            candidate = places.get(latest, 0)
            if self.length < least and candidate:
                common = 0
                while common < min(32, candidate) and text[candidate - 1 - common] == self.recent(common):
                    common += 1
                if common >= 4 and common > self.length:
                    self.length, self.pointer = common, candidate
            places[latest] = len(text)
        self.read_word(int(self.plan.classes[x]))
        if self.plan.classes[x] == 1:
            self.lines = [self.lines[1], []]
        else:
            self.lines[1].append(x)

    def read_binary(self, x):
        """Before the symbol is added, measure whether this is binary data, and find the length of its records."""
        place = len(self.text)
        self.controls += (2**16 * (int(self.plan.classes[x]) == -1) - self.controls) // min(place + 32, 4096)
        if not self.is_binary():
            return
        self.followers[self.recent(0)] = [x, *self.followers[self.recent(0)][:1]]
        if x != self.recent(0):
            for distance in range(2, 512):
                self.repeats[distance] += self.at(place - distance) == x
        if place % 256 == 0:
            self.period = 2
            for distance in range(3, 512):
                if self.repeats[distance] / 16 > self.repeats[self.period] / 15:
                    self.period = distance

    def is_binary(self):
        return self.controls > 2**13

    def at(self, place):
        return self.text[place] if place >= 0 else 0

    def read_word(self, kind):
        if kind >= 2:
            word = (self.words[0] + kind) * 0x2F0B4C47 % WORD
            self.words[0] = (word ^ word >> 15) | 1
        elif self.words[0]:
            self.words = [0, *self.words[:2]]

    def recent(self, i):
        return self.text[-1 - i] if i < len(self.text) else 0

    def hashes(self):
        above, column = self.lines[0][:256], len(self.lines[1])
        opinion = (self.text[self.pointer] + 1) * 32 + min(self.length, 31) if self.length else 0
        features = [self.recent(i) + 1 for i in range(8)] + self.words
        features += [sum(kind << 2 * i for i, kind in enumerate(self.kinds()))]
        features += [above[column] + 1 if column < len(above) else 0, min(column, 255), self.beginning(), opinion, 0]
        features += self.record()
        binary = self.is_binary()
        of_this_kind = np.split(self.plan.features, 2)[int(binary)]
        return [
            (sum(int(m) * features[f] for m, f in zip(row, used, strict=False)) + int(row[-1]) + binary) % WORD
            for row, used in zip(self.plan.multipliers, of_this_kind, strict=True)
        ]

    def record(self):
        """Return the features of binary data."""
        place, period = len(self.text), self.period
        up, left, right = (self.at(place - period + side) for side in (0, -1, 1))
        around = up + 256 * (right // 32) + 2**11 * (left % 8) + 2**14 * (self.recent(0) % 8)
        halves = sum(self.recent(i) // 16 << 8 * i for i in range(3))
        followers = sum(symbol << 8 * i for i, symbol in enumerate(self.followers[self.recent(0)]))
        twice, thrice = self.at(place - 2 * period), self.at(place - 3 * period)
        return [up + 1, twice + 1, thrice + 1, left + 1, around, place % period, halves, followers]

    def kinds(self):
        """Return the kinds of the last eight symbols: 2 for a letter, 1 for the end of a line."""
        return [max(0, min(int(self.plan.classes[self.recent(i)]), 2)) if i < len(self.text) else 0 for i in range(8)]

    def beginning(self):
        """Return how often the line repeats its first symbol, with that symbol and the next one once it is known."""
        line = self.lines[1]
        repeats = next((i for i, symbol in enumerate(line) if symbol != line[0]), len(line))
        if repeats == len(line):
            return repeats
        return ((line[0] * 257 + line[repeats]) * 0x2F0B4C47 + repeats) % WORD | 2**31

    def slot(self, hashes, k, level, node):
        """Return the context's slot at this node. Rows are in pairs, and a new row replaces the less used one."""
        groups = self.plan.groups
        group = max(g for g in range(len(groups) - 1) if groups[g] <= level)
        start = node >> (level - int(groups[group]))
        check = scrambled((hashes[k] + start * 0x9E3779B1) % WORD)
        pair = self.table.setdefault((k, group, check * int(self.plan.pairs[group, k]) >> 32), [(0, {}), (0, {})])
        mine = [i for i in (0, 1) if pair[i][0] == check]
        if not mine:
            uses = [row.get(start_of(row), Slot()).n for _, row in pair]
            mine = [1 if uses[1] < uses[0] else 0]
            pair[mine[0]] = (check, {})
        row = pair[mine[0]][1]
        if not row:
            row["start"] = start
        return row.setdefault(node, Slot())

    def predict_and_learn(self, level, node, found, members, bit):
        came, inputs, cells = 65536 * bit, [], []
        for k, slot in enumerate(found):
            cells.append(self.history_cells.setdefault((level, k, slot.last), Cell(guess(slot.last))))
            inputs += [stretch(slot.p >> 6), stretch(cells[-1].p >> 10)]
            inputs += [((slot.p - 2**17) * min(slot.n, 30)) >> 12]
        expected = self.text[self.pointer] + 2**self.depth if self.length else 0
        bucket, match, cell = 0, 0, None
        if expected >> (self.depth - level) == node:
            bucket, expects = bucket_of(self.length), expected >> (self.depth - 1 - level) & 1
            match, sign = 1 + expects, 2 * expects - 1
            cell = self.match_cells.setdefault((level, bucket), Cell(1 - 0.5 / (bucket + 1.5)))
            inputs += [sign * stretch(cell.p >> 10), sign * (cell.p - 2**21) >> 13]
        else:
            inputs += [0, 0]
        inputs += [int(0.3 * INPUT)] + [self.member_input(member, level, node) for member in members]

        rows = self.rows(level, node, bucket, match)
        final = self.last[rows[0]]
        sets = [self.weights.get((s, row)) or self.general[level] for s, row in enumerate(rows[:5])]
        sets.append(self.general[level])
        logits = [weighed(one.values, inputs) for one in sets]
        logit = clipped(sum(w * x for w, x in zip(final, logits, strict=True)) // WEIGHT)
        mixed, curves = squash(logit), [self.maps[row] for row in rows[5:]]
        knot, share = divmod(min(max(logit + 15 * UNIT // 2, 0), 15 * UNIT - 1), UNIT)
        refined = sum((curve[knot] + ((curve[knot + 1] - curve[knot]) * share >> 12)) >> 6 for curve in curves)

        for s, row in enumerate(rows[:5]):
            own = self.weights.setdefault((s, row), Weights(self.general[level].values))
            own.learn(inputs, came - squash(logits[s]))
        self.general[level].learn(inputs, came - squash(logits[5]))
        for s in range(6):
            final[s] += (65 * (came - mixed) * logits[s] + 2**23) >> 24
        for curve in curves:
            for k, part in ((knot, UNIT - share), (knot + 1, share)):
                curve[k] += ((2**22 * bit - curve[k]) * 1310 * part) >> 28
        for one in cells:
            one.learn(bit)
        for slot in found:
            slot.learn(bit)
        if cell:
            cell.learn(int(match == 1 + bit))
        return min(max((2 * mixed + refined) // 4, 1), 65535)

    def rows(self, level, node, bucket, match):
        """Return the keys that select the weights of each set except the general one, and the two maps."""
        plan, last, before = self.plan, self.recent(0) % 256, self.recent(1) % 256
        name = node if self.depth <= 8 else (level, node % 32)
        quality = (bucket > 0) + (bucket >= 16) + (bucket >= 20)
        kinds = self.kinds()
        shape = sum((kind == 2) << i for i, kind in enumerate(kinds))
        latest = sum(kind << 2 * i for i, kind in enumerate(kinds[:4]))
        if self.is_binary():
            shape, latest = len(self.text) % self.period % 256, self.at(len(self.text) - self.period)
        pair = scrambled(last * 257 + before) * min(512, plan.symbols**2) >> 32
        return [
            (quality, name),
            (last, level),
            (shape, level),
            (latest, match, level),
            (pair, level),
            (last, name),
            ("word", level, scrambled((self.words[0] * 0x2F0B4C47 + node) % WORD) * int(plan.hashed[2]) >> 32),
        ]

    def member_input(self, probabilities, level, node):
        """Return the log-odds of a one, from the total probabilities of the symbols below it and below a zero."""
        masses = [0.0, 0.0]
        for bit in (0, 1):
            leaves = self.sum_of(probabilities, 2 * node + bit, self.depth - level - 1)
            masses[bit] = log(leaves + 1e-30)
        odds = masses[1] - masses[0]
        return 0 if isnan(odds) else clipped(int(odds * UNIT)) // 16

    def sum_of(self, probabilities, node, below):
        if below == 0:
            symbol = node - 2**self.depth
            return probabilities[symbol] if symbol < len(probabilities) else 0.0
        return sum(self.sum_of(probabilities, 2 * node + bit, below - 1) for bit in (0, 1))


def start_of(row):
    return row.get("start")
