"""Forecasts of later rows: learn from a row when its targets have arrived, then forecast from the newest row."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks, shown
from norewind.chunks import fast_step, skipping_step
from norewind.combinators import one_step_of
from norewind.estimator import Loss
from norewind.learner import Learner
from norewind.run import NonFiniteError
from norewind.trees import Tree, strong


class AheadRun(NamedTuple):
    """A run, with all that waits for targets to come.

    `run.state` has seen the rows that were learned from, `run.ahead` all rows. `xs` are
    the rows that wait, oldest first, `targets` those that do not fill a window yet, and
    `outputs` the forecasts of future rows; zeros and NaN stand where there is none yet.
    `samples` counts the rows.
    """

    run: Any
    xs: np.ndarray
    targets: np.ndarray
    outputs: np.ndarray
    samples: np.ndarray

    @property
    def carry(self) -> Tree:
        return self.run.carry

    def __repr__(self) -> str:
        return shown.lines(*self._facts())

    def _repr_html_(self) -> str:
        return shown.table(*self._facts())

    def _facts(self) -> tuple[str, dict[str, str]]:
        wait = f"{len(self.xs)} rows for their targets, at most; {len(self.outputs)} forecasts of future rows"
        inner = {f"{type(self.run).__name__}.{name}": shown.size(part) for name, part in self.run._asdict().items()}
        return f"AheadRun after {shown.count(self.samples)} rows", {"wait": wait, **inner}


class DelayedLearner(Protocol):
    """What `Ahead` needs of a learner. Its runs have the fields `state`, `ahead` and `steps`."""

    def scan(self, run: Any, xs: Tree, targets: Tree, *, newest: Tree, count: Any, outputs: bool) -> Any: ...

    def forward(self, run: Any, xs: Tree, *, count: Any) -> Any: ...

    def reset(self, run: Any) -> Any: ...

    def carry(self, run: Any) -> Tree: ...


class Ahead:
    """A learner of rows in order that forecasts the row `horizon` rows ahead.

    At every row it learns from the row `horizon` rows before, whose targets have just come,
    with the state it had then, and then forecasts from the newest row with the newest
    parameters: no forecast uses anything that comes after it. With windows, it learns so at
    the first row of every window, from the newest rows whose targets have come.

    Args:
        learner: the learner, e.g. from `online`.
        loss: the loss of a forecast of one row; an unknown target is NaN.
        horizon: how many rows ahead to forecast, at least 1.
        window: the rows in one step of the learner.

    >>> import jax, jax.numpy as jnp, numpy as np, norewind
    >>> cell, loss = norewind.cells.gru(inputs=1, hidden=8, outputs=1), norewind.losses.known_squared_error
    >>> optimizer = norewind.adam(norewind.inverse_sqrt(1e-2, alpha=0.03))
    >>> learner = norewind.online(norewind.rtrl(cell.transition, loss), optimizer)
    >>> ahead = norewind.Ahead(learner, loss, horizon=3)
    >>> start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> row = np.zeros(1, np.float32)
    >>> wave = np.sin(np.arange(3_000) / 5, dtype=np.float32)[:, None]
    >>> run, losses = ahead.scan(ahead.init(start, row, row, row), wave, wave)
    >>> bool(losses[-100:].mean() < 0.3 * losses[10:110].mean())
    True
    """

    def __init__(self, learner: DelayedLearner, loss: Loss, horizon: int, window: int = 1):
        checks.at_least_one("Ahead: horizon", horizon)
        checks.at_least_one("Ahead: window", window)
        self.learner, self.horizon, self.window = learner, horizon, window
        # When the first of the rows to forecast has come, so have the targets of those up to this many rows before.
        self.delay = horizon + window - 1
        self._losses = _losses_of(loss)

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
        The losses are those of the forecasts made then, summed over each window; a row that
        nothing forecast has none. With `outputs`, `(run, (losses, (outputs, due)))`: the
        forecasts made at these rows, and those that were made of them. With `count`, only the
        first `count` steps are looked at.
        """
        steps = checks.common_length("scan", xs=xs, targets=targets)
        count = steps if count is None else count
        rows, (newest, known) = count * self.window, (self._flat(np.asarray(part)) for part in (xs, targets))
        old, came = np.concatenate([run.xs, newest]), np.concatenate([run.targets, known])
        # The first rows come before anything can be learned.
        idle = min(count, max(0, -(-(self.delay - int(run.samples)) // self.window)))
        try:
            inner, forecasts = self._learn(run, old, came[: len(newest)], newest, (idle, count))
        except NonFiniteError as error:
            good, _ = self.scan(run, xs, targets, count=idle + error.step - 1 - int(run.run.steps))
            raise NonFiniteError(str(error), error.step, good) from None
        waiting = np.concatenate([run.outputs, forecasts])
        losses = np.array(self._losses(waiting[: len(newest)], known))
        losses[: max(0, self.horizon - int(run.samples))] = losses[rows:] = 0
        new = AheadRun(
            inner,
            old[rows : rows + self.delay],
            came[rows : rows + self.window - 1],
            waiting[rows : rows + self.horizon],
            _counted(run.samples, rows),
        )
        losses = losses.reshape(steps, self.window).sum(axis=1)
        made, due = self._steps(forecasts), self._steps(waiting[: len(newest)])
        return new, (losses, (made, due)) if outputs else losses

    def _learn(self, run: AheadRun, old: np.ndarray, targets: np.ndarray, newest: np.ndarray, steps: tuple[int, int]):
        """The inner run after these steps, of which the first are idle, and the forecasts made at the newest rows."""
        idle, count = steps
        inner, start = run.run, idle * self.window
        forecasts = np.zeros((len(newest), *run.outputs.shape[1:]), run.outputs.dtype)
        if idle:
            inner, outputs = self.learner.forward(inner, newest, count=start)
            forecasts = np.array(outputs)
            # Rows before the first whole window are not learned from, but the state has to see them.
            missed = old[max(0, self.delay - int(run.samples)) : start]
            if len(missed):
                seen, _ = self.learner.forward(inner._replace(ahead=None), missed, count=len(missed))
                inner = seen._replace(ahead=inner.ahead)
        if count > idle:
            # Rolled, not cut: chunks keep their length, and with it their compiled program.
            xs, targets, newest = (
                self._steps(np.roll(part, -start, axis=0)) for part in (old[: len(newest)], targets, newest)
            )
            inner, (_, outputs) = self.learner.scan(inner, xs, targets, newest=newest, count=count - idle, outputs=True)
            later = self._flat(np.asarray(outputs))
            forecasts = np.concatenate([forecasts[:start], later[: len(later) - start]])
        return inner, forecasts

    def forward(self, run: AheadRun, xs: np.ndarray, *, count: int | None = None) -> tuple[AheadRun, Any]:
        """Forecast from a chunk of rows without learning: `(run, (outputs, due))`.

        The rows are forgotten, so the run can go on to forecast, but not to learn.
        """
        count = len(xs) if count is None else count
        inner, outputs = self.learner.forward(run.run, xs, count=count)
        waiting = np.concatenate([run.outputs, np.asarray(outputs)])
        samples = _counted(run.samples, count)
        new = run._replace(run=inner, outputs=waiting[count : count + self.horizon], samples=samples)
        return new, (np.asarray(outputs), waiting[: len(xs)])

    def one(self, run: AheadRun, x: Any, target: Any) -> tuple[AheadRun, jax.Array, Any]:
        """`scan` of one row inside a compiled function, without windows: `(run, loss, (output, due))`.

        The first `horizon` rows of a run, from which nothing can be learned yet, go through `answer` instead.
        """
        inner, _, output = one_step(self.learner, run.run, run.xs[0], target, x)
        due = run.outputs[0]
        return self._moved(run, inner, x, output), self._losses(due[None], target[None])[0], (output, due)

    def answer(self, run: AheadRun, x: Any) -> tuple[AheadRun, Any]:
        """One row inside a compiled function, from which nothing is learned: `(run, (output, due))`."""
        inner, output = one_answer(self.learner, run.run, x)
        return self._moved(run, inner, x, output), (output, run.outputs[0])

    def _moved(self, run: AheadRun, inner: Any, x: Any, output: jax.Array) -> AheadRun:
        samples: Any = jnp.where(run.samples < jnp.iinfo(jnp.int32).max, run.samples + 1, run.samples)
        return AheadRun(inner, shifted(run.xs, x), run.targets, shifted(run.outputs, output), samples)

    def pending(self, run: AheadRun) -> dict[int, np.ndarray]:
        """The forecasts of future rows, the next one first, under the horizon that they reach."""
        return {self.horizon: run.outputs}

    def reset(self, run: AheadRun) -> AheadRun:
        """Begin a new sequence: the state returns to the initial one, and nothing waits. The parameters stay."""
        inner = self.learner.reset(run.run)
        xs, outputs, samples = (np.zeros_like(part) for part in (run.xs, run.outputs, run.samples))
        return AheadRun(inner._replace(ahead=inner.state), xs, np.full_like(run.targets, np.nan), outputs, samples)

    def carry(self, run: AheadRun) -> Tree:
        return self.learner.carry(run.run)

    def _flat(self, steps: np.ndarray) -> np.ndarray:
        return steps if self.window == 1 else steps.reshape(-1, *steps.shape[2:])

    def _steps(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.window == 1 else rows.reshape(-1, self.window, *rows.shape[1:])


def _all_losses(loss: Loss, outputs: Any, targets: Any) -> Any:
    return jax.vmap(loss)(outputs, targets)


@lru_cache(maxsize=64)
def _losses_of(loss: Loss) -> Callable:
    """The losses of many rows. Members of a series share this program."""
    return jax.jit(partial(_all_losses, loss))


def one_step(learner: Any, run: Any, x: Any, target: Any, newest: Any = None) -> tuple[Any, Any, Any]:
    """One sample, learned inside a compiled function: the run, the loss and the output (of `newest` if given)."""
    if not isinstance(learner, Learner):
        return learner.one(run, x, target, newest)
    step = fast_step if learner.stops else skipping_step
    (run,), loss, output = step(learner.update, run, (x, target, newest))
    return run, loss, output


def one_answer(learner: Any, run: Any, x: Any) -> tuple[Any, Any]:
    """One sample, answered inside a compiled function; only the state moves. There are no windows of answers."""
    if not isinstance(learner, Learner):
        return learner.answer(run, x)
    transition = one_step_of(learner.update.model.transition)
    state, output = transition(run.params, run.state if run.ahead is None else run.ahead, x)
    return run._replace(**{"state" if run.ahead is None else "ahead": strong(state)}), output


def shifted(rows: Any, newest: Any) -> Any:
    """The rows without the oldest, and with a new one."""
    return jnp.concatenate([rows, newest[None].astype(rows.dtype)])[1:]


def _counted(samples: np.ndarray, more: int) -> np.ndarray:
    return np.asarray(min(int(samples) + more, np.iinfo(np.int32).max), np.int32)
