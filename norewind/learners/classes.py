"""The best forecast of classes: networks and simple counts, mixed by how well they do."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind import checks
from norewind.trees import Tree

SHARE = 0.002
"""How much of its weight every expert passes on after each row, so that the mixture can follow a change."""
PRIOR = 0.1
REMEMBERED = 0.9995
"""How much of a count is kept from row to row."""
LEAST = 1e-6
"""No class is impossible, whatever an expert says."""


class ClassRun(NamedTuple):
    """The runs of the members, counts of classes and of pairs, weights, and what waits for its targets."""

    members: tuple
    counts: np.ndarray
    pairs: np.ndarray
    weights: np.ndarray
    newest: np.ndarray
    waiting: np.ndarray
    outputs: np.ndarray


class ClassLearner:
    """Forecasts of a class, `horizon` rows ahead, by experts whose weights follow how well they do.

    The experts are the frequencies of the classes, their frequencies after the class that
    is newest, and `members`. Targets are numbers of classes, of shape (rows, 1); an unknown
    one is NaN. Outputs are logarithms of probabilities.

    Args:
        members: learners with the runs they start from, whose outputs are logits: with a horizon, `Ahead(...)`.
        classes: the number of classes.
        horizon: how many rows ahead to forecast.
    """

    chunk = 1_000

    def __init__(self, members: Sequence[tuple], classes: int, horizon: int):
        self.members, self._runs = [learner for learner, _ in members], tuple(run for _, run in members)
        self.classes, self.horizon, self.experts = classes, horizon, 2 + len(members)

    def init(self) -> ClassRun:
        shape = (self.horizon, self.experts, self.classes)
        return ClassRun(
            self._runs,
            np.full(self.classes, PRIOR),
            np.full((self.classes, self.classes), PRIOR),
            np.full(self.experts, -np.log(self.experts)),
            np.full(max(1, self.horizon), -1, np.int32),
            np.full(shape, -np.log(self.classes)),
            np.full((self.horizon, self.classes), -np.log(self.classes), np.float32),
        )

    def scan(
        self, run: ClassRun, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[ClassRun, Any]:
        """Learn from a chunk of rows; see `Ahead.scan`. Losses are in nats."""
        rows = checks.common_length("scan", xs=xs, targets=targets)
        count = rows if count is None else count
        learned = [
            learner.scan(member, xs, targets, count=count, outputs=True)
            for learner, member in zip(self.members, run.members, strict=True)
        ]
        made = self._made([seen for _, (_, seen) in learned], rows)
        members = tuple(member for member, _ in learned)
        new, mixed = self._answer(run._replace(members=members), made, np.asarray(targets)[:count, 0])
        return new, self._result(run, mixed, np.asarray(targets)[:, 0], count, outputs=outputs)

    def forward(self, run: ClassRun, xs: np.ndarray, *, count: int | None = None) -> tuple[ClassRun, Any]:
        """Forecast from a chunk of rows without learning. Without targets, the newest class stays what it was."""
        count = len(xs) if count is None else count
        answered = [
            learner.forward(member, xs, count=count) for learner, member in zip(self.members, run.members, strict=True)
        ]
        made = self._made([seen for _, seen in answered], len(xs))
        members = tuple(member for member, _ in answered)
        new, mixed = self._answer(run._replace(members=members), made, np.full(count, np.nan))
        _, shown = self._result(run, mixed, np.full(len(xs), np.nan), count, outputs=True)
        return new, shown

    def mixed_row(self, run: ClassRun, logits: list, target: float) -> tuple[ClassRun, float, Any]:
        """One row, to which the members answered with these logits: the run, the loss and the outputs."""
        # Arrays of one row, as `scan` has them.
        seen = [np.asarray(part)[None] for part in logits]
        made, targets = self._made([(part,) for part in seen] if self.horizon else seen, 1), np.array([target])
        new, mixed = self._answer(run, made, targets)
        losses, outputs = self._result(run, mixed, targets, 1, outputs=True)
        first = (outputs[0][0], outputs[1][0]) if self.horizon else outputs[0]
        return new, float(losses[0]), first

    def _answer(self, run: ClassRun, made: np.ndarray, targets: np.ndarray) -> tuple[ClassRun, np.ndarray]:
        """Row by row: learn from the class that came, then forecast; of the same row, the other way round."""
        # Copies that NumPy owns, in 64 bits.
        counts, pairs, weights = (np.array(part, np.float64) for part in (run.counts, run.pairs, run.weights))
        newest = np.asarray(run.newest).tolist()
        waiting, mixed = list(np.asarray(run.waiting, np.float64)), np.zeros((len(made), self.classes), np.float32)
        known = ~np.isnan(targets)
        for row, came in enumerate(np.where(known, targets, 0).astype(int).tolist()):
            if self.horizon and known[row]:
                weights = _reweighted(weights, waiting[0][:, came])
                self._count(counts, pairs, newest[0], came)
            if self.horizon:
                newest = [*newest[1:], came if known[row] else newest[-1]]
            forecasts = np.concatenate([self._frequencies(counts, pairs, newest[-1]), made[row]])
            forecasts = np.log((1 - self.classes * LEAST) * np.exp(forecasts) + LEAST)
            mixed[row] = np.logaddexp.reduce(weights[:, None] + forecasts, axis=0)
            waiting = [*waiting[1:], forecasts] if self.horizon else waiting
            if not self.horizon and known[row]:
                weights = _reweighted(weights, forecasts[:, came])
                self._count(counts, pairs, newest[0], came)
                newest = [came]
        kept = run.waiting if not self.horizon else np.array(waiting)
        outputs = np.concatenate([run.outputs, mixed[: len(targets)]])[len(targets) :]
        return run._replace(
            counts=counts,
            pairs=pairs,
            weights=weights,
            newest=np.array(newest, np.int32),
            waiting=kept,
            outputs=outputs,
        ), mixed

    def _count(self, counts: np.ndarray, pairs: np.ndarray, before: int, came: int) -> None:
        counts *= REMEMBERED
        counts[came] += 1
        if before >= 0:
            pairs[before] *= REMEMBERED
            pairs[before, came] += 1

    def _frequencies(self, counts: np.ndarray, pairs: np.ndarray, newest: int) -> np.ndarray:
        after = counts if newest < 0 else pairs[newest] + counts / counts.sum()
        return np.log(np.stack([counts / counts.sum(), after / after.sum()]))

    def _made(self, seen: list, rows: int) -> np.ndarray:
        """The log-probabilities of the members at each row."""
        logits = [np.asarray(part[0] if self.horizon else part, np.float64) for part in seen]
        if not logits:
            return np.zeros((rows, 0, self.classes))
        both = np.stack(logits, axis=1)
        both = np.where(np.isfinite(both).all(axis=-1, keepdims=True), both, 0)
        return both - np.logaddexp.reduce(both, axis=-1, keepdims=True)

    def _result(self, before: ClassRun, mixed: np.ndarray, targets: np.ndarray, count: int, *, outputs: bool) -> Any:
        padded = np.zeros((len(targets), self.classes), np.float32)
        padded[: len(mixed)] = mixed[: len(targets)]
        pending = np.concatenate([before.outputs, padded])
        due = pending[: len(targets)]
        came = np.where(np.isnan(targets), 0, targets).astype(int)
        losses = np.where(np.isnan(targets), 0, -due[np.arange(len(targets)), came])
        losses[count:] = 0
        if not outputs:
            return losses
        return losses, (pending[self.horizon :], due) if self.horizon else due

    def reset(self, run: ClassRun) -> ClassRun:
        """Begin a new sequence; what was learned stays."""
        start = self.init()
        members = tuple(learner.reset(member) for learner, member in zip(self.members, run.members, strict=True))
        return run._replace(members=members, newest=start.newest, waiting=start.waiting, outputs=start.outputs)

    def carry(self, run: ClassRun) -> Tree:
        return ()


def _reweighted(weights: np.ndarray, gained: np.ndarray) -> np.ndarray:
    """Bayes' rule, and then a share of everything for everyone."""
    new = weights + gained
    new = np.exp(new - new.max())
    return np.log((1 - SHARE) * new / new.sum() + SHARE / len(new))
