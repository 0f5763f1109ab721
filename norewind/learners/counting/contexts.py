"""The contexts of a symbol: each is a hash of features of the past.

Features are the last eight symbols, the current word and the two before it, the kinds of
the last eight symbols, the line (the symbol above, the column, and how the line
begins), and the symbol predicted by a match.

Where many of the last bytes are control characters, the stream is binary data, which has records in place of words and
lines: then the contexts of these use the symbols above (a record ago) and the place in the record. The length of
records is the distance at which symbols repeat most often.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from norewind.engines.kernels import kernel

CONTROL, OTHER, NEWLINE, FIRST_LETTER = -1, 0, 1, 2
# The entries of `past`: hashes of words, the line, how many symbols were seen and learned from, the match, the kinds of
# the last eight symbols (two bits each), which of them were letters, the share of control characters, the record (its
# length, the place in it, the symbol above), what selects rows of weights (letters and kinds in text, the place and the
# symbol above in binary data), and the most recent symbols, the latest first.
WORD, LAST_WORD, WORD_BEFORE, COLUMN, LAST_COLUMNS, BEGINNING = range(6)
POSITION, LEARNED, POINTER, LENGTH, KINDS, LETTERS, CONTROLS, PERIOD, PLACE, UP, SHAPE, TONE, LATEST = range(6, 19)
# The number of most recent symbols that are kept, and of symbols at the beginning of a line.
RECENT_SYMBOLS, LINE_SYMBOLS = 32, 256
PAST = LATEST + RECENT_SYMBOLS

_HASHED = 8
_WORD, _LAST_WORD, _WORD_BEFORE, _KINDS, _ABOVE, _COLUMN, _BEGINNING, _EXPECTED, _NOTHING = range(_HASHED, _HASHED + 9)
_UP, _UP_TWICE, _UP_THRICE, _UP_LEFT, _AROUND, _PLACE, _HIGH_HALVES, _FOLLOWERS, FEATURES = range(
    _NOTHING + 1, _NOTHING + 10
)
# Contexts with their shares of the table: those with few different values need few rows.
_SHARES = {0: 0.1, 1: 0.1, 2: 0.4, 3: 1.0, 4: 2.0, 5: 2.4, 8: 0.8}
_ORDERS = {tuple(range(order)): share for order, share in _SHARES.items()}
_SKIPS = {(1, 2): 0.4}
_MATCHES = {(_EXPECTED, 0): 0.6}
_WORDS = {
    (_WORD,): 1.0,
    (_WORD, 0): 0.8,
    (_WORD, _LAST_WORD): 2.0,
    (_WORD, _LAST_WORD, _WORD_BEFORE): 0.8,
    (_WORD, _WORD_BEFORE): 0.8,
    (_LAST_WORD, 0, 1): 1.0,
    (_KINDS, 0): 0.8,
}
_LINES = {(_ABOVE, _COLUMN, 0): 1.2, (_BEGINNING, 0, 1): 0.8, (_BEGINNING, _ABOVE, _WORD): 1.0}
# The contexts that replace those of words and lines in binary data.
_BINARY = {
    (_ABOVE, _COLUMN, 0): (_UP, 0),
    (_BEGINNING, 0, 1): (_AROUND, _UP_TWICE),
    (_BEGINNING, _ABOVE, _WORD): (_AROUND, _UP_TWICE, _UP_THRICE, _UP_LEFT),
    (_WORD,): (_PLACE, 0),
    (_WORD, 0): (_UP, _UP_TWICE),
    (_WORD, _LAST_WORD): (1,),
    (_WORD, _LAST_WORD, _WORD_BEFORE): (0, 2),
    (_WORD, _WORD_BEFORE): (0, 3),
    (_LAST_WORD, 0, 1): (_FOLLOWERS, 0),
    (_KINDS, 0): (_HIGH_HALVES,),
}
# Data is binary if more than an eighth of about the last 4096 symbols are control characters; the count starts with 32
# other symbols. Records may be as long as the longest distance at which repeats are counted.
_ALL_CONTROLS, _BINARY_SHARE, _REMEMBERED, _ASSUMED = 1 << 16, 1 << 13, 4096, 32
DISTANCES, _PERIOD_EVERY, _MOST_REPEATS = 512, 256, 4096

# Matches are found by hashes of this many of the last symbols, unless the current match is at least as long.
MATCH_LENGTHS = (12, 4)
_LONGEST_TOLD_APART, _LONGEST_MATCH = 31, 65535


def contexts_of(text: bool) -> dict[tuple[int, ...], float]:
    """Return the features of each context, and its share of the table.

    Args:
        text: whether to include contexts of words and lines.
    """
    return _SKIPS | _MATCHES | (_LINES if text else {}) | _ORDERS | (_WORDS if text else {})


def useful_rows(context: tuple[int, ...], symbols: int) -> float:
    """Return how many rows a context can use: few, if it consists of few symbols.

    Args:
        context: its features.
        symbols: the number of symbols.
    """
    return float(symbols) ** len(context) if max(context, default=0) < _HASHED else np.inf


def features_of(contexts: Iterable[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of each context as an array, padded, and fixed random odd numbers for hashing.

    Args:
        contexts: the features of each context.

    Returns:
        The features in text, then those in binary data, and for each context one multiplier per feature and a salt.
    """
    text = list(contexts)
    binary = [_BINARY.get(context, context) for context in text]
    longest = max(map(len, text + binary))
    features = [[*one, *[_NOTHING] * (longest - len(one))] for one in text + binary]
    random = np.random.default_rng(0).integers(0, 2**31, (len(text), longest + 1)) * 2 + 1
    return np.array(features, np.int64), random.astype(np.uint32)


