"""Forecasts of classes: networks and simple counts, mixed by how well they do."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.kernels import kernel
from norewind.learners.members import forecasts_of, forward_all, reset_all, scan_all
from norewind.learners.mix import mix_row
from norewind.learners.protocol import Learner
from norewind.learners.steps import exchange, ring_to_come, same_length

# The share of its weight that each expert passes on after a row, so that the mixture can follow a change.
SWITCHING = 0.002
PRIOR = 0.1
# The share of a count that is kept from row to row.
REMEMBERED = 0.9995
# No class is impossible, whatever an expert says.
LEAST = 1e-6


class CountingRun(NamedTuple):
    """How often each class came, and after which (steps, before, class); the newest classes known, a ring, or -1; the
    logarithms of the experts' weights (steps, experts); the forecasts that wait for their classes, of all experts and
    of the mixture; and the number of rows in the sequence."""

    classes: np.ndarray
    pairs: np.ndarray
    newest: np.ndarray
    log_weights: np.ndarray
    waiting: np.ndarray
    outputs: np.ndarray
    rows: np.ndarray


class ClassRun(NamedTuple):
    """The runs of the members, and everything else."""

    members: tuple
    counting: CountingRun


class ClassLearner(Learner):
    """Forecasts of a class, all steps of a horizon, by experts whose weights follow how well they do.

    The experts are the frequencies of the classes, their frequencies after the class that
    is newest, and `members`, mixed as `mix` does it: for every step, over the rows whose class
    is known, the total loss is hardly more than that of the best of them. Targets are numbers of
    classes, of shape (rows, steps); an unknown one is NaN. Outputs are logarithms of
    probabilities, of shape (rows, steps × classes).

    Args:
        members: learners of the same steps, each with the run it starts from and the number of its forecasts, which
            stand side by side in its outputs and are logits.
        classes: the number of classes.
        steps: how many rows ahead to forecast, in increasing order; `(0,)` if classes belong to the row itself.
    """

    def __init__(self, members: Sequence[tuple], classes: int, steps: Sequence[int] = (0,)):
        self.members, self._runs = [learner for learner, *_ in members], tuple(run for _, run, _ in members)
        self.classes, self.steps, self.horizon = classes, tuple(steps), steps[-1]
        self.experts = 2 + sum(number for *_, number in members)
        self._steps = np.array(steps)

    def init(self) -> ClassRun:
        """Start with equal weights."""
        steps, classes, experts = len(self.steps), self.classes, self.experts
        counting = CountingRun(
            np.full(classes, PRIOR),
            np.full((steps, classes, classes), PRIOR),
            np.full(max(1, self.horizon) + 1, -1),
            np.full((steps, experts), -np.log(experts)),
            np.zeros((self.horizon, experts, steps * classes), np.float32),
            np.zeros((self.horizon, 1, steps * classes), np.float32),
            np.zeros(1, np.int64),
        )
        return ClassRun(self._runs, counting)

    def scan(
        self, run: ClassRun, xs: Any, targets: Any, *, count: int | None = None, outputs: bool = False
    ) -> tuple[ClassRun, Any]:
        """Learn from a chunk of rows; see `Learner.scan`. Losses are in nats."""
        same_length(xs, targets)
        count = len(xs) if count is None else count
        members, seen = scan_all(self.members, run.members, xs, targets, count)
        losses, shown = self._rows(run.counting, seen, np.asarray(targets), count)
        return ClassRun(members, run.counting), (losses, shown) if outputs else losses

    def forward(self, run: ClassRun, xs: Any, *, count: int | None = None) -> tuple[ClassRun, Any]:
        """Forecast from a chunk of rows without learning. Without targets, the newest class stays what it was."""
        count = len(xs) if count is None else count
        members, seen = forward_all(self.members, run.members, xs, count)
        moving = {name: getattr(run.counting, name).copy() for name in ("newest", "waiting", "outputs", "rows")}
        counting = run.counting._replace(**moving)
        unknown = np.full((len(xs), len(self.steps)), np.nan)
        return ClassRun(members, counting), self._rows(counting, seen, unknown, count)[1]

    def _rows(self, counting: CountingRun, seen: list, targets: np.ndarray, count: int) -> tuple[np.ndarray, Any]:
        """The losses of the first rows, and what is forecast at them and had been forecast of them."""
        rows, width = len(targets), len(self.steps) * self.classes
        logits = forecasts_of(seen, self.horizon, rows, width)
        targets = np.ascontiguousarray(targets, np.float32)
        losses, (made, due) = np.zeros(rows, np.float32), np.zeros((2, rows, width), np.float32)
        _rows(self._steps, counting, targets[:count], logits, losses, made, due)
        return losses, (made, due) if self.horizon else made

    def pending(self, run: ClassRun) -> np.ndarray | None:
        """The forecasts of future rows; see `Learner.pending`."""
        return None if not self.horizon else ring_to_come(run.counting.outputs, self.steps, run.counting.rows[0])

    def reset(self, run: ClassRun) -> ClassRun:
        """Begin a new sequence; what was learned stays."""
        counting = run.counting
        counting.newest[:] = -1
        for part in (counting.waiting, counting.outputs, counting.rows):
            part[:] = 0
        return ClassRun(reset_all(self.members, run.members), counting)


@kernel
def _rows(steps, run, targets, logits, losses, made, due):
    """Row by row: learn from the class that came, then forecast; of the same row, the other way round."""
    classes, experts = run.pairs.shape[2], run.log_weights.shape[1]
    forecasts = np.zeros((experts, len(steps) * classes))
    before, shown, lost = np.zeros_like(forecasts), np.zeros((1, len(steps) * classes)), np.zeros(experts)
    for t in range(len(targets)):
        row = run.rows[0]
        came = np.nan
        for s in range(len(steps)):
            # The class is the same for all steps for which it is known.
            came = targets[t, s] if is_class(targets[t, s], classes) else came
        newest = run.newest[(row - 1) % len(run.newest)]
        run.newest[row % len(run.newest)] = newest if np.isnan(came) else np.int64(came)
        if steps[0] > 0:
            newest = run.newest[row % len(run.newest)]
            _count(run, steps, row, came)
        for s in range(len(steps)):
            _forecast(run, s, newest, logits[t], forecasts)
        if steps[0] > 0:
            exchange(run.waiting, steps, row, forecasts, before)
            for s in range(len(steps)):
                if row >= steps[s] and is_class(targets[t, s], classes):
                    lost[:] = -np.log(before[:, s * classes + np.int64(targets[t, s])])
                    mix_row(run.log_weights[s], lost, SWITCHING)
        for s in range(len(steps)):
            _blend(run.log_weights[s], forecasts, s * classes, shown[0, s * classes : (s + 1) * classes])
        made[t] = shown[0]
        if steps[0] > 0:
            exchange(run.outputs, steps, row, shown, shown)
        elif np.isfinite(came):
            _count(run, steps, row, came)
            lost[:] = -np.log(forecasts[:, np.int64(came)])
            mix_row(run.log_weights[0], lost, SWITCHING)
        due[t] = shown[0]
        for s in range(len(steps)):
            if row >= steps[s] and is_class(targets[t, s], classes):
                losses[t] -= due[t, s * classes + np.int64(targets[t, s])]
        run.rows[0] += 1


@kernel
def is_class(number, classes):
    """Whether this is the number of a class. An unknown one is NaN or -1; any other would be read from elsewhere."""
    return 0 <= number < classes


@kernel
def _count(run, steps, row, came):
    """Count a class, of all and after the class that was newest when it was to be forecast."""
    if np.isnan(came):
        return
    for k in range(len(run.classes)):
        run.classes[k] = REMEMBERED * run.classes[k] + (k == came)
    for s in range(len(steps)):
        ahead = max(1, steps[s])
        newest = run.newest[(row - ahead) % len(run.newest)]
        if row >= ahead and is_class(newest, len(run.classes)):
            for k in range(len(run.classes)):
                run.pairs[s, newest, k] = REMEMBERED * run.pairs[s, newest, k] + (k == came)


@kernel
def _forecast(run, s, newest, logits, forecasts):
    """Write all experts' probabilities for one step."""
    classes = run.pairs.shape[2]
    start = s * classes
    total = run.classes.sum()
    for k in range(classes):
        share = run.classes[k] / total
        forecasts[0, start + k] = share
        forecasts[1, start + k] = share + (run.pairs[s, newest, k] if is_class(newest, classes) else 0.0)
    for e in range(len(logits)):
        largest, finite = -np.inf, True
        for k in range(start, start + classes):
            largest, finite = max(largest, logits[e, k]), finite and np.isfinite(logits[e, k])
        for k in range(start, start + classes):
            # A member whose outputs are not all finite is ignored.
            forecasts[2 + e, k] = np.exp(np.float64(logits[e, k]) - largest) if finite else 1.0
    for e in range(len(forecasts)):
        own = forecasts[e, start : start + classes]
        total = own.sum()
        for k in range(classes):
            own[k] = (1 - classes * LEAST) * own[k] / total + LEAST


@kernel
def _blend(log_weights, forecasts, start, shown):
    """Write the mixture's log-probabilities for one step."""
    shown[:] = 0.0
    for e in range(len(log_weights)):
        weight = np.exp(log_weights[e])
        for k in range(len(shown)):
            shown[k] += weight * forecasts[e, start + k]
    for k in range(len(shown)):
        shown[k] = np.log(shown[k])
