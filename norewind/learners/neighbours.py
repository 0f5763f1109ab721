"""Classes of the most similar earlier rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.horizon import check_same_length, check_steps, exchange, upcoming_forecasts
from norewind.learners.learner import Forecasts, RowLearner, empty_forecasts

# The number of latest rows that are compared, and of the most similar ones that vote.
WINDOW, NEIGHBOURS = 1000, 7
# The share of a vote that all classes together have before the first.
PRIOR_VOTES = 0.5
# The largest weight of a vote, and a distance below which rows count as equal.
LARGEST_VOTE, SMALLEST = 10.0, 1e-12


class NeighboursRun(NamedTuple):
    """The latest rows.

    Attributes:
        past: a ring of their inputs (inputs, rows).
        classes: a ring of their classes; -1 if unknown.
        outputs: a ring of the forecasts made at the latest rows.
        rows: the number of rows in the sequence.
    """

    past: np.ndarray
    classes: np.ndarray
    outputs: np.ndarray
    rows: np.ndarray


class ClassNeighbours(RowLearner):
    """Forecasts a class by the votes of the seven most similar of the latest thousand rows.

    Rows are compared by the squared distance of their inputs. A vote has the weight 1 if its row is the farthest of
    the seven, and more the nearer it is: the ratio of their squared distances, at most ten. Targets are class
    indices, of shape (rows, steps); an unknown one is NaN. Outputs are log-probabilities, of shape (rows, steps ×
    classes): half a vote is shared by all classes. For a step above 0, the class of a row is the one that came as
    many rows later. Losses are in nats.

    Args:
        inputs: the number of inputs that are compared; any further ones are ignored.
        classes: the number of classes.
        steps: the steps to forecast, in rows ahead, in increasing order; `(0,)` if classes belong to the row itself.
        window: the number of latest rows that are compared.

    >>> import numpy as np
    >>> xs = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    >>> learner = ClassNeighbours(2, classes=2)
    >>> run, _, _ = learner.scan(learner.init(), xs, (xs[:, :1] * xs[:, 1:] > 0).astype(np.float32))
    >>> learner.forward(run, np.array([[1, -1], [-1, -1]], np.float32))[1].made.argmax(axis=1)
    array([0, 1])
    """

    def __init__(self, inputs: int, classes: int, *, steps: Sequence[int] = (0,), window: int = WINDOW):
        self.classes = classes
        self.steps = check_steps(type(self).__name__, steps)
        self.inputs = inputs
        self.ring = window + max(1, self.horizon)

    def init(self) -> NeighboursRun:
        """Start a run without rows."""
        outputs = np.zeros((self.horizon, 1, len(self.steps) * self.classes), np.float32)
        past = np.zeros((self.inputs, self.ring), np.float32)
        return NeighboursRun(past, np.full(self.ring, -1), outputs, np.zeros(1, np.int64))

    def scan(
        self,
        run: NeighboursRun,
        xs: np.ndarray,
        targets: np.ndarray,
        *,
        count: int | None = None,
        outputs: bool = False,
    ) -> tuple[NeighboursRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`. Outputs are always returned: they cost nothing extra."""
        check_same_length(xs, targets)
        return run, *self._learn(run, xs, np.asarray(targets, np.float32), count)

    def forward(
        self, run: NeighboursRun, xs: np.ndarray, *, count: int | None = None
    ) -> tuple[NeighboursRun, Forecasts]:
        run = NeighboursRun(*(part.copy() for part in run))
        return run, self._learn(run, xs, np.full((len(xs), len(self.steps)), np.nan, np.float32), count)[1]

    def _learn(
        self, run: NeighboursRun, xs: np.ndarray, targets: np.ndarray, count: int | None
    ) -> tuple[np.ndarray, Forecasts]:
        xs = np.ascontiguousarray(xs[:, : self.inputs], np.float32)
        losses = np.zeros(len(xs), np.float32)
        made, due = forecasts = empty_forecasts(self.horizon, (len(xs), len(self.steps) * self.classes))
        _learn_rows(np.array(self.steps), run, xs[:count], np.ascontiguousarray(targets), losses, made, due)
        return losses, forecasts

    def upcoming(self, run: NeighboursRun) -> np.ndarray:
        return upcoming_forecasts(run.outputs, self.steps, run.rows[0])

    def reset(self, run: NeighboursRun) -> NeighboursRun:
        run.classes[:] = -1  # the rows of another sequence are no neighbours
        run.outputs[:] = 0
        run.rows[:] = 0
        return run


