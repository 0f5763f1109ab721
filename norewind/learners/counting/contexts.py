"""The contexts of a symbol: sums of hashed features of the past, one number each.

Features are the last eight symbols, the word so far and the two before it, the line (the
symbol above, and the column), and the symbol that a match expects.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

RECENT = 8
OTHER, NEWLINE, FIRST_LETTER = 0, 1, 2

_WORD, _LAST_WORD, _WORD_BEFORE, _ABOVE, _COLUMN, _EXPECTED = range(RECENT, RECENT + 6)
_ORDERS = [tuple(range(order)) for order in (0, 1, 2, 3, 4, 5, 6, 8)]
_SKIPS = [(1, 2), (0, 2)]
_MATCHES = [(_EXPECTED, 0)]
_WORDS = [(_WORD,), (_WORD, _LAST_WORD), (_WORD, _LAST_WORD, _WORD_BEFORE), (_WORD, _WORD_BEFORE)]
_LINES = [(_ABOVE, _COLUMN, 0)]


class Past(NamedTuple):
    """What the contexts are made of. `line` and `line_before` are the positions at which the lines began."""

    recent: jax.Array
    word: jax.Array
    last_word: jax.Array
    word_before: jax.Array
    line: jax.Array
    line_before: jax.Array


def contexts_of(text: bool) -> list[tuple[int, ...]]:
    """The features that make up each context, the longest last; words and lines mean something in texts only."""
    return _SKIPS + _MATCHES + (_LINES if text else []) + _ORDERS + (_WORDS if text else [])


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


def empty_past() -> Past:
    """Nothing has been seen."""
    return Past(jnp.zeros(RECENT, jnp.int32), *(jnp.zeros((), jnp.uint32) for _ in range(5)))


def seen(past: Past, symbol: jax.Array, kind: jax.Array, position: jax.Array) -> Past:
    """The past with one symbol more, which is of this class; `position` counts the symbols up to it."""
    letter, newline = kind >= FIRST_LETTER, kind == NEWLINE
    word = (past.word + kind.astype(jnp.uint32)) * jnp.uint32(0x2F0B4C47)
    ends = ~letter & (past.word > 0)
    return Past(
        jnp.concatenate([symbol[None], past.recent[:-1]]),
        jnp.where(letter, (word ^ (word >> 15)) | 1, 0),
        jnp.where(ends, past.word, past.last_word),
        jnp.where(ends, past.last_word, past.word_before),
        jnp.where(newline, position, past.line),
        jnp.where(newline, past.line, past.line_before),
    )


def place_above(past: Past, position: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where the symbol above the coming one is, whether there is one, and the column."""
    column = position - past.line
    above = past.line_before + column
    return above, above < past.line, jnp.minimum(column, 255)


def features(past: Past, above: jax.Array, column: jax.Array, expected: jax.Array) -> jax.Array:
    """The numbers that `multipliers` turn into contexts."""
    recent = (past.recent + 1).astype(jnp.uint32)
    others = jnp.stack(
        [past.word, past.last_word, past.word_before, above.astype(jnp.uint32), column, expected.astype(jnp.uint32)]
    )
    return jnp.concatenate([recent, others])


def multipliers(contexts: list[tuple[int, ...]]) -> np.ndarray:
    """A fixed random odd number for each feature of each context, 0 for the others; the last column is a salt."""
    random = np.random.default_rng(0).integers(0, 2**31, (len(contexts), _EXPECTED + 2)) * 2 + 1
    used = np.array([[feature in context for feature in range(_EXPECTED + 1)] + [True] for context in contexts])
    return np.where(used, random, 0).astype(np.uint32)


def scrambled(numbers: jax.Array) -> jax.Array:
    """A mixing of 32 bits that can be undone, so that it adds no collisions."""
    numbers = (numbers ^ (numbers >> 16)) * jnp.uint32(0x7FEB352D)
    numbers = (numbers ^ (numbers >> 15)) * jnp.uint32(0x846CA68B)
    return numbers ^ (numbers >> 16)
