"""Forecasts of later rows by a network, which learns from a row once its targets have arrived."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from norewind.core import checks
from norewind.core.estimator import Loss
from norewind.core.run import NonFiniteError, Run
from norewind.core.trees import Tree
from norewind.learners.learner import Learner
from norewind.learners.online import Online
from norewind.learners.steps import checked_steps, row_offsets, same_length, shift_columns, upcoming_forecasts

LARGEST_COUNT = 2**31 - 1  # of samples


class AheadRun(NamedTuple):
    """A run, with the rows and forecasts that are waiting for their targets.

    Attributes:
        run: the inner run. `run.state` has seen the rows already learned from, `run.ahead` all rows.
        xs: the inputs of the newest rows, oldest first; zeros where there is no row yet.
        targets: their targets; NaN where there is no row yet.
        outputs: the forecasts made at the newest rows; zeros where there is none yet.
        samples: the number of rows so far.
    """

    run: Run
    xs: np.ndarray
    targets: np.ndarray
    outputs: np.ndarray
    samples: np.ndarray

    @property
    def carry(self) -> Tree:
        return self.run.carry

    def __repr__(self) -> str:
        return f"AheadRun(samples={self.samples}, up to {len(self.xs)} rows wait for their targets, {self.run!r})"


class Ahead(Learner):
    """A network that forecasts several rows ahead, with one output per step and target.

    At every row it learns from the newest row whose targets have all arrived, with the state
    it had then. It then forecasts from the newest row with the newest parameters, so no
    forecast uses anything later than the row it is made at. With windows, it learns at the first
    row of every window, from the newest rows whose targets have arrived.

    Args:
        learner: the network, from `online`.
        loss: the loss of the forecasts of one row; an unknown target is NaN. None for members of a mixture, which
            scores them itself: their losses are zeros.
        steps: the steps to forecast, in rows ahead, e.g. (1, 2, 3) or (24,).
        window: the number of rows in one step of the learner.
        parts: how many values the outputs hold per step and target: 2 if they are means followed by variances, or the
            number of members of an ensemble.

    Raises:
        ModelError: the steps are not positive and increasing, or the window is less than 1.

    >>> import jax, jax.numpy as jnp, numpy as np, norewind
    >>> cell, loss = norewind.cells.gru(inputs=1, hidden=8, outputs=1), norewind.losses.known_squared_error
    >>> optimizer = norewind.adam(norewind.inverse_sqrt(1e-2, alpha=0.03))
    >>> learner = norewind.online(norewind.rtrl(cell.transition, loss), optimizer)
    >>> ahead = norewind.learners.Ahead(learner, loss, steps=(3,))
    >>> start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> row = np.zeros(1, np.float32)
    >>> wave = np.sin(np.arange(3_000) / 5, dtype=np.float32)[:, None]
    >>> run, losses, _ = ahead.scan(ahead.init(start, row, row, row), wave, wave)
    >>> bool(losses[-100:].mean() < 0.3 * losses[10:110].mean())
    True
    """

    def __init__(self, learner: Online, loss: Loss | None, steps: Sequence[int], window: int = 1, *, parts: int = 1):
        checks.at_least_one("Ahead: window", window)
        self.learner, self.steps, self.window, self.parts = learner, checked_steps("Ahead", steps), window, parts
        self.horizon = self.steps[-1]
        # The rows to learn from begin this many rows before the newest ones; all their targets have arrived.
        self.delay = self.horizon + window - 1
        self._since_made = tuple(self.horizon - step for step in self.steps)
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

        start = run._replace(ahead=run.state)
        outputs = empty(self.horizon, np.ravel(output))
        samples = np.zeros((), np.int32)
        return AheadRun(start, empty(self.delay, x), empty(self.delay, target, np.nan), outputs, samples)

    def scan(
        self, run: AheadRun, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[AheadRun, Any, Any]:
        """Learn from a chunk of rows, or of windows of rows; see `Learner.scan`.

        Targets hold the values of all steps. Outputs are always returned, because they cost nothing extra: the
        forecasts made at these rows, and the earlier forecasts of them.

        Raises:
            NonFiniteError: a number was not finite; it holds the last good run.
        """
        same_length(xs, targets)
        steps = len(xs)
        count = steps if count is None else count
        newest, known = self._flat(np.asarray(xs)), self._flat(np.asarray(targets))
        rows, seen = count * self.window, int(run.samples)
        old, came = np.concatenate([run.xs, newest]), np.concatenate([run.targets, known])
        # At the first rows, there is nothing to learn from yet.
        idle = min(count, max(0, -(-(self.delay - seen) // self.window)))
        try:
            inner, forecasts = self._learn(run, old, came, newest, (idle, count))
        except NonFiniteError as error:
            good, _, _ = self.scan(run, xs, targets, count=idle + error.step - 1 - int(run.run.steps))
            raise NonFiniteError(str(error), error.step, good) from None
        made = np.concatenate([run.outputs, forecasts])
        due = self._due(made, forecasts)
        losses = np.zeros(len(newest))
        if self._losses is not None:
            losses[:rows] = np.asarray(self._losses(due, self._forecast_targets(known, seen)))[:rows]
            losses[: max(0, self.steps[0] - seen)] = 0
        new = AheadRun(
            inner,
            old[rows : rows + self.delay],
            came[rows : rows + self.delay],
            made[rows : rows + self.horizon],
            _counted(run.samples, rows),
        )
        losses = losses if self.window == 1 else losses.reshape(steps, self.window).sum(axis=1)
        return new, losses, (self._steps(forecasts), self._steps(due))

    def _learn(self, run: AheadRun, old: np.ndarray, came: np.ndarray, newest: np.ndarray, steps: tuple[int, int]):
        """Return the inner run after these steps (the first ones idle), and the forecasts made at the newest rows."""
        idle, count = steps
        inner, start = run.run, idle * self.window
        forecasts = np.zeros((len(newest), *run.outputs.shape[1:]), run.outputs.dtype)
        if idle:
            inner, outputs = self.learner.forward(inner, newest, count=start)
            forecasts = np.array(outputs).reshape(forecasts.shape)
            # Rows before the first whole window are not learned from, but the state has to see them.
            missed = old[max(0, self.delay - int(run.samples)) : start]
            if len(missed):
                seen, _ = self.learner.forward(inner._replace(ahead=None), missed, count=len(missed))
                inner = seen._replace(ahead=inner.ahead)
        if count > idle:
            targets = np.empty((len(newest), came.shape[1]), came.dtype)
            shift_columns(came, row_offsets(self.steps, came.shape[1] // len(self.steps)), targets)
            # Rolled, not cut: chunks of the same length reuse the compiled program.
            parts = old[: len(newest)], targets, newest
            xs, targets, newest = (self._steps(np.roll(part, -start, axis=0) if start else part) for part in parts)
            inner, _, outputs = self.learner.scan(inner, xs, targets, newest=newest, count=count - idle, outputs=True)
            later = np.asarray(outputs).reshape(forecasts.shape)
            forecasts = np.concatenate([forecasts[:start], later[: len(later) - start]]) if start else later
        return inner, forecasts

    def forward(self, run: AheadRun, xs: np.ndarray, *, count: int | None = None) -> tuple[AheadRun, Any]:
        count = len(xs) if count is None else count
        inner, outputs = self.learner.forward(run.run, xs, count=count)
        forecasts = np.asarray(outputs).reshape(len(xs), -1)
        made = np.concatenate([run.outputs, forecasts])
        newest = made[count : count + self.horizon]
        new = AheadRun(inner, run.xs, run.targets, newest, _counted(run.samples, count))
        return new, (forecasts, self._due(made, forecasts))

    def upcoming(self, run: AheadRun) -> np.ndarray:
        # The newest rows, oldest first, are a ring whose next row is the first one.
        return upcoming_forecasts(run.outputs.reshape(self.horizon, self.parts, -1), self.steps, 0)

    def for_keys(self, run: AheadRun, *, share: bool = False) -> Any:
        from norewind.learners.keys.networks import NetworkEngine, PendingRows

        if self.window > 1:
            return super().for_keys(run, share=share)
        pending = PendingRows(run.xs, run.targets, run.outputs, self.steps, self.parts, self._losses)
        return NetworkEngine(self.learner, run.run, share, pending)

    def reset(self, run: AheadRun) -> AheadRun:
        xs, outputs, samples = (np.zeros_like(part) for part in (run.xs, run.outputs, run.samples))
        return AheadRun(self.learner.reset(run.run), xs, np.full_like(run.targets, np.nan), outputs, samples)

    def carry(self, run: AheadRun) -> Tree:
        return self.learner.carry(run.run)

    def chunk_size(self, run: AheadRun) -> int:
        return self.learner.chunk_size(run.run)

    def _due(self, made: np.ndarray, forecasts: np.ndarray) -> np.ndarray:
        """Return the earlier forecasts of each row; `made` starts `horizon` rows before the first of them."""
        due, width = np.empty(forecasts.shape, made.dtype), made.shape[1] // (self.parts * len(self.steps))
        shift_columns(made, row_offsets(self._since_made, width, parts=self.parts), due)
        return due

    def _forecast_targets(self, known: np.ndarray, seen: int) -> np.ndarray:
        """Replace targets that no earlier row has forecast with NaN."""
        if seen >= self.horizon:
            return known
        before = np.arange(seen, seen + len(known))[:, None] < np.repeat(self.steps, known.shape[1] // len(self.steps))
        return np.where(before, np.nan, known).astype(known.dtype) if len(self.steps) > 1 else known

    def _flat(self, steps: np.ndarray) -> np.ndarray:
        return steps if self.window == 1 else steps.reshape(-1, *steps.shape[2:])

    def _steps(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.window == 1 else rows.reshape(-1, self.window, *rows.shape[1:])


@lru_cache(maxsize=64)
def _losses_of(loss: Loss) -> Callable:
    """Compile the losses of many rows. Members of a mixture share this program."""
    return jax.jit(jax.vmap(loss))


def _counted(samples: np.ndarray, more: int) -> np.ndarray:
    return np.array(min(int(samples) + more, LARGEST_COUNT), np.int32)
