"""The outlook of a row: what is known in advance about the rows that are forecast from it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.streams.table.calendar_entries import (
    ENTRIES,
    Entry,
    entries_for,
    holidays_between,
    wall_clock,
    write_calendar,
)
from norewind.streams.table.columns import DAY, KEPT_TIMES

# How far into the future times are continued.
MAX_YEARS = 20


class Outlook(NamedTuple):
    """What is known in advance about later rows.

    The outlook of a row has one block for the row itself and one for each step: the calendar entries of that row, and
    its values in the columns that are known in advance.

    Attributes:
        entries: the calendar entries.
        country: the country of the holidays, if `holiday` is one of the entries.
        columns: the columns that are known in advance.
    """

    entries: tuple[Entry, ...] = ()
    country: str | None = None
    columns: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The length of a block."""
        return len(self.entries) + len(self.columns)

    def calendar(self, latest: Sequence[Any], times: Sequence[float], steps: np.ndarray) -> np.ndarray:
        """Return the calendar entries of rows, for themselves and for each step (rows, 1 + steps, entries).

        Args:
            latest: the latest times before these rows, as they were sent.
            times: the times of the rows as `wall_clock` returns them; ignored if there are no entries.
            steps: the steps, in rows ahead.
        """
        history, moments = np.full(KEPT_TIMES, np.nan), np.array(times, np.float64)
        if latest:
            history[-len(latest) :] = [wall_clock(time) for time in latest]
        holidays = np.zeros(0, np.int64)
        known = moments[np.isfinite(moments)]
        if "holiday" in self.entries and self.country and len(known):
            gaps = np.diff(np.concatenate([history, moments]))
            farthest = steps[-1] * max(np.nanmax(gaps, initial=0.0), 0.0)
            last = known.max() + min(farthest, MAX_YEARS * 366 * DAY)
            holidays = holidays_between(self.country, float(known.min()), float(last))
        out = np.empty((len(moments), 1 + len(steps), len(self.entries)))
        numbers = np.array([ENTRIES.index(entry) for entry in self.entries], np.int64)
        write_calendar(history, moments, steps, numbers, holidays, out, np.empty(len(moments), np.bool_))
        return out

    def added_to(self, xs: np.ndarray, calendar: np.ndarray, plans: np.ndarray) -> np.ndarray:
        """Return inputs followed by their outlook.

        Args:
            xs: the inputs of rows.
            calendar: the calendar entries (rows, 1 + steps, entries).
            plans: the values known in advance (rows, 1 + steps, columns).
        """
        blocks = np.concatenate([calendar, plans], axis=2).astype(np.float32)
        return np.concatenate([xs, blocks.reshape(len(xs), blocks.shape[1] * blocks.shape[2])], axis=1)


def plans_of(own: np.ndarray, ahead: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the planned values of consecutive rows, each with those of the rows ahead (rows, 1 + steps, columns).

    Args:
        own: the planned columns of the rows (rows, columns).
        ahead: the planned columns of the following rows, as far as they are known.
        steps: the steps, in rows ahead.

    >>> plans_of(np.array([[1.0], [2.0]]), np.array([[3.0]]), np.array([1, 2]))[:, :, 0].tolist()
    [[1.0, 2.0, 3.0], [2.0, 3.0, nan]]
    """
    unknown = np.full((len(own) + int(steps[-1]), own.shape[1]), np.nan)
    values = np.concatenate([own, ahead, unknown])
    return values[np.arange(len(own))[:, None] + np.concatenate([[0], steps])]


def calendar_outlook(times: Sequence[Any], country: str | None = None) -> Outlook:
    """Return the outlook of a table without columns that are known in advance: its calendar.

    Args:
        times: the times of the first rows, as they were sent.
        country: the country of the holidays; None for no holidays.
    """
    entries = entries_for([wall_clock(time) for time in times])
    if country and "weekday" in entries:
        entries.append("holiday")
    return Outlook(tuple(entries), country)
