"""What the next row of a stream depends on, and rows as the inputs and targets that they are at that moment."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.streams.table.calendar_entries import wall_clock
from norewind.streams.table.conversion import Rows
from norewind.streams.table.row_outlook import Outlook, followed_plans, plans_of
from norewind.streams.table.scaling import EXTRAPOLATE, LATEST, LEARN, SeriesStatistics, TableLayout, scale_rows


class Moment(NamedTuple):
    """What the next row of a stream depends on.

    Attributes:
        statistics: the statistics of the columns so far.
        times: the times of the latest rows, as they were sent.
        plan: the planned values of the next rows (rows, columns); NaN where a value is not known.
    """

    statistics: SeriesStatistics
    times: Sequence[Any]
    plan: np.ndarray

    def plans(self, layout: TableLayout, rows: Rows, ahead: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the planned values at each of the next rows (rows, 1 + steps, columns), and the plan after them.

        Args:
            layout: how columns become inputs and targets.
            rows: the rows.
            ahead: the values known in advance of the rows after them, if these were read ahead. Otherwise, they are
                those that the rows were sent with.
        """
        if not len(layout.planned):  # for a single row, what follows takes several microseconds
            return np.empty((len(rows.values), 1 + len(layout.steps), 0)), self.plan
        own = rows.values[:, layout.planned]
        if ahead is not None:
            return plans_of(own, ahead, layout.steps), ahead
        return followed_plans(own, self.plan, rows.plans, layout.steps)

    def scaled(
        self, layout: TableLayout, outlook: Outlook, rows: Rows, plans: np.ndarray, mode: int = LEARN
    ) -> tuple[np.ndarray, ...]:
        """Return the first fields of rows as samples; see `scale_rows`. Their inputs end with their outlook.

        Args:
            layout: how columns become inputs and targets.
            outlook: what their outlook consists of.
            rows: the rows.
            plans: what is planned at the rows, as `plans` returns it.
            mode: how to use the rows.
        """
        if not outlook.width:
            return scale_rows(layout, self.statistics, rows.values, mode=mode)
        xs, *others = scale_rows(layout, self.statistics, rows.values, mode=mode, plans=plans)
        calendar = outlook.calendar(self.times, rows.moments or [np.nan] * len(xs), layout.steps)
        return outlook.added_to(xs, calendar, plans), *others

    def future_inputs(self, layout: TableLayout, outlook: Outlook, targets: np.ndarray, step: int) -> np.ndarray:
        """Return the inputs of a future row. Other columns keep their values or follow the plan, and times continue.

        With a step of 0, they are those of the latest row, as if this plan had been known then.

        Args:
            layout: how columns become inputs and targets.
            outlook: what the outlook consists of.
            targets: the assumed targets of that row.
            step: how many rows ahead it is.
        """
        row = self.statistics.statistics[0, LATEST].copy()
        row[layout.targets] = targets
        row[layout.times] += step * row[layout.columns - len(layout.times) :]
        if not outlook.width:
            return scale_rows(layout, self.statistics, row[None], mode=EXTRAPOLATE)[0][0]
        if step and len(own := self.plan[step - 1 : step]):
            row[layout.planned] = np.where(np.isnan(own[0]), row[layout.planned], own[0])
        plans = plans_of(row[None, layout.planned], self.plan[step:], layout.steps)
        xs = scale_rows(layout, self.statistics, row[None], mode=EXTRAPOLATE, plans=plans)[0]
        *before, last = self.times or [None]
        steps = np.concatenate([[step], step + layout.steps])
        return outlook.added_to(xs, outlook.calendar(before, [wall_clock(last)], steps)[:, 1:], plans)[0]


def one_by_one(rows: Rows) -> list[Rows]:
    """Return each of several rows alone.

    Args:
        rows: the rows.
    """
    places = [slice(i, i + 1) for i in range(len(rows.values))]
    return [
        rows._replace(values=rows.values[place], moments=rows.moments[place], plans=rows.plans[place])
        for place in places
    ]
