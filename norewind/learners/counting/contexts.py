"""The contexts of a symbol: hashes of features of the past, one number each.

Features are the last eight symbols, the word so far and the two before it, the line (the
symbol above, and the column), and the symbol that a match expects.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from norewind.kernels import kernel

OTHER, NEWLINE, FIRST_LETTER = 0, 1, 2
# What `past` holds: hashes of words, the line, how many symbols were seen and learned from, the match, the kinds of
# the last four symbols (two bits each), which of the last eight were letters, and the most recent symbols, the newest
# first.
WORD, LAST_WORD, WORD_BEFORE, COLUMN, LAST_COLUMNS, POSITION, LEARNED, POINTER, LENGTH, KINDS, LETTERS, NEWEST = range(
    12
)
# How many of the last symbols are at hand, and how many of the beginning of a line.
RECENT, LINE = 32, 256
PAST = NEWEST + RECENT

_HASHED = 8
_WORD, _LAST_WORD, _WORD_BEFORE, _ABOVE, _COLUMN, _EXPECTED, _NOTHING, FEATURES = range(_HASHED, _HASHED + 8)
# Contexts with the shares of the table that they get: those that are seldom new need few rows.
_ORDERS = {
    (): 0.1,
    (0,): 0.1,
    (0, 1): 0.4,
    (0, 1, 2): 1.0,
    (0, 1, 2, 3): 2.0,
    (0, 1, 2, 3, 4): 2.4,
    (0, 1, 2, 3, 4, 5): 1.5,
    (0, 1, 2, 3, 4, 5, 6, 7): 0.8,
}
_SKIPS = {(1, 2): 0.4, (0, 2): 0.4}
_MATCHES = {(_EXPECTED, 0): 0.6}
_WORDS = {
    (_WORD,): 1.0,
    (_WORD, 0): 0.8,
    (_WORD, _LAST_WORD): 2.0,
    (_WORD, _LAST_WORD, _WORD_BEFORE): 0.8,
    (_WORD, _WORD_BEFORE): 0.8,
    (_LAST_WORD, 0, 1): 1.5,
}
_LINES = {(_ABOVE, _COLUMN, 0): 1.2}

# The symbols that a match has in common with the past at least.
LEAST = 4
_TOLD_APART, _LONGEST = 31, 65535


def contexts_of(text: bool) -> dict[tuple[int, ...], float]:
    """The features that make up each context, and its share of the table; words and lines are for texts only."""
    return _SKIPS | _MATCHES | (_LINES if text else {}) | _ORDERS | (_WORDS if text else {})


def useful_rows(context: tuple[int, ...], symbols: int) -> float:
    """How many rows a context can use: few, if it consists of few symbols."""
    return float(symbols) ** len(context) if max(context, default=0) < _HASHED else np.inf


def features_of(contexts: Iterable[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """The features of each context, filled up with none; a fixed random odd number for each; a salt."""
    contexts = list(contexts)
    longest = max(map(len, contexts))
    features = np.array([[*context, *[_NOTHING] * (longest - len(context))] for context in contexts], np.int64)
    random = np.random.default_rng(0).integers(0, 2**31, (len(contexts), longest + 1)) * 2 + 1
    return features, random.astype(np.uint32)


def classes_of(characters: Sequence[str]) -> np.ndarray:
    """What each character is: a letter of either case, the end of a line, or neither."""
    letters = [FIRST_LETTER + ord(one.lower()[0]) if one.isalpha() else OTHER for one in characters]
    newline = np.array([one == "\n" for one in characters])
    return np.where(newline, NEWLINE, np.array(letters)).astype(np.int32)


def byte_classes() -> np.ndarray:
    """What each byte is: as above, and what is beyond ASCII counts as a part of a letter."""
    code = np.arange(256)
    lower = np.where((code >= ord("A")) & (code <= ord("Z")), code + 32, code)
    letter = ((lower >= ord("a")) & (lower <= ord("z"))) | (code >= 128)
    return np.where(letter, lower + FIRST_LETTER, np.where(code == ord("\n"), NEWLINE, OTHER)).astype(np.int32)


@kernel
def scrambled(number):
    """A mixing of 32 bits that can be undone, so that it adds no collisions."""
    number = np.uint32((number ^ (number >> np.uint32(16))) * np.uint32(0x7FEB352D))
    number = np.uint32((number ^ (number >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(number ^ (number >> np.uint32(16)))


@kernel
def keep_in_range(past, symbols):
    """Bound what the loops use as places of arrays, which they do not check: a checkpoint may have been forged."""
    for i in range(PAST):
        past[i] = max(past[i], 0)
    past[LEARNED] = min(past[LEARNED], past[POSITION])
    past[POINTER] = max(min(past[POINTER], past[POSITION] - 1), 0)
    past[LENGTH] = min(past[LENGTH], _LONGEST)
    past[KINDS], past[LETTERS] = past[KINDS] & 255, past[LETTERS] & 255
    for i in range(NEWEST, PAST):
        past[i] = min(past[i], symbols - 1)


@kernel
def see(past, lines, ring, places, classes, symbol, learn):
    """Take one symbol more into the past: the match, the word and the line. With `learn`, it can be matched later."""
    _follow(past, ring, symbol)
    if learn:
        ring[past[POSITION] % len(ring)] = symbol
    for i in range(PAST - 1, NEWEST, -1):
        past[i] = past[i - 1]
    past[NEWEST] = symbol
    past[POSITION] += 1
    hashed = np.uint32(0)
    for i in range(NEWEST, NEWEST + LEAST):
        hashed = np.uint32((hashed + np.uint32(past[i] + 1)) * np.uint32(0x2F0B4C47))
    place = scrambled(hashed) % len(places)
    if past[LENGTH] == 0:
        _find_match(past, ring, np.int64(places[place]))
    if learn:
        places[place] = past[POSITION]
        past[LEARNED] = past[POSITION]
    past[KINDS] = (past[KINDS] << 2 | min(classes[symbol], FIRST_LETTER)) & 255
    past[LETTERS] = (past[LETTERS] << 1 | (classes[symbol] >= FIRST_LETTER)) & 255
    _read_word(past, classes[symbol])
    _read_line(past, lines, classes[symbol], symbol)


@kernel
def _follow(past, ring, symbol):
    """Go on with the match if it expected this symbol; otherwise it ends."""
    if past[LENGTH] > 0 and expected(past, ring) == symbol:
        past[LENGTH] = min(past[LENGTH] + 1, _LONGEST)
        past[POINTER] += 1
    else:
        past[LENGTH] = 0


@kernel
def _find_match(past, ring, candidate):
    """Look whether the symbols before `candidate`, a position in the stream, are the most recent ones."""
    if 0 < candidate < past[POSITION] and past[POSITION] - candidate < len(ring) - RECENT:
        length, most = 0, min(RECENT, candidate)
        while length < most and _symbol_at(past, ring, candidate - 1 - length) == past[NEWEST + length]:
            length += 1
        if length >= LEAST:
            past[LENGTH], past[POINTER] = length, candidate


@kernel
def _symbol_at(past, ring, position):
    """The symbol at a position of the stream: one of the most recent, or from the ring of what was learned from."""
    back = past[POSITION] - 1 - position
    if back < RECENT:
        return past[NEWEST + back]
    if position >= past[LEARNED]:
        return np.int64(-1)
    return np.int64(ring[position % len(ring)])


@kernel
def expected(past, ring):
    """The symbol that the match expects; -1 if there is no match."""
    return _symbol_at(past, ring, past[POINTER]) if past[LENGTH] > 0 else np.int64(-1)


@kernel
def _read_word(past, kind):
    if kind >= FIRST_LETTER:
        word = np.uint32(np.uint32(past[WORD] + kind) * np.uint32(0x2F0B4C47))
        past[WORD] = np.uint32(word ^ (word >> np.uint32(15))) | np.uint32(1)
    elif past[WORD] > 0:
        past[WORD_BEFORE], past[LAST_WORD], past[WORD] = past[LAST_WORD], past[WORD], 0


@kernel
def _read_line(past, lines, kind, symbol):
    """Write the symbol to the current line, the second of two."""
    if kind == NEWLINE:
        for i in range(min(past[COLUMN], LINE)):
            lines[0, i] = lines[1, i]
        past[LAST_COLUMNS], past[COLUMN] = past[COLUMN], 0
    else:
        if past[COLUMN] < LINE:
            lines[1, past[COLUMN]] = symbol
        past[COLUMN] += 1


@kernel
def hash_contexts(past, lines, expects, used, multipliers, features, hashes):
    """Write the hash of every context of the coming symbol; `expects` is the symbol that the match expects."""
    for i in range(_HASHED):
        features[i] = past[NEWEST + i] + 1
    features[_WORD] = past[WORD]
    features[_LAST_WORD] = past[LAST_WORD]
    features[_WORD_BEFORE] = past[WORD_BEFORE]
    column = past[COLUMN]
    features[_ABOVE] = lines[0, column] + 1 if column < min(past[LAST_COLUMNS], LINE) else 0
    features[_COLUMN] = min(column, LINE - 1)
    length = min(past[LENGTH], _TOLD_APART)
    features[_EXPECTED] = 0 if expects < 0 else (expects + 1) * (_TOLD_APART + 1) + length
    for context in range(len(hashes)):
        total = multipliers[context, used.shape[1]]
        for i in range(used.shape[1]):
            if used[context, i] == _NOTHING:
                break
            total = np.uint32(total + np.uint32(multipliers[context, i] * features[used[context, i]]))
        hashes[context] = total
