"""The outlook of a row: what is known in advance of the rows that are to be forecast from it."""

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

# The farthest that times are followed into the future.
MAX_YEARS = 20


class Outlook(NamedTuple):
    """What is known in advance of later rows.

    The outlook of a row has one block for the row itself and one for each step, with the calendar entries of that row.

    Attributes:
        entries: the calendar entries.
        country: whose holidays count, if `holiday` is one of the entries.
    """

    entries: tuple[Entry, ...] = ()
    country: str | None = None

    @property
    def width(self) -> int:
        """The length of a block."""
        return len(self.entries)

    def blocks(self, latest: Sequence[Any], times: Sequence[float], steps: np.ndarray) -> np.ndarray:
        """Return the outlook of rows (rows, (1 + steps) × width).

        Args:
            latest: the latest times before these rows, as they were sent.
            times: the times of the rows as `wall_clock` returns them.
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
        out = np.empty((len(moments), 1 + len(steps), self.width))
        numbers = np.array([ENTRIES.index(entry) for entry in self.entries], np.int64)
        write_calendar(history, moments, steps, numbers, holidays, out, np.empty(len(moments), np.bool_))
        return out.reshape(len(moments), -1).astype(np.float32)

    def blocks_ahead(self, latest: Sequence[Any], ahead: int, steps: np.ndarray) -> np.ndarray:
        """Return the outlook of a later row.

        Args:
            latest: the latest times, as they were sent.
            ahead: how many rows later it is.
            steps: the steps, in rows ahead of that row.
        """
        if not self.width:
            return np.zeros(0, np.float32)
        *before, last = latest
        every = self.blocks(before, [wall_clock(last)], np.concatenate([[ahead], ahead + steps]))
        return every[0, self.width :]


def outlook_of(times: Sequence[Any], country: str | None) -> Outlook:
    """Return the outlook of a table.

    Args:
        times: the times of the first rows, as they were sent.
        country: whose holidays count; None for no holidays.
    """
    entries = entries_for([wall_clock(time) for time in times])
    if country and "weekday" in entries:
        entries.append("holiday")
    return Outlook(tuple(entries), country)
