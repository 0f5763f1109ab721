"""Simple rules and least squares for every key: one loop over the rows, in the order of the stream."""

import numpy as np

from norewind.core.trees import Tree
from norewind.learners.horizon import upcoming_forecasts
from norewind.learners.key_mixture import KeyMixture, KeyMixtureRun
from norewind.learners.keyed.keyed_program import KeyedLoop, SlotArrays


class KeyedMixture(KeyedLoop):
    """Learns every key's rows with the key's own mixture.

    Args:
        learner: the mixture of one key.
        run: the run that every key starts from.
    """

    def __init__(self, learner: KeyMixture, run: KeyMixtureRun):
        self.learner, self.outputs = learner, learner.outputs
        self.own = {_named(name): part[0] for name, part in run._asdict().items()}

    def learn(
        self,
        shared: Tree,
        arrays: SlotArrays,
        slots: np.ndarray,
        xs: Tree,
        targets: Tree,
        scales: np.ndarray | None = None,
    ):
        run = KeyMixtureRun(*(arrays[_named(name)] for name in KeyMixtureRun._fields))
        losses, (made, due) = self.learner.learn(run, slots, xs, targets, scales)
        return shared, losses, made, due

    def upcoming(self, record: np.ndarray) -> np.ndarray:
        return upcoming_forecasts(record[_named("outputs")], self.learner.steps, int(record[_named("rows")]))


def _named(name: str) -> str:
    """Return the name of an array among those of the fleet."""
    return f"mixture_{name}"
