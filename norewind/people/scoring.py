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
"""Rows that are added up at once if nobody asks before: one by one, each would take as long as learning from it."""


class Metrics:
    """The tally and the lines of metrics of a run, and the rows that wait to be added to them."""

    def __init__(self, tally: Tally, lines: list[dict[str, Any]], every: int | None):
        self.tally, self.lines, self.every = tally, lines, every
        self._rows: list[tuple[Samples, Any, Any]] = []
        self._carries: list[dict[str, Any]] = []
        self._due: int | None = None

    @property
    def samples(self) -> int:
        return self.tally.samples + len(self._rows)

    def note(self, row: tuple[Samples, Any, Any], score: Score, state: Callable[[], dict[str, Any]]) -> None:
        """Take one more row: its samples, losses and outputs, of length one. `state()` is what a line says about the
        run."""
        if self._due is None:
            self._due = next_line(self.samples, self.every)
        self._rows.append(row)
        if self.samples == self._due:
            self._carries.append(state())
            self._due = next_line(self.samples, self.every)
        if len(self._rows) >= TOGETHER:
            self.add_up(score)

    def add_up(self, score: Score) -> None:
        """Add the rows that wait to the tally and the score, and write the lines that are due."""
        rows, self._rows = self._rows, []
        while rows:
            end = next_line(self.tally.samples, self.every)
            count = end - self.tally.samples
            self._add(rows[:count], score)
            rows = rows[count:]
            if self.tally.samples == end:
                self.lines.append(self._line(score, self._carries.pop(0)))

    def closing(self, score: Score, state: dict[str, Any]) -> dict[str, Any] | None:
        """The line of the interval that has not ended, if it has begun; it goes on."""
        self.add_up(score)
        if not self.tally.interval[0]:
            return None
        before = deepcopy((self.tally, score.state))
        line = self._line(score, state)
        self.tally, score.state = before
        return line

    def _add(self, rows: list[tuple[Samples, Any, Any]], score: Score) -> None:
        parts, losses, outputs = zip(*rows, strict=True)
        whole = jax.tree.map(lambda *made: np.concatenate([np.asarray(one) for one in made]), *outputs)
        scored = score.add(joined(parts), whole)
        self.tally.add(np.concatenate(losses).astype(np.float64) * score.scale, len(losses), scored)

    def _line(self, score: Score, state: dict[str, Any]) -> dict[str, Any]:
        """A line of metrics; a new interval starts."""
        return {**self.tally.take(), **score.take(), **state}
