"""Rows of many keys: each key standardised by its own past, and rows sorted by key."""

from typing import Any, NamedTuple

import numpy as np

from norewind.streams.scaling import Layout, Series, nothing_known, scaled
from norewind.streams.stream import Samples


def beside(layout: Layout) -> dict[str, np.ndarray]:
    """What a record holds for a key that has sent nothing yet; its number of rows is in "samples"."""
    fresh = nothing_known(layout)
    return {"statistics": fresh.statistics[0], "waiting": fresh.waiting[0]}


def scaled_by_key(layout: Layout, records: np.ndarray, parts: "Segments", rows: np.ndarray) -> Samples:
    """Raw rows, sorted by key, as samples. The records of the keys are brought up to date, but for "samples"."""
    series = Series(*(records[name][parts.places] for name in ("statistics", "waiting", "samples")))
    samples = scaled(layout, series, np.ascontiguousarray(rows, np.float64), parts.key)
    records["statistics"][parts.places], records["waiting"][parts.places] = series.statistics, series.waiting
    return Samples(*samples)


class Segments(NamedTuple):
    """Rows sorted by key: the slot of each key, its first row and its number of rows; and of each row its key and its
    place among those of the key."""

    places: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    key: np.ndarray
    turn: np.ndarray


def segments(sorted_places: np.ndarray) -> Segments:
    places, starts, counts = np.unique(sorted_places, return_index=True, return_counts=True)
    key = np.repeat(np.arange(len(places)), counts)
    return Segments(places, starts, counts, key, np.arange(len(sorted_places)) - starts[key])


def sorted_by_key(places: np.ndarray, slots: int) -> tuple[np.ndarray, Segments]:
    """The order that sorts rows by key, given the slots of their keys, and the keys of the sorted rows.

    Keys stand in the order of their first rows. So a key's place in a batch depends on these
    rows alone, and not on its slot, which an interrupted run may give to another key.
    """
    first = np.empty(slots, np.int64)
    first[places[::-1]] = np.arange(len(places))[::-1]  # of a slot's rows, the last to be assigned is its first
    order = np.argsort(first[places], kind="stable")
    parts = segments(first[places][order])
    return order, parts._replace(places=places[parts.places])


def delayed(before: np.ndarray, new: np.ndarray, parts: Segments, delay: int) -> tuple[np.ndarray, np.ndarray]:
    """What each key had `delay` rows earlier, and the newest `delay` entries that it has now.

    `before` has shape (keys, delay, ...), oldest first; `new` one entry per row.
    """
    if not delay:
        return new, before
    early = parts.turn < delay
    then = np.where(_as(early, new), before[parts.key, np.minimum(parts.turn, delay - 1)], 0)
    rows = np.flatnonzero(~early)
    then[rows] = new[rows - delay]
    place = parts.counts[:, None] + np.arange(delay)
    old = place < delay
    after = before[np.arange(len(place))[:, None], np.minimum(place, delay - 1)]
    row = parts.starts[:, None] + place - delay
    after[~old] = new[row[~old]]
    return then, after


def _as(mask: np.ndarray, like: Any) -> np.ndarray:
    return mask.reshape(-1, *(1,) * (like.ndim - 1))
