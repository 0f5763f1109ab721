"""Forecasts of later rows by a network, which learns from a row once its targets have arrived."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from norewind.core import checks
from norewind.core.estimator import Loss
from norewind.core.run import NonFiniteError, Run, nonfinite_error
from norewind.core.trees import Tree
from norewind.learners.horizon import check_same_length, check_steps, is_not_forecast, upcoming_forecasts
from norewind.learners.keyed.keyed_program import KeyedProgram
from norewind.learners.learner import Forecasts, WrappingLearner
from norewind.learners.online import OnlineLearner
from norewind.learners.packing import PackedLearner


class AheadRun(NamedTuple):
    """A run, with the rows and forecasts that are waiting for their targets.

    Attributes:
        run: the inner run. `run.state` has seen the rows already learned from, `run.latest_state` all rows.
        xs: the inputs of the latest rows, the oldest first; zeros where there is no row yet.
        targets: their targets; NaN where there is no row yet.
        outputs: the forecasts made at the latest rows; zeros where there is none yet.
        samples: the number of rows so far.
    """

    run: Any
    xs: np.ndarray
    targets: np.ndarray
    outputs: np.ndarray
    samples: np.ndarray

    @property
    def carry(self) -> Tree:
        """The carry of the inner run: like a `Run`, the run of a `NonFiniteError` has one."""
        return self.run.carry

    def __repr__(self) -> str:
        return f"AheadRun(samples={self.samples}, up to {len(self.xs)} pending rows, {self.run!r})"


class AheadLearner(WrappingLearner):
    """A network that forecasts rows, with one output per step and target.

    At every row it learns from the latest row whose targets have all arrived, with the state
    it had then. It then forecasts from the latest row with the latest parameters, so no
    forecast uses anything later than the row it is made at. With windows, it learns at the first
    row of every window, from the latest rows whose targets have arrived. If targets belong to
    the row itself, nothing waits: it learns from every row at once.

    Args:
        learner: the network, from `online`.
        loss: the loss of the forecasts of one row; an unknown target is NaN. None for members of a mixture, which
            keeps and scores their forecasts itself: their losses are zeros, and they return no earlier forecasts.
        steps: the steps to forecast, in rows ahead, e.g. (1, 2, 3) or (24,); (0,) if targets belong to the row itself.
        window: the number of rows in one step of the learner.
        parts: how many values the outputs hold per step and target: 2 if they are means followed by variances, or the
            number of members of an ensemble.

    Raises:
        ModelError: the steps are not increasing, or the window is less than 1.

    >>> import jax, jax.numpy as jnp, numpy as np, norewind
    >>> cell, loss = norewind.cells.gru(inputs=1, hidden=8, outputs=1), norewind.losses.known_squared_error
    >>> optimizer = norewind.adam(norewind.inverse_sqrt(1e-2, alpha=0.03))
    >>> learner = norewind.online(norewind.rtrl(cell.transition, loss), optimizer)
    >>> ahead = norewind.learners.AheadLearner(learner, loss, steps=(3,))
    >>> start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> row = np.zeros(1, np.float32)
    >>> wave = np.sin(np.arange(3_000) / 5, dtype=np.float32)[:, None]
    >>> run, losses, _ = ahead.scan(ahead.init(start, row, row, row), wave, wave)
    >>> bool(losses[-100:].mean() < 0.3 * losses[10:110].mean())
    True
    """

    def __init__(
        self,
        learner: OnlineLearner | PackedLearner,
        loss: Loss | None,
        steps: Sequence[int],
        window: int = 1,
        *,
        parts: int = 1,
    ):
        checks.check_at_least_one("AheadLearner: window", window)
        self.learner = learner
        self.steps = check_steps("AheadLearner", steps)
        self.window = window
        self.parts = parts
        # The rows to learn from begin this many rows before the latest ones; all their targets have arrived.
        self.delay = self.horizon + window - 1 if self.horizon else 0
        self._steps = np.array(self.steps)
        self._losses = None if loss is None else _losses_of(loss)

    def init(self, run: Run, x: np.ndarray, output: np.ndarray, target: np.ndarray) -> AheadRun:
        """Start from a run of the learner.

        Args:
            run: the run, from `learner.init`.
            x: an example of the inputs of one row.
            output: an example of the outputs of one row.
            target: an example of the targets of one row.

        Returns:
            A run of this learner.
        """

        def empty(rows: int, like: np.ndarray, value: float = 0) -> np.ndarray:
            return np.full((rows, *np.shape(like)), value, np.asarray(like).dtype)

        start = run._replace(latest_state=run.state) if self.horizon else run
        outputs = empty(0 if self._losses is None else self.horizon, np.ravel(output))
        samples = np.zeros((), np.int64)
        return AheadRun(start, empty(self.delay, x), empty(self.delay, target, np.nan), outputs, samples)

    def scan(
        self, run: AheadRun, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[AheadRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows, or of windows of rows; see `Learner.scan`.

        Targets hold the values of all steps. Outputs are always returned, because they cost nothing extra: the
        forecasts made at these rows, and the earlier forecasts of them.

        Raises:
            NonFiniteError: a number was not finite; it holds the last good run.
        """
        check_same_length(xs, targets)
        count = len(xs) if count is None else count
        # At the first rows, there is nothing to learn from yet.
        idle = min(count, max(0, -((int(run.samples) - self.delay) // self.window)))
        try:
            if self.horizon:
                xs, targets = np.asarray(xs, run.xs.dtype), np.asarray(targets, run.targets.dtype)
                return self._scan_late(run, xs, targets, idle, count)
            inner, losses, made = self.learner.scan(run.run, xs, targets, count=count, outputs=True)
        except NonFiniteError as error:
            good, _, _ = self.scan(run, xs, targets, count=idle + error.step - 1 - int(run.run.steps))
            raise nonfinite_error(good, error.step) from None
        made = np.asarray(made).reshape(*np.shape(xs)[:-1], -1)
        new = run._replace(run=inner, samples=run.samples + count * self.window)
        return new, np.asarray(losses), Forecasts(made, made)

    def _scan_late(
        self, run: AheadRun, xs: np.ndarray, targets: np.ndarray, idle: int, count: int
    ) -> tuple[AheadRun, np.ndarray, Forecasts]:
        """Learn from the rows before these, whose targets have arrived, and forecast from these."""
        latest, known = self._flat(xs), self._flat(targets)
        rows, seen = count * self.window, int(run.samples)
        old, kept_xs = _moved_on(run.xs, latest, rows)
        if self._steps[0] == self.delay:  # a single step: the latest targets are those of the rows to learn from
            late, kept_targets = known, _moved_on(run.targets, known, rows)[1]
        else:
            waiting = np.concatenate((run.targets, known))
            late, kept_targets = _blocks_at(waiting, self._steps, len(known)), waiting[rows : rows + self.delay].copy()
        inner, made = self._learn(run, (old, late, latest), idle, count)
        waiting_outputs, due = self._exchange(run, made, rows)
        losses = np.zeros(len(latest))
        if self._losses is not None:
            losses[:rows] = np.asarray(self._losses(due, self._forecast_targets(known, seen)))[:rows]
            losses[: max(0, self.steps[0] - seen)] = 0
        new = AheadRun(inner, kept_xs, kept_targets, waiting_outputs, run.samples + rows)
        losses = losses if self.window == 1 else losses.reshape(-1, self.window).sum(axis=1)
        return new, losses, Forecasts(self._windows(made), self._windows(due))

    def _learn(self, run: AheadRun, rows: tuple[np.ndarray, ...], idle: int, count: int) -> tuple[Any, np.ndarray]:
        """Return the inner run after the steps (the first ones idle), and the forecasts made at the latest rows."""
        (old, _, latest), inner, start = rows, run.run, idle * self.window
        learner: Any = self.learner  # the kind of its runs is known only there
        made = None
        if idle:
            inner, outputs = learner.forward(inner, latest, count=start)
            made = np.array(outputs).reshape(len(latest), -1)
            # Rows before the first whole window are not learned from, but the state has to see them.
            missed = old[max(0, self.delay - int(run.samples)) : start]
            if len(missed):
                seen, _ = learner.forward(inner._replace(latest_state=None), missed, count=len(missed))
                inner = seen._replace(latest_state=inner.latest_state)
        if made is None or count > idle:
            if start:  # rolled, not cut: chunks of the same length reuse the compiled program
                rows = tuple(np.roll(part, -start, axis=0) for part in rows)
            xs, targets, latest = map(self._windows, rows)
            inner, _, outputs = learner.scan(inner, xs, targets, latest=latest, count=count - idle, outputs=True)
            later = np.asarray(outputs).reshape(len(old), -1)
            made = later if made is None else np.concatenate([made[:start], later[: len(later) - start]])
        return inner, made

    def forward(self, run: AheadRun, xs: np.ndarray, *, count: int | None = None) -> tuple[AheadRun, Forecasts]:
        count = len(xs) if count is None else count
        inner, outputs = self.learner.forward(run.run, xs, count=count)
        made = np.asarray(outputs).reshape(len(xs), -1)
        waiting, due = self._exchange(run, made, count)
        return AheadRun(inner, run.xs, run.targets, waiting, run.samples + count), Forecasts(made, due)

    def _exchange(self, run: AheadRun, made: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the forecasts that wait after the first of these rows, and the earlier forecasts of these rows."""
        if not self.horizon:
            return run.outputs, made
        if self._losses is None:
            return run.outputs, made[:0]
        waiting = np.concatenate((run.outputs, made))
        due = _blocks_at(waiting, self.horizon - self._steps, len(made), self.parts)
        due[rows:] = 0
        return waiting[rows : rows + self.horizon].copy(), due

    def upcoming(self, run: AheadRun) -> np.ndarray:
        rows, outputs = run.outputs.shape
        queue = run.outputs.reshape(rows, self.parts, outputs // self.parts)
        return upcoming_forecasts(queue, self.steps, rows)

    def for_keys(self, run: AheadRun, *, share: bool = False) -> KeyedProgram:
        from norewind.learners.keyed.networks import KeyedNetworks, PendingRows

        if self.window > 1:
            return super().for_keys(run, share=share)
        pending = PendingRows(run.xs, run.targets, run.outputs, self.steps, self.parts, self._losses)
        learner, inner = self.learner, run.run
        if isinstance(learner, PackedLearner):
            learner, inner = learner.learner, inner.unpack()
        return KeyedNetworks(learner, inner, share, pending if self.horizon else None)

    def reset(self, run: AheadRun) -> AheadRun:
        xs, outputs, samples = (np.zeros_like(part) for part in (run.xs, run.outputs, run.samples))
        return AheadRun(self.learner.reset(run.run), xs, np.full_like(run.targets, np.nan), outputs, samples)

    def _forecast_targets(self, known: np.ndarray, seen: int) -> np.ndarray:
        """Replace targets that no earlier row has forecast with NaN."""
        if seen >= self.horizon:
            return known
        before = is_not_forecast(np.arange(seen, seen + len(known)), self.steps, known.shape[1])
        return np.where(before, np.nan, known).astype(known.dtype) if len(self.steps) > 1 else known

    def _flat(self, steps: np.ndarray) -> np.ndarray:
        return steps if self.window == 1 else steps.reshape(-1, *steps.shape[2:])

    def _windows(self, rows: Any) -> Any:
        return rows if self.window == 1 else rows.reshape(-1, self.window, *rows.shape[1:])


@lru_cache(maxsize=64)
def _losses_of(loss: Loss) -> Callable:
    """Compile the losses of many rows. Members of a mixture share this program."""
    return jax.jit(jax.vmap(loss))


def _moved_on(waiting: np.ndarray, new: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return as many of the oldest rows as there are new ones, and those that wait after `rows` of the new ones."""
    if len(waiting) == len(new) == rows:
        return waiting, new.copy()
    joined = np.concatenate((waiting, new))
    return joined[: len(new)], joined[rows : rows + len(waiting)].copy()


def _blocks_at(waiting: np.ndarray, offsets: np.ndarray, rows: int, parts: int = 1) -> np.ndarray:
    """Return rows whose blocks of columns, one per step, begin at different rows.

    Args:
        waiting: the rows that are waiting, followed by the new ones.
        offsets: for each block, the row that its first value is at.
        rows: the number of rows to return.
        parts: how often the blocks of all steps are repeated.
    """
    if len(offsets) == 1:
        return waiting[offsets[0] : offsets[0] + rows].copy()
    columns = waiting.shape[1]
    first = np.tile(np.repeat(offsets, columns // (parts * len(offsets))), parts)
    return waiting[first + np.arange(rows)[:, None], np.arange(columns)]
