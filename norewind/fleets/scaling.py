"""Rows of many keys as samples: each key standardised by its own past, as `norewind.streams` does for one stream."""

from typing import Any, NamedTuple

import numpy as np

from norewind.streams.scaling import Layout, scales_of, standardised, xs_of
from norewind.streams.stream import Samples


class Table(NamedTuple):
    """How raw rows become samples: the layout of their columns, the horizon, and the columns that hold times.

    `times` are pairs of a column and that of the time since the key's row before.
    """

    layout: Layout
    horizon: int
    times: tuple[tuple[int, int], ...] = ()

    @property
    def delay(self) -> int:
        """What is known when predicting is that of the row before, even if the targets come with the row itself."""
        return max(1, self.horizon)

    def beside(self) -> dict[str, np.ndarray]:
        """What a record holds for a key that has sent nothing yet."""
        columns, layout = self.layout.columns, self.layout
        statistics = np.zeros((4, columns))
        statistics[3] = np.nan
        unknown = [0.0, 1.0, np.nan] if self.horizon == 0 and not layout.standardise else [np.nan] * 3
        return {"statistics": statistics, "waiting": np.tile(unknown, (self.delay, len(layout.targets), 1))}


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


def scaled(table: Table, records: np.ndarray, parts: Segments, values: np.ndarray) -> Samples:
    """Raw rows, sorted by key, as samples. The records of the keys are brought up to date."""
    layout = table.layout
    values = np.array(values, np.float64)
    statistics = _statistics(table, records, parts, values)
    now = scales_of(statistics[..., layout.targets], layout)
    scales, records["waiting"][parts.places] = delayed(records["waiting"][parts.places], now, parts, table.delay)
    mean, deviation, newest = np.moveaxis(scales, -1, 0)
    sent = values[:, layout.targets]
    targets, last = sent, newest
    if layout.standardise:
        targets, last = standardised(targets, mean, deviation), standardised(last, mean, deviation)
    else:
        targets = np.where(np.isnan(mean), np.nan, targets)
    return Samples(
        xs_of(values, statistics, layout),
        targets.astype(np.float32),
        scales[..., :2],
        last.astype(np.float32),
        now[..., :2],
        sent,
    )


def _statistics(table: Table, records: np.ndarray, parts: Segments, values: np.ndarray) -> np.ndarray:
    """The statistics up to and including each row, of shape (rows, 4, columns), by Welford's method: row after row of a
    key, all keys at once."""
    found = np.empty((len(values), 4, values.shape[1]))
    current = records["statistics"][parts.places]
    # Keys with the most rows first: those that have one left are always a beginning.
    order = np.argsort(-parts.counts, kind="stable")
    current, starts, counts = current[order], parts.starts[order], parts.counts[order]
    for turn in range(int(counts[0])):
        still = int(np.searchsorted(-counts, -turn, side="left"))
        rows, part = starts[:still] + turn, current[:still]
        row = values[rows]
        for time, gap in table.times:
            row[:, gap] = row[:, time] - part[:, 3, time]
        values[rows] = row
        known = ~np.isnan(row)
        part[:, 0] += known
        with np.errstate(invalid="ignore", divide="ignore"):
            before = row - part[:, 1]
            mean = part[:, 1] + before / part[:, 0]
            part[:, 2] = np.where(known, part[:, 2] + before * (row - mean), part[:, 2])
        part[:, 1] = np.where(known, mean, part[:, 1])
        part[:, 3] = np.where(known, row, part[:, 3])
        found[rows] = part
    records["statistics"][parts.places[order]] = current
    return found


def _as(mask: np.ndarray, like: Any) -> np.ndarray:
    return mask.reshape(-1, *(1,) * (like.ndim - 1))
