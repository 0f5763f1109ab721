"""Forecasts of rows to come: learn from a row when its targets have come, then forecast from the newest one."""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from norewind import checks
from norewind.estimator import Loss
from norewind.trees import Tree


class AheadRun(NamedTuple):
    """A run, with all that waits for targets to come.

    `run.state` has seen the rows that were learned from, `run.ahead` all of them. `xs` are
    the rows that wait, oldest first, `targets` those that do not fill a window yet, and
    `outputs` the forecasts of rows to come; zeros and NaN stand where there is none yet.
    """

    run: Any
    xs: np.ndarray
    targets: np.ndarray
    outputs: np.ndarray
    rows: np.ndarray


class DelayedLearner(Protocol):
    """What `Ahead` needs of a learner. Its runs have the fields `state` and `ahead`."""

    def scan(self, run: Any, xs: Tree, targets: Tree, *, newest: Tree, count: Any, outputs: bool) -> Any: ...

    def forward(self, run: Any, xs: Tree, *, count: Any) -> Any: ...

    def reset(self, run: Any) -> Any: ...

    def carry(self, run: Any) -> Tree: ...


class Ahead:
    """A learner of rows in the order in which they come, to forecast what comes `horizon` rows later.

    At every row it learns from the row `horizon` rows before, whose targets have just come,
    with the state it had then, and then forecasts from the newest row with the newest
    parameters: no forecast uses anything that comes after it.

    Args:
        learner: what learns, e.g. from `online`.
        loss: the loss of a forecast of one row; an unknown target is NaN.
        horizon: how many rows ahead to forecast, at least 1.
        window: the rows in one step of the learner.

    >>> import jax, jax.numpy as jnp, numpy as np, norewind
    >>> cell, loss = norewind.cells.gru(inputs=1, hidden=8, outputs=1), norewind.losses.known_squared_error
    >>> learner = norewind.online(norewind.rtrl(cell.transition, loss), norewind.adam(1e-2))
    >>> ahead = norewind.Ahead(learner, loss, horizon=3)
    >>> start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> row = np.zeros(1, np.float32)
    >>> wave = np.sin(np.arange(3_000) / 5, dtype=np.float32)[:, None]
    >>> run, losses = ahead.scan(ahead.init(start, row, row, row), wave, wave)
    >>> bool(losses[-100:].mean() < 0.1 * losses[:100].mean())
    True
    """

    def __init__(self, learner: DelayedLearner, loss: Loss, horizon: int, window: int = 1):
        checks.at_least_one("Ahead: horizon", horizon)
        self.learner, self.horizon, self.window = learner, horizon, window
        # When the first of the rows to forecast has come, so have the targets of those up to this many rows before.
        self.delay = horizon + window - 1
        self._losses = jax.jit(jax.vmap(loss))

    def init(self, run: Any, x: np.ndarray, output: np.ndarray, target: np.ndarray) -> AheadRun:
        """Start from a run of the learner; `x`, `output` and `target` are examples of one row."""

        def empty(rows: int, like: np.ndarray, value: float = 0) -> np.ndarray:
            return np.full((rows, *np.shape(like)), value, np.asarray(like).dtype)

        unknown = empty(self.window - 1, target, np.nan)
        start = run._replace(ahead=run.state)
        return AheadRun(start, empty(self.delay, x), unknown, empty(self.horizon, output), np.zeros((), np.int32))

    def scan(
        self, run: AheadRun, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[AheadRun, Any]:
        """Learn from a chunk of rows, or of windows of rows, and return `(run, losses)`.

        `targets` came with the rows `xs`; they were to be forecast `horizon` rows before.
        The losses are those of the forecasts made then, summed over each window. With
        `outputs`, `(run, (losses, (outputs, due)))`: the forecasts made at these rows, and
        those that were made of them.
        """
        steps = checks.common_length("scan", xs=xs, targets=targets)
        count = steps if count is None else count
        rows, known = count * self.window, self._flat(np.asarray(targets))
        xs = self._flat(np.asarray(xs))
        old = np.concatenate([run.xs, xs])
        came = np.concatenate([run.targets, known])
        new, forecasts = self._learn(run, old[: len(xs)], came[: len(xs)], xs, count)
        waiting = np.concatenate([run.outputs, np.asarray(forecasts)])
        due = waiting[: len(xs)]
        losses = np.array(self._losses(due, known))
        losses[rows:] = 0
        new = AheadRun(
            new,
            old[rows : rows + self.delay],
            came[rows : rows + self.window - 1],
            waiting[rows : rows + self.horizon],
            self._counted(run.rows, rows),
        )
        losses = losses.reshape(steps, self.window).sum(axis=1)
        shaped = (self._steps(part) for part in (np.asarray(forecasts), due))
        return new, (losses, tuple(shaped)) if outputs else losses

    def _learn(self, run: AheadRun, xs, targets, newest, count: int):
        """The inner run after `count` steps, and the forecasts made at the newest rows."""
        # The first rows come before anything can be learned.
        idle = min(count, max(0, -(-(self.delay - int(run.rows)) // self.window)))
        inner, start = run.run, idle * self.window
        outputs = None
        if idle:
            inner, outputs = self.learner.forward(inner, newest, count=start)
            outputs = np.array(outputs)
        if count > idle:
            # Rolled, not cut: chunks keep their length, and with it their compiled program.
            rolled = (self._steps(np.roll(part, -start, axis=0)) for part in (xs, targets, newest))
            xs, targets, newest = rolled
            inner, (_, later) = self.learner.scan(inner, xs, targets, newest=newest, count=count - idle, outputs=True)
            later = self._flat(np.asarray(later))
            outputs = later if outputs is None else np.concatenate([outputs[:start], later[: len(later) - start]])
        return inner, outputs

    def forward(self, run: AheadRun, xs: np.ndarray, *, count: int | None = None) -> tuple[AheadRun, Any]:
        """Forecast from a chunk of rows without learning: `(run, (outputs, due))`."""
        count = len(xs) if count is None else count
        inner, outputs = self.learner.forward(run.run, xs, count=count)
        waiting = np.concatenate([run.outputs, np.asarray(outputs)])
        new = run._replace(
            run=inner, outputs=waiting[count : count + self.horizon], rows=self._counted(run.rows, count)
        )
        return new, (np.asarray(outputs), waiting[: len(xs)])

    def reset(self, run: AheadRun) -> AheadRun:
        """Begin a new sequence: the state returns to the initial one, and nothing waits. The parameters stay."""
        inner = self.learner.reset(run.run)
        nothing = run.xs * 0, run.targets * np.nan, run.outputs * 0, run.rows * 0
        return AheadRun(inner._replace(ahead=inner.state), *nothing)

    def carry(self, run: AheadRun) -> Tree:
        return self.learner.carry(run.run)

    def _counted(self, rows: np.ndarray, more: int) -> np.ndarray:
        """Rows so far, as far as they matter."""
        return np.minimum(rows + more, self.delay).astype(np.int32)

    def _flat(self, steps: np.ndarray) -> np.ndarray:
        return steps if self.window == 1 else steps.reshape(-1, *steps.shape[2:])

    def _steps(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.window == 1 else rows.reshape(-1, self.window, *rows.shape[1:])