@kernel
def _learn_rows(steps, run, xs, targets, losses, made, due):
    """Learn from the class of each row, then forecast. For forecasts of the row itself, forecast first.

    Args:
        steps: the steps, in rows ahead.
        run: the latest rows, changed in place.
        xs: inputs.
        targets: class indices (rows, steps); NaN means unknown.
        losses: where to write the losses.
        made: where to write the forecasts made at the rows.
        due: where to write the earlier forecasts of the rows.
    """
    ring, classes = len(run.classes), made.shape[1] // len(steps)
    distances, mixed = np.zeros(ring, np.float32), np.zeros((1, made.shape[1]), np.float32)
    for t in range(len(xs)):
        row = run.rows[0]
        here = row % ring
        observed = np.int64(-1)
        for s in range(len(steps)):
            if 0 <= targets[t, s] < classes:
                observed = np.int64(targets[t, s])
        run.classes[here] = observed if steps[0] > 0 else -1
        distances[:] = 0.0
        for i in range(xs.shape[1]):
            run.past[i, here] = xs[t, i]
            for other in range(ring):
                distances[other] += (run.past[i, other] - xs[t, i]) ** 2
        for s in range(len(steps)):
            _vote(run.classes, steps[s], row, distances, mixed[0, s * classes : (s + 1) * classes])
        made[t] = mixed[0]
        if steps[0] > 0:
            exchange(run.outputs, steps, row, mixed, mixed)
        due[t] = mixed[0]
        run.classes[here] = observed
        for s in range(len(steps)):
            if row >= steps[s] and 0 <= targets[t, s] < classes:
                losses[t] -= due[t, s * classes + np.int64(targets[t, s])]
        run.rows[0] += 1


@kernel
def _vote(classes, step, row, distances, mixed):
    """Write the log-probabilities of the classes by the votes of the nearest rows whose class has come.

    Args:
        classes: the ring of classes; -1 is unknown.
        step: how many rows ahead.
        row: the number of the latest row.
        distances: its distance from each row of the ring.
        mixed: where to write the log-probabilities.
    """
    ring = len(classes)
    sizes, votes = np.full(NEIGHBOURS, np.inf, np.float32), np.full(NEIGHBOURS, -1)
    # The latest rows first, so that the newer of two equally similar ones counts.
    for ago in range(max(step, 1), min(row + 1, ring)):
        place = (row - ago) % ring
        if distances[place] < sizes[NEIGHBOURS - 1]:
            came = classes[(row - ago + step) % ring]
            if came < 0:
                continue
            rank = NEIGHBOURS - 1
            while rank > 0 and distances[place] < sizes[rank - 1]:
                sizes[rank], votes[rank] = sizes[rank - 1], votes[rank - 1]
                rank -= 1
            sizes[rank], votes[rank] = distances[place], came
    mixed[:] = PRIOR_VOTES / len(mixed)
    total = PRIOR_VOTES
    for rank in range(NEIGHBOURS):
        if votes[rank] >= 0:
            # A vote counts the more the nearer the row is, compared with the farthest of those that vote.
            farthest = sizes[NEIGHBOURS - 1]
            weight = min(farthest / max(sizes[rank], SMALLEST), LARGEST_VOTE) if farthest < np.inf else 1.0
            mixed[votes[rank]] += weight
            total += weight
    for k in range(len(mixed)):
        mixed[k] = np.log(mixed[k] / total)
