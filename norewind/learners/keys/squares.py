"""Least squares for every key: one loop over the rows, in the order of the stream."""

from typing import Any

import numpy as np

from norewind.core.trees import Tree
from norewind.learners.least_squares import LeastSquares, LeastSquaresRun, learn_rows
from norewind.learners.linear import LinearModel
from norewind.learners.steps import upcoming_forecasts


class Squares:
    """Learns every key's rows with the key's own least squares; see `norewind.fleets.fleet.Engine`.

    Args:
        learner: the learner.
        run: the run that every key starts from.
    """

    chunk_size, any_order = 1 << 17, True

    def __init__(self, learner: LeastSquares, run: LeastSquaresRun):
        self.plan, self.steps, self.shared = learner.plan, learner.steps, ()
        model, rows, waiting = learner.slot(run)
        self.own = {name: part[0] for name, part in model._asdict().items()} | {"rows": rows[0], "outputs": waiting[0]}

    def learn(self, shared: Tree, arrays: dict[str, np.ndarray], slots: np.ndarray, xs: Any, targets: Any):
        """Learn from rows, in order; see `norewind.fleets.fleet.Engine.learn`.

        Args:
            shared: passed through, since keys share nothing.
            arrays: the arrays of all slots, changed in place.
            slots: the slot of each row.
            xs: the inputs of the rows.
            targets: their targets.

        Returns:
            The shared part, the losses, the forecasts made at the rows, and the earlier forecasts of these rows.
        """
        xs, targets = np.ascontiguousarray(xs, np.float32), np.ascontiguousarray(targets, np.float32)
        losses = np.zeros(len(xs), np.float32)
        made, due = np.empty(targets.shape, np.float32), np.empty(targets.shape, np.float32)
        runs = LinearModel(*(arrays[name] for name in LinearModel._fields)), arrays["rows"], arrays["outputs"]
        learn_rows(self.plan, runs, slots, xs, targets, losses, (made, due))
        return shared, losses, made, due

    def answer(self, arrays: dict[str, np.ndarray], xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the forecasts from one more row of each key, without learning; see `fleets.fleet.Engine.answer`.

        Args:
            arrays: the arrays of the keys, with one entry per row; they must not be used afterwards.
            xs: the inputs of the rows.

        Returns:
            The forecasts made at the rows, and the earlier forecasts of these rows.
        """
        unknown = np.full((len(xs), arrays["weights"].shape[1]), np.nan, np.float32)
        _, _, made, due = self.learn((), arrays, np.arange(len(xs)), xs, unknown)
        return made, due

    def upcoming(self, record: np.ndarray) -> np.ndarray:
        """Return the forecasts of the next rows of a key.

        Args:
            record: the record of the key.
        """
        return upcoming_forecasts(record["outputs"], self.steps, int(record["rows"]))
