"""Least squares for every key: one loop over the rows, in the order of the stream."""

import numpy as np

from norewind.core.trees import Tree
from norewind.learners.horizon import upcoming_forecasts
from norewind.learners.keyed.keyed_program import KeyedLoop, SlotArrays
from norewind.learners.least_squares import LeastSquares, LeastSquaresRun, learn_rows
from norewind.learners.linear import LinearModel


class KeyedLeastSquares(KeyedLoop):
    """Learns every key's rows with the key's own least squares.

    Args:
        learner: least squares for one key.
        run: the run that every key starts from.
    """

    def __init__(self, learner: LeastSquares, run: LeastSquaresRun):
        self.plan, self.steps = learner.plan, learner.steps
        model, rows, outputs = learner.slot(run)
        self.outputs = model.weights.shape[1]
        self.own = {name: part[0] for name, part in model._asdict().items()} | {"rows": rows[0], "outputs": outputs[0]}

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
        made, due = np.empty(targets.shape, np.float32), np.empty(targets.shape, np.float32)
        runs = LinearModel(*(arrays[name] for name in LinearModel._fields)), arrays["rows"], arrays["outputs"]
        learn_rows(self.plan, runs, slots, xs, targets, losses, (made, due))
        return shared, losses, made, due

    def upcoming(self, record: np.ndarray) -> np.ndarray:
        return upcoming_forecasts(record["outputs"], self.steps, int(record["rows"]))
