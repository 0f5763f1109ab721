"""Intervals around the forecasts of every key."""

import numpy as np

from norewind.core.trees import Tree
from norewind.learners.intervals import IntervalLearner, IntervalState
from norewind.learners.keyed.keyed_program import KeyedProgram, SlotArrays
from norewind.learners.learner import Forecasts


class KeyedIntervals(KeyedProgram):
    """Adds intervals to the forecasts of a program for many keys. Every key has its own thresholds.

    Args:
        learner: the intervals of one key.
        program: the program that forecasts.
    """

    def __init__(self, learner: IntervalLearner, program: KeyedProgram):
        self.learner, self.program = learner, program
        self.shared, self.any_order = program.shared, program.any_order
        own = {_named(name): part[0] for name, part in learner.start()._asdict().items()}
        self.own = {**program.own, **own}

    def learn(
        self,
        shared: Tree,
        arrays: SlotArrays,
        slots: np.ndarray,
        xs: Tree,
        targets: Tree,
        scales: np.ndarray | None = None,
    ):
        shared, losses, made, due = self.program.learn(shared, arrays, slots, xs, targets, scales)
        made, due = self._add_bounds(arrays, slots, targets, Forecasts(made, due))
        return shared, losses, made, due

    def forward(self, arrays: SlotArrays, xs: Tree, scales: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        made, due = self.program.forward(arrays, xs, scales)
        unknown = np.full((len(made), self.learner.outputs), np.nan)
        return self._add_bounds(arrays, np.arange(len(made)), unknown, Forecasts(made, due))

    def _add_bounds(
        self, arrays: SlotArrays, slots: np.ndarray, targets: Tree, forecasts: Forecasts
    ) -> tuple[np.ndarray, np.ndarray]:
        state = IntervalState(*(arrays[_named(name)] for name in IntervalState._fields))
        made, due = self.learner.add_bounds(state, slots, targets, forecasts)
        return made, due

    def upcoming(self, record: np.ndarray) -> np.ndarray:
        bounds = self.learner.upcoming_bounds(record[_named("waiting")], record[_named("rows")])
        return np.concatenate([self.program.upcoming(record), bounds], axis=1)


def _named(name: str) -> str:
    """Return the name of an array among those of the program inside."""
    return f"interval_{name}"
