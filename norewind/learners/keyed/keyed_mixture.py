"""Mixtures for every key: one loop over the rows, in the order of the stream."""

from typing import TYPE_CHECKING, Any

import numpy as np

from norewind.core.trees import Tree
from norewind.learners.horizon import upcoming_forecasts
from norewind.learners.keyed.keyed_program import KeyedProgram, SlotArrays
from norewind.learners.mixed_rows import NumberMixtureRun, mix_rows_of_keys

if TYPE_CHECKING:
    from norewind.learners.mixture import MixtureRun
    from norewind.learners.number_mixture import NumberMixture


SCALES = "mixture_scales"


class KeyedMixture(KeyedProgram):
    """Learns every key's rows with the key's own mixture, which has no members but rules and least squares.

    Args:
        learner: the mixture for one key.
        run: the run that every key starts from.
    """

    any_order = True

    def __init__(self, learner: "NumberMixture", run: "MixtureRun"):
        self.learner = learner
        self.shared = ()
        self._runs = _arrays_by_name(run.mixture)
        # The scale of the past values: its last mean and deviation of each target.
        self.own = self._runs | {SCALES: np.full((len(learner.plan.known), 2), np.nan)}

    def learn(
        self,
        shared: Tree,
        arrays: SlotArrays,
        slots: np.ndarray,
        xs: Tree,
        targets: Tree,
        scales: np.ndarray | None = None,
    ):
        xs, targets = np.ascontiguousarray(xs, np.float32), np.ascontiguousarray(targets, np.float32)
        losses = np.zeros(len(xs), np.float32)
        made, due = (np.empty((len(xs), (1 + self.learner.gaussian) * self.learner.outputs), np.float32) for _ in "12")
        scales = np.empty((0, 0, 2)) if scales is None else scales[:, : len(self.learner.plan.known)]
        runs, results = tuple(arrays[name] for name in self._runs), (losses, made, due)
        mix_rows_of_keys(tuple(self.learner.plan), runs, slots, xs, targets, (arrays[SCALES], scales), results)
        return shared, losses, made, due

    def forward(self, arrays: SlotArrays, xs: Tree, scales: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        unknown = np.full((len(xs), self.learner.outputs), np.nan, np.float32)
        _, _, made, due = self.learn((), arrays, np.arange(len(xs)), xs, unknown, scales)
        return made, due

    def upcoming(self, record: np.ndarray) -> np.ndarray:
        return upcoming_forecasts(record["mixture_outputs"], self.learner.steps, int(record["mixture_linear_rows"][0]))


def _arrays_by_name(run: NumberMixtureRun) -> dict[str, np.ndarray]:
    """Return the arrays of a run in the order in which the kernels take them."""
    named: dict[str, np.ndarray] = {}
    parts: dict[str, Any] = run._asdict()
    for name, part in parts.items():
        inside = {"": part} if isinstance(part, np.ndarray) else {f"_{inner}": x for inner, x in part._asdict().items()}
        named |= {f"mixture_{name}{inner}": array for inner, array in inside.items()}
    return named