def classes_of(characters: Sequence[str]) -> np.ndarray:
    """Return the class of each character: a letter regardless of case, the end of a line, or neither."""
    others = {"\n": NEWLINE}
    kinds = [FIRST_LETTER + ord(one.lower()[0]) if one.isalpha() else others.get(one, OTHER) for one in characters]
    return np.array(kinds, np.int32)


def byte_classes() -> np.ndarray:
    """Return the class of each byte, as `classes_of` does; bytes beyond ASCII count as parts of letters.

    Control characters that texts do not contain (all but white space, backspace and escape) have their own class.
    """
    beyond = FIRST_LETTER + np.arange(128, 256, dtype=np.int32)
    classes = np.concatenate([classes_of([chr(code) for code in range(128)]), beyond])
    classes[[code for code in range(32) if not (8 <= code < 14 or code == 27)]] = CONTROL
    return classes


@kernel
def scramble(number):
    """Mix 32 bits by an invertible function, which adds no collisions."""
    number = np.uint32((number ^ (number >> np.uint32(16))) * np.uint32(0x7FEB352D))
    number = np.uint32((number ^ (number >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(number ^ (number >> np.uint32(16)))


@kernel
def keep_in_range(past, symbols):
    """Limit numbers that the loops use as unchecked array indices: a checkpoint may have been forged.

    Args:
        past: the summary of the past, changed in place.
        symbols: the number of symbols.
    """
    for i in range(PAST):
        past[i] = max(past[i], 0)
    past[LEARNED] = min(past[LEARNED], past[POSITION])
    past[POINTER] = max(min(past[POINTER], past[POSITION] - 1), 0)
    past[LENGTH] = min(past[LENGTH], _LONGEST_MATCH)
    past[KINDS], past[LETTERS] = past[KINDS] & 65535, past[LETTERS] & 255
    past[CONTROLS], past[PERIOD] = past[CONTROLS] & (_ALL_CONTROLS - 1), past[PERIOD] & (DISTANCES - 1)
    for i in range(LATEST, PAST):
        past[i] = min(past[i], symbols - 1)


@kernel
def add_symbol(past, lines, ring, places, repeats, followers, classes, symbol, learn):
    """Add one symbol to the past: update the match, the word and the line.

    Args:
        past: the summary of the past, changed in place.
        lines: the last two lines.
        ring: the symbols of the past.
        places: where each hashed run of symbols was last seen.
        repeats: how often symbols of binary data repeated at each distance.
        followers: the last two symbols that followed each symbol of binary data.
        classes: the class of each symbol.
        symbol: the latest symbol.
        learn: whether to store the symbol, so that it can be matched later.
    """
    _follow(past, ring, symbol)
    seen = min(past[POSITION] + _ASSUMED, _REMEMBERED)
    past[CONTROLS] += ((classes[symbol] == CONTROL) * _ALL_CONTROLS - past[CONTROLS]) // seen
    if learn and is_binary(past):
        followers[past[LATEST] & 255] = (followers[past[LATEST] & 255] << 8 | (symbol & 255)) & 65535
        _count_repeats(past, ring, repeats, symbol)
    if learn:
        ring[past[POSITION] % len(ring)] = symbol
    for i in range(PAST - 1, LATEST, -1):
        past[i] = past[i - 1]
    past[LATEST] = symbol
    past[POSITION] += 1
    for i in range(len(MATCH_LENGTHS)):
        hashed = np.uint32(0)
        for k in range(LATEST, LATEST + MATCH_LENGTHS[i]):
            hashed = np.uint32((hashed + np.uint32(past[k] + 1)) * np.uint32(0x2F0B4C47))
        place = scramble(hashed) % places.shape[1]
        if past[LENGTH] < MATCH_LENGTHS[i]:
            _find_match(past, ring, np.int64(places[i, place]))
        if learn:
            places[i, place] = past[POSITION]
    if learn:
        past[LEARNED] = past[POSITION]
    past[KINDS] = (past[KINDS] << 2 | min(max(classes[symbol], OTHER), FIRST_LETTER)) & 65535
    past[LETTERS] = (past[LETTERS] << 1 | (classes[symbol] >= FIRST_LETTER)) & 255
    _read_word(past, classes[symbol])
    _read_line(past, lines, classes[symbol], symbol)
    if is_binary(past):
        period = max(past[PERIOD], 2)
        past[PLACE] = past[POSITION] % period
        past[UP] = max(_symbol_at(past, ring, past[POSITION] - period), 0)
        past[SHAPE], past[TONE] = past[PLACE] & 255, past[UP] & 255
    else:
        past[SHAPE], past[TONE] = past[LETTERS], past[KINDS] & 255


@kernel
def is_binary(past):
    """Return whether the stream is binary data at present.

    Args:
        past: the summary of the past.
    """
    return past[CONTROLS] > _BINARY_SHARE


@kernel
def _count_repeats(past, ring, repeats, symbol):
    """Count at which distances symbols repeat, except those in runs; now and then, take the best as the length of
    records: the smallest that is not clearly worse than any other.
    """
    position, size = past[POSITION], len(ring)
    if symbol != past[LATEST]:
        for distance in range(2, min(DISTANCES, size)):
            repeats[distance] += ring[(position - distance) & (size - 1)] == symbol
    if position % _PERIOD_EVERY == 0:
        best = 2
        for distance in range(3, DISTANCES):
            if repeats[distance] * 15 > repeats[best] * 16:
                best = distance
        past[PERIOD] = best
        if repeats[best] > _MOST_REPEATS:
            for distance in range(2, DISTANCES):
                repeats[distance] //= 2


@kernel
def _follow(past, ring, symbol):
    """Continue the match if it predicted this symbol; otherwise end it."""
    if past[LENGTH] > 0 and expected_symbol(past, ring) == symbol:
        past[LENGTH] = min(past[LENGTH] + 1, _LONGEST_MATCH)
        past[POINTER] += 1
    else:
        past[LENGTH] = 0


@kernel
def _find_match(past, ring, candidate):
    """Use `candidate`, a position in the stream, as the match if more symbols before it equal the most recent ones."""
    if 0 < candidate < past[POSITION] and past[POSITION] - candidate < len(ring) - RECENT_SYMBOLS:
        length, most = 0, min(RECENT_SYMBOLS, candidate)
        while length < most and _symbol_at(past, ring, candidate - 1 - length) == past[LATEST + length]:
            length += 1
        if length > max(past[LENGTH], MATCH_LENGTHS[-1] - 1):
            past[LENGTH], past[POINTER] = length, candidate


@kernel
def _symbol_at(past, ring, position):
    """Return the symbol at a position of the stream: one of the most recent, or one from the ring; -1 if unknown."""
    back = past[POSITION] - 1 - position
    if back < RECENT_SYMBOLS:
        return past[LATEST + back]
    if position >= past[LEARNED]:
        return np.int64(-1)
    return np.int64(ring[position % len(ring)])


@kernel
def expected_symbol(past, ring):
    """Return the symbol that the match predicts; -1 if there is no match.

    Args:
        past: the summary of the past.
        ring: the symbols of the past.
    """
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
    """Add the symbol to the current line (the second of two), and update how it begins: repeats, and the symbol after
    them.
    """
    if kind == NEWLINE:
        for i in range(min(past[COLUMN], LINE_SYMBOLS)):
            lines[0, i] = lines[1, i]
        past[LAST_COLUMNS], past[COLUMN], past[BEGINNING] = past[COLUMN], 0, 0
    else:
        if past[BEGINNING] == past[COLUMN]:
            past[BEGINNING] = _beginning(lines[1, 0], past[COLUMN], symbol)
        if past[COLUMN] < LINE_SYMBOLS:
            lines[1, past[COLUMN]] = symbol
        past[COLUMN] += 1


@kernel
def _beginning(first, repeats, symbol):
    """Return how often a line has repeated its first symbol or, once another symbol follows, a hash of all three."""
    if repeats == 0 or symbol == first:
        return repeats + 1
    hashed = np.uint32(np.uint32(first * 257 + symbol) * np.uint32(0x2F0B4C47) + np.uint32(repeats))
    return np.int64(hashed | np.uint32(1 << 31))


@kernel
def hash_contexts(past, lines, ring, followers, expects, used, multipliers, features, hashes):
    """Write the hash of every context of the next symbol.

    Args:
        past: the summary of the past.
        lines: the last two lines.
        ring: the symbols of the past.
        followers: the last two symbols that followed each symbol of binary data.
        expects: the symbol that the match predicts; -1 if there is no match.
        used: the features of each context in text, then in binary data.
        multipliers: the random numbers of each context.
        features: where to write the features.
        hashes: where to write the hashes.
    """
    for i in range(_HASHED):
        features[i] = past[LATEST + i] + 1
    for i in range(3):
        features[_WORD + i] = past[WORD + i]
    features[_KINDS] = past[KINDS]
    features[_BEGINNING] = past[BEGINNING]
    column = past[COLUMN]
    features[_ABOVE] = lines[0, column] + 1 if column < min(past[LAST_COLUMNS], LINE_SYMBOLS) else 0
    features[_COLUMN] = min(column, LINE_SYMBOLS - 1)
    length = min(past[LENGTH], _LONGEST_TOLD_APART)
    features[_EXPECTED] = 0 if expects < 0 else (expects + 1) * (_LONGEST_TOLD_APART + 1) + length
    first, binary = 0, np.uint32(0)
    if is_binary(past):
        _write_record(past, ring, followers, features)
        first, binary = len(hashes), np.uint32(1)
    for context in range(len(hashes)):
        total = np.uint32(multipliers[context, used.shape[1]] + binary)
        for i in range(used.shape[1]):
            if used[first + context, i] == _NOTHING:
                break
            total = np.uint32(total + np.uint32(multipliers[context, i] * features[used[first + context, i]]))
        hashes[context] = total


@kernel
def _write_record(past, ring, followers, features):
    """Write the features of binary data: the symbols a record ago and more, which are above in a table or an image."""
    position, period = past[POSITION], max(past[PERIOD], 2)
    left, right = _symbol_at(past, ring, position - period - 1), _symbol_at(past, ring, position - period + 1)
    features[_UP], features[_UP_LEFT] = past[UP] + 1, left + 1
    features[_UP_TWICE] = _symbol_at(past, ring, position - 2 * period) + 1
    features[_UP_THRICE] = _symbol_at(past, ring, position - 3 * period) + 1
    # The bits next to those above, and to those that come next.
    features[_AROUND] = past[UP] | (right & 255) >> 5 << 8 | (left & 7) << 11 | (past[LATEST] & 7) << 14
    features[_PLACE] = past[PLACE]
    features[_HIGH_HALVES] = past[LATEST] >> 4 | past[LATEST + 1] >> 4 << 8 | past[LATEST + 2] >> 4 << 16
    features[_FOLLOWERS] = followers[past[LATEST] & 255]
