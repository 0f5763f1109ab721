"""Forecasts of classes from the most similar earlier rows."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.horizon import check_same_length, check_steps, exchange, upcoming_forecasts
from norewind.learners.learner import Forecasts, RowLearner, empty_forecasts

# The numbers of latest rows that are compared, and of the most similar ones that vote.
WINDOWS, NEIGHBOURS = (100, 300, 1000), 7
# The number of votes that all classes share before the first real one.
PRIOR_VOTES = 0.5
# The largest weight of a vote, and the distance below which rows count as equal.
LARGEST_VOTE, SMALLEST = 10.0, 1e-12
# How quickly the relevance of an input follows the latest rows, and what is added to it: at first, all count alike.
RELEVANCE_RATE, PRIOR_RELEVANCE = 0.002, 0.02


class NeighboursRun(NamedTuple):
    """The latest rows.

    Attributes:
        past: a ring of their inputs (inputs, rows).
        classes: a ring of their classes; -1 if unknown.
        relevance: by how much each input differs more between rows of different classes than within one.
        outputs: a ring of the forecasts made at the latest rows.
        rows: the number of rows in the sequence.
    """

    past: np.ndarray
    classes: np.ndarray
    relevance: np.ndarray
    outputs: np.ndarray
    rows: np.ndarray


class NeighboursLearner(RowLearner):
    """Abstract base class of learners that compare every row with the latest rows.

    Attributes:
        inputs: the number of inputs that are compared; any further ones are ignored.
        columns: the number of columns of the targets.
    """

    inputs: int
    columns: int

    @abstractmethod
    def learn(self, run: Any, xs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, Forecasts]:
        """Learn from rows, in place, and return their losses and forecasts.

        Args:
            run: the latest rows, changed in place.
            xs: inputs, of which there may be more than targets: the results of these are zeros.
            targets: targets; NaN means unknown.
        """

    def scan(
        self, run: Any, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[Any, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`. Outputs are always returned: they cost nothing extra."""
        check_same_length(xs, targets)
        xs = np.ascontiguousarray(xs[:, : self.inputs], np.float32)
        return run, *self.learn(run, xs, np.ascontiguousarray(targets[:count], np.float32))

    def forward(self, run: Any, xs: np.ndarray, *, count: int | None = None) -> tuple[Any, Forecasts]:
        run = type(run)(*(part.copy() for part in run))
        return run, self.scan(run, xs, np.full((len(xs), self.columns), np.nan), count=count)[2]


class ClassNeighbours(NeighboursLearner):
    """Forecasts a class by the votes of the seven most similar of the latest rows, one forecast for each window.

    Rows are compared by the squared distance of their inputs. A vote has the weight 1 if its row is the farthest of
    the seven, and more the nearer it is: the ratio of their squared distances, at most ten. If classes belong to the
    row itself, inputs are weighted by the square of their relevance (Kira & Rendell's Relief): how much farther away
    the nearest row of another class is, in this input, than the nearest row of the same class, on average over recent
    rows.

    Targets are class indices, of shape (rows, steps); an unknown one is NaN. Outputs are log-probabilities, of shape
    (rows, windows × steps × classes): half a vote is shared by all classes. For a step above 0, the class of a row is
    the one that came as many rows later. Losses are in nats, those of the largest window.

    Args:
        inputs: the number of inputs that are compared; any further ones are ignored.
        classes: the number of classes.
        steps: the steps to forecast, in rows ahead, in increasing order; `(0,)` if classes belong to the row itself.
        windows: how many of the latest rows are compared, in increasing order.

    >>> import numpy as np
    >>> xs = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    >>> learner = ClassNeighbours(2, classes=2, windows=(1000,))
    >>> run, _, _ = learner.scan(learner.init(), xs, (xs[:, :1] * xs[:, 1:] > 0).astype(np.float32))
    >>> learner.forward(run, np.array([[1, -1], [-1, -1]], np.float32))[1].made.argmax(axis=1)
    array([0, 1])
    """

    def __init__(self, inputs: int, classes: int, *, steps: Sequence[int] = (0,), windows: Sequence[int] = WINDOWS):
        self.classes = classes
        self.steps = check_steps(type(self).__name__, steps)
        self.columns = len(steps)
        self.inputs = inputs
        self.windows = tuple(windows)
        self.ring = windows[-1] + max(1, self.horizon)

    def init(self) -> NeighboursRun:
        """Start a run without rows."""
        outputs = np.zeros((self.horizon, len(self.windows), len(self.steps) * self.classes), np.float32)
        past = np.zeros((self.inputs, self.ring), np.float32)
        return NeighboursRun(past, np.full(self.ring, -1), np.zeros(self.inputs), outputs, np.zeros(1, np.int64))

    def learn(self, run: NeighboursRun, xs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, Forecasts]:
        losses = np.zeros(len(xs), np.float32)
        width = len(self.windows) * len(self.steps) * self.classes
        made, due = forecasts = empty_forecasts(self.horizon, (len(xs), width))
        steps, windows = np.array(self.steps), np.array(self.windows)
        _learn_rows(steps, windows, run, xs[: len(targets)], targets, losses, made, due)
        return losses, forecasts

    def upcoming(self, run: NeighboursRun) -> np.ndarray:
        return upcoming_forecasts(run.outputs, self.steps, run.rows[0])

    def reset(self, run: NeighboursRun) -> NeighboursRun:
        run.classes[:] = -1  # rows of another sequence are not neighbours
        run.outputs[:] = 0
        run.rows[:] = 0
        return run


