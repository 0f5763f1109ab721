"""The outlook of a row: what is known in advance about the rows that are forecast from it."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.streams.stream import BadRow, StreamError
from norewind.streams.table.calendar_entries import (
    ENTRIES,
    Entry,
    entries_for,
    holidays_between,
    wall_clock,
    write_calendar,
)
from norewind.streams.table.columns import DAY, KEPT_TIMES, boolean_of, can_read, nested_value, number_of

# How far into the future times are continued.
MAX_YEARS = 20
# The entry of a row that holds what is known in advance about the next rows, where these are not read ahead.
KNOWN_FUTURE = "@known_future"


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


def sent_plan(row: Any, columns: Sequence[str]) -> np.ndarray | None:
    """Return the planned columns of the next rows, if a row was sent with them (rows, columns).

    Args:
        row: the row. If it holds a plan, it is a dict, and the plan a list with a dict for each of the next rows.
        columns: the planned columns.

    Returns:
        The values, NaN where one is missing; None if the row was sent without a plan.

    Raises:
        BadRow: the plan has another form.

    >>> sent_plan({"load": 5, "@known_future": [{"price": 3}, {}]}, ["price"]).tolist()
    [[3.0], [nan]]
    """
    sent = row.get(KNOWN_FUTURE) if isinstance(row, dict) else None
    if sent is None:
        return None
    if not isinstance(sent, list) or not all(isinstance(each, dict) for each in sent):
        raise BadRow(f"{KNOWN_FUTURE!r} must be a list with an object for each of the next rows")
    try:
        values = [[number_or_truth(nested_value(each, name)) for name in columns] for each in sent]
    except BadRow as problem:
        raise BadRow(f"{KNOWN_FUTURE!r}: {problem}") from None
    return np.array(values, np.float64).reshape(-1, len(columns))


def plan_from(
    rows: Iterable[dict[str, Any]], outlook: Outlook, clock: str | None, times: Sequence[Any] | None
) -> np.ndarray:
    """Return the planned columns of the next rows (rows, columns).

    Args:
        rows: the next rows in order, with at least these columns, and perhaps with their times.
        outlook: what is known in advance.
        clock: the column of times, if there is one.
        times: the expected times of these rows, if they are known.

    Raises:
        StreamError: no columns are known in advance, a row is bad or lacks one of them, or the first row is not the
            next one.
    """
    rows = list(rows)
    if not outlook.columns:
        raise StreamError("no columns are known in advance: name them when the model is made (known_future=).")
    if absent := [name for name in outlook.columns if any(nested_value(row, name) is None for row in rows[:1])]:
        raise StreamError(f"known_future: the first row has no value of {absent[0]!r}.")
    if rows and clock in rows[0] and times and wall_clock(rows[0][clock]) != wall_clock(times[0]):
        raise StreamError(f"known_future: the next row is that of {times[0]}, but the first is of {rows[0][clock]}.")
    try:
        plan = sent_plan({KNOWN_FUTURE: rows}, outlook.columns)
    except BadRow as problem:
        raise StreamError(f"{problem}.") from None
    assert plan is not None
    return plan


def number_or_truth(value: Any) -> float:
    """Return a number or a boolean as a number; NaN if it is missing.

    Raises:
        BadRow: it is something else.
    """
    return boolean_of(value) if can_read(boolean_of, value) else number_of(value)


def followed_plans(
    own: np.ndarray, plan: np.ndarray, sent: Sequence[np.ndarray | None], steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the planned values of consecutive rows, each of which may come with a new plan; see `plans_of`.

    Args:
        own: the planned columns of the rows (rows, columns).
        plan: the plan before these rows: the columns of the first of them and of the rows after it.
        sent: the plan that each row was sent with; None to keep the earlier one.
        steps: the steps, in rows ahead.

    Returns:
        The plans (rows, 1 + steps, columns), and the plan after the last row.

    >>> plans, after = followed_plans(np.array([[1.0]]), np.array([[9.0], [2.0]]), [None], np.array([1, 2]))
    >>> plans[:, :, 0].tolist(), after.tolist()
    ([[1.0, 2.0, nan]], [[2.0]])
    """
    found = np.full((len(own), 1 + len(steps), own.shape[1]), np.nan)
    for place, new in enumerate(sent):
        plan = (plan[1:] if new is None else new)[: steps[-1]]
        known = steps <= len(plan)
        found[place, 0] = own[place]
        found[place, 1:][known] = plan[steps[known] - 1]
    return found, plan


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
