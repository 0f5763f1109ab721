"""Forecasts of numbers: least squares, networks and simple rules side by side, mixed by how well they do."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks
from norewind.learners import densities
from norewind.learners.ahead import Ahead, shifted
from norewind.learners.least_squares import LeastSquares, lags, oscillators, together
from norewind.learners.members import answer_all, forward_all, one_all, reset_all, scan_all
from norewind.losses import known_squared_error
from norewind.trees import Tree

PERIODS = (7, 12, 24, 168)
"""Common periods of series, in rows. Every additional one costs a little on all other series."""
LAGS = (8, 32, 168)
FORGETTING = (0.9998, 0.998)
OSCILLATORS = 32
LIMIT = 5.0


class SeriesRun(NamedTuple):
    """The runs of the members, the newest targets, the forecasts that wait for theirs, and the weights."""

    members: tuple
    history: np.ndarray
    waiting: np.ndarray
    weighing: densities.Weighing
    outputs: np.ndarray


class Series:
    """Forecasts of rows of numbers, `horizon` rows ahead, by experts whose weights follow how well they do.

    The experts are the running mean, `members`, and, where the past of the targets is
    known, persistence and the value one period ago for some common periods. Nothing needs to
    be chosen.

    Args:
        members: learners with the runs they start from: `Ahead(LeastSquares(...), ...)`, or, for a horizon of 0,
            `LeastSquares(...)`.
        targets: the number of targets.
        horizon: how many rows ahead to forecast.
        known: which of the inputs are the newest known targets; empty if they are not among them.
        gaussian: also forecast variances, as `losses.known_gaussian` expects them.
    """

    chunk = 1_000

    def __init__(
        self,
        members: Sequence[tuple],
        targets: int,
        horizon: int,
        *,
        known: Sequence[int] = (),
        gaussian: bool = False,
    ):
        self.members, self._runs = [learner for learner, _ in members], tuple(run for _, run in members)
        self.targets, self.horizon, self.known, self.gaussian = targets, horizon, list(known), gaussian
        # With a horizon of 0, targets are known up to the row before.
        self.delay = max(1, horizon)
        self.periods = [period for period in PERIODS if known and period > self.delay]
        self.depth = max(self.periods, default=self.delay) - self.delay
        self.experts = 1 + bool(known) + len(self.periods) + len(members)

    def init(self) -> SeriesRun:
        return SeriesRun(
            self._runs,
            np.zeros((self.depth, len(self.known)), np.float32),
            np.zeros((self.horizon, self.experts, self.targets), np.float32),
            densities.fresh(self.experts, self.targets),
            np.zeros((self.horizon, 2 * self.targets), np.float32),
        )

    def scan(
        self, run: SeriesRun, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[SeriesRun, Any]:
        """Learn from a chunk of rows; see `Ahead.scan`."""
        rows = checks.common_length("scan", xs=xs, targets=targets)
        count = rows if count is None else count
        members, _, seen = scan_all(self.members, run.members, xs, [targets] * len(self.members), count)
        forecasts, history = self._forecasts(run, np.asarray(xs), [self._made(part) for part in seen], count)
        waiting = np.concatenate([run.waiting, forecasts])
        due = waiting[:rows] if self.horizon else None
        weighing, moments = densities.scan(run.weighing, due, targets, forecasts, count)
        pending = np.concatenate([run.outputs, np.concatenate(moments, axis=1)])
        due = pending[:rows]
        losses = self._losses(due, np.asarray(targets))
        losses[count:] = 0
        ahead = slice(count, count + self.horizon)
        new = SeriesRun(members, history, waiting[ahead], weighing, pending[ahead])
        return new, (losses, self._shown(pending, rows)) if outputs else losses

    def forward(self, run: SeriesRun, xs: np.ndarray, *, count: int | None = None) -> tuple[SeriesRun, Any]:
        """Forecast from a chunk of rows without learning; see `Ahead.forward`."""
        count = len(xs) if count is None else count
        members, seen = forward_all(self.members, run.members, xs, count)
        forecasts, history = self._forecasts(run, np.asarray(xs), [self._made(part) for part in seen], count)
        moments = densities.forward(run.weighing, forecasts)
        pending = np.concatenate([run.outputs, np.concatenate(moments, axis=1)])
        new = run._replace(members=members, history=history, outputs=pending[count : count + self.horizon])
        return new, self._shown(pending, len(xs))

    def one(self, run: SeriesRun, x: Any, target: Any) -> tuple[SeriesRun, jax.Array, Any]:
        """`scan` of one row inside a compiled function: `(run, loss, outputs)`; see `Ahead.one`."""
        members, made = one_all(self.members, run.members, x, target, self.horizon)
        forecasts, history = self._forecasts(run, x[None], [part[None] for part in made], 1, jnp)
        due = run.waiting[0] if self.horizon else None
        weighing, moments = densities.row(run.weighing, (due, target, forecasts[0]))
        new, pending = self._moved(run, members, history, forecasts[0], moments)
        loss = self._losses(pending[:1], target[None], jnp)[0]
        return new._replace(weighing=weighing), loss, self._shown_row(pending)

    def answer(self, run: SeriesRun, x: Any) -> tuple[SeriesRun, Any]:
        """One row inside a compiled function, without learning: `(run, outputs)`; see `Ahead.answer`."""
        members, made = answer_all(self.members, run.members, x, self.horizon)
        forecasts, history = self._forecasts(run, x[None], [part[None] for part in made], 1, jnp)
        moments = densities.mixed(run.weighing, forecasts[0])
        new, pending = self._moved(run, members, history, forecasts[0], moments)
        return new, self._shown_row(pending)

    def _moved(self, run: SeriesRun, members: tuple, history: Any, forecasts: Any, moments: tuple) -> tuple:
        """The run one row later, and what had been and what is forecast."""
        pending: Any = jnp.concatenate([run.outputs, jnp.concatenate(moments)[None]])
        waiting = shifted(run.waiting, forecasts) if self.horizon else run.waiting
        return SeriesRun(members, history, waiting, run.weighing, pending[1:]), pending

    def _shown_row(self, pending: Any) -> Any:
        """The forecast made at the newest row, and the one made of it."""
        outputs = self._output(pending, jnp)
        return (outputs[-1], outputs[0]) if self.horizon else outputs[0]

    def pending(self, run: SeriesRun) -> dict[int, np.ndarray]:
        """The forecasts of future rows; see `Ahead.pending`."""
        return {self.horizon: self._output(run.outputs)}

    def reset(self, run: SeriesRun) -> SeriesRun:
        """Begin a new sequence; what was learned stays."""
        members = reset_all(self.members, run.members)
        history, waiting, outputs = (np.zeros_like(part) for part in (run.history, run.waiting, run.outputs))
        return SeriesRun(members, history, waiting, run.weighing, outputs)

    def carry(self, run: SeriesRun) -> Tree:
        return ()

    def _forecasts(self, run: SeriesRun, xs: Any, made: list, count: int, like: Any = np) -> tuple[Any, Any]:
        """What every expert forecasts at every row, and the history after `count` rows; `like` is np or jnp."""
        newest = xs[:, np.array(self.known, int)]
        past = like.concatenate([run.history, newest])
        simple = [like.zeros((len(xs), self.targets), np.float32)]
        if self.known:
            simple.append(newest)
        for period in self.periods:
            start = self.depth - (period - self.delay)
            simple.append(past[start : start + len(newest)])
        return like.stack([*simple, *map(like.asarray, made)], axis=1), past[count : count + self.depth]

    def _made(self, seen: Any) -> np.ndarray:
        """The forecasts that a member made at these rows."""
        return seen[0] if self.horizon else seen

    def _losses(self, due: Any, targets: Any, like: Any = np) -> Any:
        mean, variance = like.split(due, 2, axis=1)
        errors = like.where(like.isnan(targets), 0, mean - targets)
        if not self.gaussian:
            return 0.5 * like.sum(errors**2, axis=1)
        variance = like.maximum(variance, densities.LEAST_VARIANCE)
        nats = 0.5 * (errors**2 / variance + like.log(2 * np.pi * variance))
        return like.sum(like.where(like.isnan(targets), 0, nats), axis=1)

    def _shown(self, pending: np.ndarray, rows: int) -> Any:
        """The forecasts made at the last rows, and those made of them, as the loss expects them."""
        if not self.horizon:
            return self._output(pending)
        return self._output(pending[self.horizon :]), self._output(pending[:rows])

    def _output(self, moments: Any, like: Any = np) -> Any:
        """Means, and where variances are asked for, what `losses.log_variance` turns into their logarithms."""
        mean, variance = like.split(moments, 2, axis=1)
        if not self.gaussian:
            return mean
        logarithm = like.clip(like.log(like.maximum(variance, densities.LEAST_VARIANCE)), -9.9, 9.9)
        return like.concatenate([mean, 10 * like.arctanh(logarithm / 10)], axis=1)


def linear_members(inputs: int, targets: int, horizon: int) -> list[tuple]:
    """Least squares on few and on many lags, quick and slow to forget, and on oscillators."""
    counts = dict.fromkeys(max(1, count // inputs) for count in LAGS)
    chosen = [(features, rate) for features in (lags(inputs, count) for count in counts) for rate in FORGETTING]
    wide = max(1, LAGS[1] // inputs)
    chosen.append((together(lags(inputs, wide), oscillators(inputs, max(1, OSCILLATORS // inputs))), FORGETTING[0]))
    learners = [LeastSquares(features, targets, forgetting, LIMIT) for features, forgetting in chosen]
    return [member(learner, learner.init(), inputs, targets, horizon) for learner in learners]


def member(learner: Any, run: Any, inputs: int, targets: int, horizon: int) -> tuple:
    """A learner of samples and the run it starts from, as a member of a `Series`."""
    if not horizon:
        return learner, run
    ahead = Ahead(learner, known_squared_error, horizon)
    x, y = np.zeros(inputs, np.float32), np.zeros(targets, np.float32)
    return ahead, ahead.init(run, x, y, y)