@kernel
def _learn_rows(steps, windows, run, xs, targets, losses, made, due):
    """Learn from the class of each row, then forecast. For forecasts of the row itself, forecast first.

    Args:
        steps: the steps, in rows ahead.
        windows: how many of the latest rows are compared, in increasing order.
        run: the latest rows, changed in place.
        xs: inputs.
        targets: class indices (rows, steps); NaN means unknown.
        losses: where to write the losses.
        made: where to write the forecasts made at the rows.
        due: where to write the earlier forecasts of the rows.
    """
    ring, width = len(run.classes), made.shape[1] // len(windows)
    classes = width // len(steps)
    distances, scales = np.zeros(ring, np.float32), np.ones(xs.shape[1], np.float32)
    mixed = np.zeros((len(windows), width), np.float32)
    for t in range(len(xs)):
        row = run.rows[0]
        here = row % ring
        observed = np.int64(-1)
        for s in range(len(steps)):
            if 0 <= targets[t, s] < classes:
                observed = np.int64(targets[t, s])
        run.classes[here] = observed if steps[0] > 0 else -1
        write_scales(run.relevance, scales)
        write_distances(run.past, here, xs[t], scales, distances)
        for s in range(len(steps)):
            _vote(run.classes, steps[s], windows, row, distances, mixed[:, s * classes : (s + 1) * classes])
        made[t] = mixed.reshape(mixed.size)
        if steps[0] > 0:
            exchange(run.outputs, steps, row, mixed, mixed)
        due[t] = mixed.reshape(mixed.size)
        if steps[0] == 0 and observed >= 0:
            _learn_relevance(run, here, observed, distances)
        run.classes[here] = observed
        for s in range(len(steps)):
            if row >= steps[s] and 0 <= targets[t, s] < classes:
                losses[t] -= mixed[-1, s * classes + np.int64(targets[t, s])]
        run.rows[0] += 1


@kernel
def write_scales(relevance, scales):
    """Write the weight of each input in squared distances: 1 for the most relevant one.

    Args:
        relevance: the relevance of each input.
        scales: where to write the weights.
    """
    largest = max(relevance.max(), 0.0) if len(relevance) > 0 else 0.0
    for i in range(len(relevance)):
        scales[i] = ((max(relevance[i], 0.0) + PRIOR_RELEVANCE) / (largest + PRIOR_RELEVANCE)) ** 2


@kernel
def write_distances(past, here, x, scales, distances):
    """Add a row to the latest rows, and write its squared distance from each of them.

    Args:
        past: a ring of inputs (inputs, rows), changed in place.
        here: the place of the row in the ring.
        x: its inputs.
        scales: the weight of each input.
        distances: where to write the distances.
    """
    distances[:] = 0.0
    for i in range(len(x)):
        past[i, here] = x[i]
        for other in range(len(distances)):
            distances[other] += scales[i] * (past[i, other] - x[i]) ** 2


@kernel
def insert_nearest(distance, place, sizes, places):
    """Insert a row into the list of the nearest rows, if it is nearer than the last of them.

    Args:
        distance: its distance.
        place: its place in the ring.
        sizes: the distances of the nearest rows, in increasing order, changed in place.
        places: their places, changed in place.
    """
    rank = len(sizes) - 1
    if not distance < sizes[rank]:
        return
    while rank > 0 and distance < sizes[rank - 1]:
        sizes[rank], places[rank] = sizes[rank - 1], places[rank - 1]
        rank -= 1
    sizes[rank], places[rank] = distance, place


@kernel
def vote_of(sizes, rank):
    """Return the weight of one of the nearest rows: the ratio of the farthest one's distance to its own.

    Args:
        sizes: the distances of the nearest rows, in increasing order; infinite if there is no such row.
        rank: which of them.
    """
    farthest = sizes[len(sizes) - 1]
    return min(farthest / max(sizes[rank], SMALLEST), LARGEST_VOTE) if farthest < np.inf else 1.0


@kernel
def _vote(classes, step, windows, row, distances, mixed):
    """Write the log-probabilities of the classes, from the votes of the nearest rows whose class is known.

    Args:
        classes: the ring of classes; -1 is unknown.
        step: how many rows ahead.
        windows: how many of the latest rows are compared, in increasing order.
        row: the number of the latest row.
        distances: its distance from each row of the ring.
        mixed: where to write the log-probabilities (windows, classes).
    """
    ring, first = len(classes), max(step, 1)
    sizes, votes = np.full(NEIGHBOURS, np.inf, np.float32), np.full(NEIGHBOURS, -1)
    ago = first
    for w in range(len(windows)):
        # The latest rows first, so that the newer of two equally similar rows wins.
        while ago < min(row + 1, first + windows[w]):
            came = classes[(row - ago + step) % ring]
            if came >= 0:
                insert_nearest(distances[(row - ago) % ring], came, sizes, votes)
            ago += 1
        mixed[w] = PRIOR_VOTES / mixed.shape[1]
        total = PRIOR_VOTES
        for rank in range(NEIGHBOURS):
            if votes[rank] >= 0:
                weight = vote_of(sizes, rank)
                mixed[w, votes[rank]] += weight
                total += weight
        for k in range(mixed.shape[1]):
            mixed[w, k] = np.log(mixed[w, k] / total)


@kernel
def _learn_relevance(run, here, observed, distances):
    """Learn how relevant each input is from the nearest row of the same class and the nearest one of another."""
    same, other = -1, -1
    for place in range(len(distances)):
        if place != here and run.classes[place] >= 0:
            if run.classes[place] == observed:
                same = place if same < 0 or distances[place] < distances[same] else same
            else:
                other = place if other < 0 or distances[place] < distances[other] else other
    if same < 0 or other < 0:
        return
    for i in range(len(run.past)):
        margin = abs(run.past[i, other] - run.past[i, here]) - abs(run.past[i, same] - run.past[i, here])
        run.relevance[i] += RELEVANCE_RATE * (margin - run.relevance[i])
