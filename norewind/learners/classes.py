"""Forecasts of classes: networks and simple counts, mixed by how well they do."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks
from norewind.chunks import scan_some
from norewind.compilation import compiled_loop
from norewind.learners import mix
from norewind.learners.members import answer_all, forward_all, one_all, reset_all, scan_all
from norewind.trees import Tree, library

SWITCHING = 0.002
"""The share of its weight that each expert passes on after a row, so that the mixture can follow a change."""
PRIOR = 0.1
REMEMBERED = 0.9995
"""The share of a count that is kept from row to row."""
LEAST = 1e-6
"""No class is impossible, whatever an expert says."""


class Counting(NamedTuple):
    """How often each class came, and how often after which; the newest classes known, oldest first, or -1."""

    classes: Any
    pairs: Any
    newest: Any


class ClassRun(NamedTuple):
    """The runs of the members, counts, the weights of all, and the forecasts that wait for their targets."""

    members: tuple
    counting: Counting
    weights: mix.MixRun
    waiting: jax.Array | np.ndarray
    outputs: jax.Array | np.ndarray


class ClassLearner:
    """Forecasts of a class, `horizon` rows ahead, by experts whose weights follow how well they do.

    The experts are the frequencies of the classes, their frequencies after the class that
    is newest, and `members`, mixed as `mix` does it: over the rows whose class is known, the
    total loss is hardly more than that of the best of them. Targets are numbers of classes,
    of shape (rows, 1); an unknown one is NaN. Outputs are logarithms of probabilities.

    Args:
        members: learners with the runs they start from, whose outputs are logits: with a horizon, `Ahead(...)`.
        classes: the number of classes.
        horizon: how many rows ahead to forecast.
    """

    chunk = 1_000

    def __init__(self, members: Sequence[tuple], classes: int, horizon: int):
        self.members, self._runs = [learner for learner, _ in members], tuple(run for _, run in members)
        self.classes, self.horizon, self.experts = classes, horizon, 2 + len(members)
        self._answer = compiled_loop(partial(_answer, horizon))

    def init(self) -> ClassRun:
        def full(*shape: int) -> Any:
            return np.full(shape, -np.log(self.classes), np.float32)

        counting = Counting(
            np.full(self.classes, PRIOR, np.float32),
            np.full((self.classes, self.classes), PRIOR, np.float32),
            np.full(max(1, self.horizon), -1, np.int32),
        )
        waiting, outputs = full(self.horizon, self.experts, self.classes), full(self.horizon, self.classes)
        return ClassRun(self._runs, counting, mix.fresh(self.experts), waiting, outputs)

    def scan(
        self, run: ClassRun, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[ClassRun, Any]:
        """Learn from a chunk of rows; see `Ahead.scan`. Losses are in nats."""
        rows = checks.common_length("scan", xs=xs, targets=targets)
        count = rows if count is None else count
        members, _, seen = scan_all(self.members, run.members, xs, [targets] * len(self.members), count)
        new, losses, shown = self._answered(run._replace(members=members), seen, np.asarray(targets), count)
        return new, (losses, shown) if outputs else losses

    def forward(self, run: ClassRun, xs: np.ndarray, *, count: int | None = None) -> tuple[ClassRun, Any]:
        """Forecast from a chunk of rows without learning. Without targets, the newest class stays what it was."""
        count = len(xs) if count is None else count
        members, seen = forward_all(self.members, run.members, xs, count)
        unknown = np.full((len(xs), 1), np.nan, np.float32)
        new, _, shown = self._answered(run._replace(members=members), seen, unknown, count)
        return new, shown

    def one(self, run: ClassRun, x: Any, target: Any) -> tuple[ClassRun, Any, Any]:
        """`scan` of one row inside a compiled function: `(run, loss, outputs)`; see `Ahead.one`."""
        members, logits = one_all(self.members, run.members, x, target, self.horizon)
        new, loss, outputs = self._row(run, logits, target)
        return new._replace(members=members), loss, outputs

    def answer(self, run: ClassRun, x: Any) -> tuple[ClassRun, Any]:
        """One row inside a compiled function, without learning: `(run, outputs)`; see `Ahead.answer`."""
        members, logits = answer_all(self.members, run.members, x, self.horizon)
        new, _, outputs = self._row(run, logits, jnp.full(1, jnp.nan))
        return new._replace(members=members), outputs

    def _row(self, run: ClassRun, logits: list, target: Any) -> tuple[ClassRun, Any, Any]:
        """As `_answered`, of one row and inside a compiled function."""
        with jax.enable_x64(True):
            known = ~jnp.isnan(target[0])
            came = jnp.where(known, target[0], 0).astype(np.int32)
            counting, frequencies = _counted(self.horizon, run.counting, (came, known))
            forecasts = _softened(jnp.stack([*frequencies, *map(_log_probabilities, logits)]))
            waiting: Any = jnp.concatenate([run.waiting, forecasts[None]])
            weights, made = _weighed(self.horizon, run.weights, (-waiting[0][:, came], known, forecasts))
            outputs: Any = jnp.concatenate([run.outputs, made[None]])
            loss = jnp.where(known, -outputs[0][came], 0)
            new = ClassRun(run.members, counting, weights, waiting[1:], outputs[1:])
            return new, loss, (made, outputs[0]) if self.horizon else outputs[0]

    def pending(self, run: ClassRun) -> dict[int, np.ndarray]:
        """The forecasts of future rows; see `Ahead.pending`."""
        return {self.horizon: np.asarray(run.outputs)}

    def reset(self, run: ClassRun) -> ClassRun:
        """Begin a new sequence; what was learned stays."""
        start = self.init()
        counting = run.counting._replace(newest=start.counting.newest)
        members = reset_all(self.members, run.members)
        return ClassRun(members, counting, run.weights, start.waiting, start.outputs)

    def carry(self, run: ClassRun) -> Tree:
        return ()

    def _answered(self, run: ClassRun, seen: list, targets: np.ndarray, count: int) -> tuple[ClassRun, Any, Any]:
        """The run after `count` rows, their losses, and what is shown of their forecasts."""
        logits = tuple(part[0] if self.horizon else part for part in seen)
        with jax.enable_x64(True):
            new, losses, made, due = self._answer(run._replace(members=()), logits, targets[:, 0], count)
        made, due = np.asarray(made), np.asarray(due)
        return new._replace(members=run.members), np.asarray(losses), (made, due) if self.horizon else due


def _answer(horizon: int, run: ClassRun, logits: tuple, targets: jax.Array, count: jax.Array) -> tuple:
    """Row by row: learn from the class that came, then forecast; of the same row, the other way round."""
    known, rows = ~jnp.isnan(targets), len(targets)
    came = jnp.where(known, targets, 0).astype(jnp.int32)
    counting, frequencies = scan_some(partial(_counted, horizon), run.counting, (came, known), count)
    forecasts = jnp.concatenate([frequencies, *(_log_probabilities(part)[:, None] for part in logits)], axis=1)
    forecasts = _softened(forecasts)
    waiting = jnp.concatenate([run.waiting, forecasts])
    lost = -jnp.take_along_axis(waiting[:rows], came[:, None, None], axis=2)[:, :, 0]
    weights, made = scan_some(partial(_weighed, horizon), run.weights, (lost, known, forecasts), count)
    outputs = jnp.concatenate([run.outputs, made])
    due = outputs[:rows]
    scored = known & (jnp.arange(rows) < count)
    losses = jnp.where(scored, -jnp.take_along_axis(due, came[:, None], axis=1)[:, 0], 0)
    left = (jax.lax.dynamic_slice_in_dim(part, count, horizon) for part in (waiting, outputs))
    return ClassRun((), counting, weights, *left), losses, made, due


def _counted(horizon: int, counting: Counting, row: tuple) -> tuple[Counting, jax.Array]:
    """The counts after a class, and the logarithms of the frequencies, of all and after the newest class."""
    (came, known), like = row, library(row[0])
    numbers = np.arange(len(counting.classes))
    new = known & (numbers == came)
    # The row of the class before; there is none before the first.
    before = known & (numbers == counting.newest[0])[:, None]
    classes = like.where(known, REMEMBERED, 1).astype(np.float32) * counting.classes + new
    pairs = like.where(before, REMEMBERED * counting.pairs + new, counting.pairs)
    latest = like.where(known, came, counting.newest[-1])
    newest = like.concatenate([counting.newest[1:], latest[None].astype(np.int32)])
    learned = Counting(classes.astype(np.float32), pairs.astype(np.float32), newest)
    by = learned if horizon else counting
    of_all = by.classes / by.classes.sum()
    after = like.where(by.newest[-1] < 0, of_all, by.pairs[by.newest[-1]] + of_all)
    return learned, like.log(like.stack([of_all, after / after.sum()]))


def _weighed(horizon: int, weights: mix.MixRun, row: tuple) -> tuple[mix.MixRun, jax.Array]:
    """The weights after the experts' losses, and the mixture of their forecasts."""
    lost, known, forecasts = row
    learned = mix.learned(weights, lost, SWITCHING)[0]
    learned = mix.MixRun(*(library(lost).where(known, *pair) for pair in zip(learned, weights, strict=True)))
    return learned, mix.mixed(learned if horizon else weights, forecasts).astype(forecasts.dtype)


def _log_probabilities(logits: Any) -> Any:
    """A member with non-finite outputs is ignored."""
    like = library(logits)
    finite = like.isfinite(logits).all(axis=-1, keepdims=True)
    logits = like.where(finite, logits, 0).astype(np.float32)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - like.log(like.exp(logits).sum(axis=-1, keepdims=True))


def _softened(forecasts: Any) -> Any:
    like = library(forecasts)
    return like.log((1 - forecasts.shape[-1] * LEAST) * like.exp(forecasts) + LEAST)
