"""Forecasts of numbers from the most similar earlier rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.learner import Forecasts, empty_forecasts
from norewind.learners.neighbours import (
    NEIGHBOURS,
    PRIOR_VOTES,
    WINDOWS,
    NeighboursLearner,
    insert_nearest,
    vote_of,
    write_distances,
)


class NumberNeighboursRun(NamedTuple):
    """The latest rows.

    Attributes:
        past: a ring of their inputs (inputs, rows).
        targets: a ring of their targets (rows, targets); NaN if unknown.
        rows: the number of rows in the sequence.
    """

    past: np.ndarray
    targets: np.ndarray
    rows: np.ndarray


class NumberNeighbours(NeighboursLearner):
    """Predicts the targets of a row as the mean of those of the most similar latest rows, weighted by similarity.

    There is one prediction for each window. Rows are compared, and weighted, as in `ClassNeighbours`, but all inputs
    count alike; the number 0, which standardised targets have on average, has half a vote. Rows with an unknown target
    (NaN) are not used. Losses are half the squared errors of the largest window.

    Args:
        inputs: the number of inputs that are compared; any further ones are ignored.
        targets: the number of targets.
        windows: how many of the latest rows are compared, in increasing order.

    >>> import numpy as np
    >>> xs = np.random.default_rng(0).uniform(-1, 1, size=(900, 2)).astype(np.float32)
    >>> learner = NumberNeighbours(2, 1, windows=(1000,))
    >>> run, _, _ = learner.scan(learner.init(), xs, xs[:, :1] * xs[:, 1:])
    >>> made = learner.forward(run, np.array([[0.5, 0.5], [-0.5, 0.5]], np.float32))[1].made[:, 0]
    >>> [f"{value:.2f}" for value in made]
    ['0.26', '-0.25']
    """

    steps = (0,)

    def __init__(self, inputs: int, targets: int, *, windows: Sequence[int] = WINDOWS):
        self.inputs, self.columns = inputs, targets
        self.windows = tuple(windows)

    def init(self) -> NumberNeighboursRun:
        """Start a run without rows."""
        ring = self.windows[-1] + 1
        past = np.zeros((self.inputs, ring), np.float32)
        return NumberNeighboursRun(past, np.full((ring, self.columns), np.nan, np.float32), np.zeros(1, np.int64))

    def learn(self, run: NumberNeighboursRun, xs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, Forecasts]:
        losses = np.zeros(len(xs), np.float32)
        forecasts = empty_forecasts(0, (len(xs), len(self.windows) * self.columns))
        _learn_rows(np.array(self.windows), run, xs[: len(targets)], targets, losses, forecasts.made)
        return losses, forecasts

    def upcoming(self, run: NumberNeighboursRun) -> np.ndarray:
        return np.zeros((0, len(self.windows) * self.columns), np.float32)

    def reset(self, run: NumberNeighboursRun) -> NumberNeighboursRun:
        run.targets[:] = np.nan  # rows of another sequence are not neighbours
        run.rows[:] = 0
        return run


@kernel
def _learn_rows(windows, run, xs, targets, losses, made):
    """Predict the targets of each row, then keep them.

    Args:
        windows: how many of the latest rows are compared, in increasing order.
        run: the latest rows, changed in place.
        xs: inputs.
        targets: targets (rows, targets); NaN means unknown.
        losses: where to write the losses.
        made: where to write the predictions.
    """
    ring, width = run.targets.shape
    distances, scales = np.zeros(ring, np.float32), np.ones(xs.shape[1], np.float32)
    for t in range(len(xs)):
        row = run.rows[0]
        here = row % ring
        write_distances(run.past, here, xs[t], scales, distances)
        sizes, places = np.full(NEIGHBOURS, np.inf, np.float32), np.full(NEIGHBOURS, -1)
        ago = 1
        for w in range(len(windows)):
            while ago < min(row, windows[w]) + 1:
                place = (row - ago) % ring
                if not np.isnan(run.targets[place].sum()):
                    insert_nearest(distances[place], place, sizes, places)
                ago += 1
            _write_mean(run.targets, sizes, places, made[t, w * width : (w + 1) * width])
        run.targets[here] = targets[t]
        for i in range(width):
            if not np.isnan(targets[t, i]):
                losses[t] += (made[t, (len(windows) - 1) * width + i] - targets[t, i]) ** 2 / 2
        run.rows[0] += 1


@kernel
def _write_mean(targets, sizes, places, mean):
    """Write the mean of the targets of the nearest rows."""
    mean[:] = 0.0
    total = PRIOR_VOTES
    for rank in range(len(places)):
        if places[rank] >= 0:
            weight = vote_of(sizes, rank)
            total += weight
            for i in range(len(mean)):
                mean[i] += weight * targets[places[rank], i]
    for i in range(len(mean)):
        mean[i] /= total
