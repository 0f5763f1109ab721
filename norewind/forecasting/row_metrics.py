"""Metrics of rows that are learned one at a time."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import jax
import numpy as np

from norewind.scoring.metrics import Tally, next_line
from norewind.scoring.score import Score
from norewind.streams import Samples
from norewind.streams.stream import joined

# Metrics are updated for this many rows at once, unless they are read earlier. Updating them row by row would take as
# long as learning.
TOGETHER = 200


class Metrics:
    """The tally and the lines of metrics of a run, with the rows that are not yet included.

    Args:
        tally: the tally so far.
        lines: the lines of metrics so far.
        every: samples between two lines; None for intervals that grow with the run.
    """

    def __init__(self, tally: Tally, lines: list[dict[str, Any]], every: int | None):
        self.tally, self.lines, self.every = tally, lines, every
        self._rows: list[tuple[Samples, Any, Any]] = []
        self._about_runs: list[dict[str, Any]] = []
        self._due = next_line(tally.samples, every)

    @property
    def samples(self) -> int:
        """The number of samples, including those not yet in the tally."""
        return self.tally.samples + len(self._rows)

    def note(self, row: tuple[Samples, Any, Any], score: Score, about_run: Callable[[], dict[str, Any]]) -> None:
        """Record one more row.

        Args:
            row: its samples, losses and outputs, each of length one.
            score: the score of the run.
            about_run: called when a line of metrics is due; returns its entries that describe the run.
        """
        self._rows.append(row)
        if self.samples == self._due:
            self._about_runs.append(about_run())
            self._due = next_line(self.samples, self.every)
        if len(self._rows) >= TOGETHER:
            self.add_up(score)

    def add_up(self, score: Score) -> None:
        """Add the recorded rows to the tally and the score, and write the lines that are due.

        Args:
            score: the score of the run.
        """
        while self._rows:
            count = next_line(self.tally.samples, self.every) - self.tally.samples
            rows, self._rows = self._rows[:count], self._rows[count:]
            parts, losses, outputs = zip(*rows, strict=True)
            whole = jax.tree.map(lambda *made: np.concatenate([np.asarray(one) for one in made]), *outputs)
            scored = score.add(joined(parts), whole)
            self.tally.add(np.concatenate(losses).astype(np.float64) * score.scale, len(losses), scored)
            if len(rows) == count:
                self.lines.append({**self.tally.take(), **score.take(), **self._about_runs.pop(0)})

    def closing(self, score: Score, about_run: dict[str, Any]) -> dict[str, Any] | None:
        """The line of metrics of the unfinished interval. The interval continues.

        Args:
            score: the score of the run.
            about_run: the entries that describe the run.

        Returns:
            The line; None if the interval is empty.
        """
        self.add_up(score)
        if not self.tally.interval[0]:
            return None
        before = deepcopy((self.tally, score.state))
        line = {**self.tally.take(), **score.take(), **about_run}
        self.tally, score.state = before
        return line
