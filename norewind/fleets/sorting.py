"""Rows of many keys, sorted by key."""

from typing import NamedTuple

import numpy as np


class Segments(NamedTuple):
    """Rows sorted by key: the slot of each key, its first row and its number of rows; and of each row its key and its
    place among those of the key."""

    places: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    key: np.ndarray
    turn: np.ndarray


def sorted_by_key(places: np.ndarray, slots: int) -> tuple[np.ndarray, Segments]:
    """The order that sorts rows by key, given the slots of their keys, and the keys of the sorted rows.

    Keys stand in the order of their first rows. So a key's place in a batch depends on these
    rows alone, and not on its slot, which an interrupted run may give to another key.
    """
    first = np.empty(slots, np.int64)
    first[places[::-1]] = np.arange(len(places))[::-1]  # of a slot's rows, the last to be assigned is its first
    order = np.argsort(first[places], kind="stable")
    rows, starts, counts = np.unique(first[places][order], return_index=True, return_counts=True)
    key = np.repeat(np.arange(len(rows)), counts)
    return order, Segments(places[rows], starts, counts, key, np.arange(len(places)) - starts[key])
