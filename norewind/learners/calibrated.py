"""Calibrated probabilities of classes: the outputs of a learner, multiplied by a temperature that is learned online."""

from typing import Any, NamedTuple

import numpy as np

from norewind.core.trees import Tree
from norewind.engines.kernels import kernel
from norewind.learners.horizon import exchange, upcoming_forecasts
from norewind.learners.learner import Forecasts, RowLearner, empty_forecasts

# The curvature that the initial temperature, 1, starts with, and the share of the curvature that is kept per row.
PRIOR_CURVATURE, KEPT_CURVATURE = 5.0, 0.999
LEAST_TEMPERATURE, LARGEST_TEMPERATURE = 0.05, 20.0


class CalibratedRun(NamedTuple):
    """The run of the learner, and its temperatures.

    Attributes:
        learner: the run of the learner.
        temperatures: for each forecast and step, the factor of the outputs and the sum of curvatures (forecasts, steps,
            2).
        outputs: a ring of the forecasts made at the latest rows.
        rows: the number of rows in the sequence.
    """

    learner: Tree
    temperatures: np.ndarray
    outputs: np.ndarray
    rows: np.ndarray


class CalibratedLearner(RowLearner):
    """Calibrates another learner of classes: multiplies its outputs by factors that are learned online.

    The factor of each forecast and step follows Newton's method on the log-loss, which is convex in it, row by row: it
    rises while the learner is right more often than its probabilities say, and falls while it is wrong more often.
    Outputs are logarithms of probabilities, which need not add up to one.

    Args:
        learner: a learner of classes whose outputs are logits, and whose forecasts that are due are those it made.
        classes: the number of classes.
        forecasts: how many forecasts its outputs hold side by side.
    """

    def __init__(self, learner: Any, classes: int, forecasts: int = 1):
        self.learner = learner
        self.classes = classes
        self.forecasts = forecasts
        self.steps: tuple[int, ...] = tuple(learner.steps)

    def init(self) -> CalibratedRun:
        """Start a run of the other learner, with a factor of 1."""
        steps = len(self.steps)
        temperatures = np.tile([1.0, PRIOR_CURVATURE], (self.forecasts, steps, 1))
        outputs = np.zeros((self.horizon, self.forecasts, steps * self.classes), np.float32)
        return CalibratedRun(self.learner.init(), temperatures, outputs, np.zeros(1, np.int64))

    def scan(
        self, run: CalibratedRun, xs: Tree, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[CalibratedRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`. Losses are those of the other learner."""
        inner, losses, raw = self.learner.scan(run.learner, xs, targets, count=count, outputs=True)
        run = run._replace(learner=inner)
        return run, losses, self._scale(run, raw, np.asarray(targets, np.float32), count)

    def forward(self, run: CalibratedRun, xs: Tree, *, count: int | None = None) -> tuple[CalibratedRun, Forecasts]:
        inner, raw = self.learner.forward(run.learner, xs, count=count)
        run = CalibratedRun(inner, run.temperatures.copy(), run.outputs.copy(), run.rows.copy())
        return run, self._scale(run, raw, np.full((len(xs), len(self.steps)), np.nan, np.float32), count)

    def _scale(self, run: CalibratedRun, raw: Forecasts, targets: np.ndarray, count: int | None) -> Forecasts:
        made, due = (np.ascontiguousarray(part, np.float32) for part in raw)
        forecasts = empty_forecasts(self.horizon, made.shape)
        targets = np.ascontiguousarray(targets[:count])
        _scale_rows(np.array(self.steps), *run[1:], made, due, targets, *forecasts)
        return forecasts

    def upcoming(self, run: CalibratedRun) -> np.ndarray:
        return upcoming_forecasts(run.outputs, self.steps, run.rows[0])

    def reset(self, run: CalibratedRun) -> CalibratedRun:
        run.outputs[:] = 0
        run.rows[:] = 0
        return run._replace(learner=self.learner.reset(run.learner))


@kernel
def _scale_rows(steps, temperatures, ring, rows, raw_made, raw_due, targets, made, due):
    """Learn the factors from the class of each row, and scale its forecasts. With a step of 0, scale first."""
    forecasts, width = len(temperatures), raw_made.shape[1] // len(temperatures)
    classes = width // len(steps)
    scaled = np.zeros((forecasts, width), np.float32)
    for t in range(len(targets)):
        row = rows[0]
        for first in (True, False):
            for s in range(len(steps)):
                for f in range(forecasts):
                    start = f * width + s * classes
                    if (steps[s] == 0) == first:
                        for k in range(classes):
                            scaled[f, s * classes + k] = temperatures[f, s, 0] * raw_made[t, start + k]
                    if first == (steps[s] > 0) and row >= steps[s] and 0 <= targets[t, s] < classes:
                        learn_temperature(temperatures[f, s], raw_due[t, start : start + classes], targets[t, s])
        made[t] = scaled.reshape(scaled.size)
        if steps[0] > 0:
            exchange(ring, steps, row, scaled, scaled)
        due[t] = scaled.reshape(scaled.size)
        rows[0] += 1


@kernel
def learn_temperature(temperature, logits, target):
    """Take a Newton step on the log-loss of a class.

    Args:
        temperature: the factor of the logits, and the sum of curvatures, changed in place.
        logits: the logits that the class was forecast with, without the factor.
        target: the class.
    """
    largest, total, mean, square = -np.inf, 0.0, 0.0, 0.0
    for k in range(len(logits)):
        largest = max(largest, temperature[0] * logits[k])
    for k in range(len(logits)):
        share = np.exp(temperature[0] * logits[k] - largest)
        total += share
        mean += share * logits[k]
        square += share * logits[k] ** 2
    mean /= total
    if not np.isfinite(mean):
        return
    temperature[1] = KEPT_CURVATURE * temperature[1] + max(square / total - mean**2, 0.0) + (1 - KEPT_CURVATURE)
    change = (mean - logits[np.int64(target)]) / temperature[1]
    temperature[0] = min(max(temperature[0] - change, LEAST_TEMPERATURE), LARGEST_TEMPERATURE)
