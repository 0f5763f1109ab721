"""Metrics of rows that were learned one by one."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import jax
import numpy as np

from norewind.runs.metrics import Tally, next_line
from norewind.runs.scores import Score
from norewind.streams.stream import Samples, joined

TOGETHER = 200
"""Rows that are added up at once unless the metrics are wanted earlier: one by one would take as long as learning."""


class Metrics:
    """The tally and the lines of metrics of a run, and the rows that wait to be added to them."""

    def __init__(self, tally: Tally, lines: list[dict[str, Any]], every: int | None):
        self.tally, self.lines, self.every = tally, lines, every
        self._rows: list[tuple[Samples, Any, Any]] = []
        self._about_runs: list[dict[str, Any]] = []
        self._due = next_line(tally.samples, every)

    @property
    def samples(self) -> int:
        return self.tally.samples + len(self._rows)

    def note(self, row: tuple[Samples, Any, Any], score: Score, about_run: Callable[[], dict[str, Any]]) -> None:
        """Take one more row: its samples, losses and outputs, of length one. A line ends with `about_run()`."""
        self._rows.append(row)
        if self.samples == self._due:
            self._about_runs.append(about_run())
            self._due = next_line(self.samples, self.every)
        if len(self._rows) >= TOGETHER:
            self.add_up(score)

    def add_up(self, score: Score) -> None:
        """Add the waiting rows to the tally and the score, and write the lines that are due."""
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
        """The line of the interval so far, which continues; None if it is empty."""
        self.add_up(score)
        if not self.tally.interval[0]:
            return None
        before = deepcopy((self.tally, score.state))
        line = {**self.tally.take(), **score.take(), **about_run}
        self.tally, score.state = before
        return line
