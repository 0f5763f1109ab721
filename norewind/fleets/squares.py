"""Least squares for every key: one loop through the rows, in the order of the stream."""

from typing import Any

import numpy as np

from norewind.learners.least_squares import LeastSquares, LeastSquaresRun, learn_rows
from norewind.learners.linear import LinearModel
from norewind.learners.steps import ring_to_come
from norewind.trees import Tree


class Squares:
    """Learns every key's rows with the key's own least squares; see `norewind.fleets.fleet.Engine`."""

    chunk = 1 << 14

    def __init__(self, learner: LeastSquares, run: LeastSquaresRun):
        self.plan, self.steps, self.shared = learner.plan, learner.steps, ()
        model, rows, waiting = learner.slot(run)
        self.own = {name: part[0] for name, part in model._asdict().items()} | {"rows": rows[0], "outputs": waiting[0]}

    def learn(self, shared: Tree, arrays: dict[str, np.ndarray], places: np.ndarray, xs: Any, targets: Any):
        xs, targets = np.ascontiguousarray(xs, np.float32), np.ascontiguousarray(targets, np.float32)
        losses = np.zeros(len(xs), np.float32)
        made, due = np.empty(targets.shape, np.float32), np.empty(targets.shape, np.float32)
        runs = LinearModel(*(arrays[name] for name in LinearModel._fields)), arrays["rows"], arrays["outputs"]
        learn_rows(self.plan, runs, places, xs, targets, losses, (made, due))
        return shared, losses, made, due

    def answer(self, arrays: dict[str, np.ndarray], xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        unknown = np.full((len(xs), arrays["weights"].shape[1]), np.nan, np.float32)
        _, _, made, due = self.learn((), arrays, np.arange(len(xs)), xs, unknown)
        return made, due

    def pending(self, record: np.ndarray) -> np.ndarray:
        return ring_to_come(record["outputs"], self.steps, int(record["rows"]))
