"""The online learner: an estimator and an optimizer, one sample (or window) at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from norewind import checks
from norewind.compilation import compiled_loop
from norewind.estimator import Estimate, Estimator, Model
from norewind.run import Learner, NonFiniteError, Run
from norewind.trees import Tree, all_finite, where
from norewind.update import Update


def online(
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    *,
    nonfinite: Literal["stop", "skip"] = "stop",
) -> Learner:
    """Learn online: at every step (or window), estimate the gradient and update the parameters.

    - `init(params, state, key) -> run` starts a run.
    - `step(run, x, target) -> (run, estimate)` learns from one sample or window.
    - `scan(run, xs, targets, resets=None) -> (run, losses)` learns from a chunk in one
      compiled loop: the fast way. `resets` marks the steps where a new sequence begins.
      With `outputs=True` it returns `(run, (losses, outputs))`, with `count=k` it learns
      from the first k steps only.
    - `predict(run, x) -> (run, output)` answers now; the input waits for its target.
      `learn(run, target) -> (run, estimate)` takes the target of the oldest input.
    - `reset(run, when=True) -> run` begins a new sequence.

    `norewind.run` documents the arguments of each (`RunScanFn`, and so on).

    Any optax optimizer works. Its schedules see the number of samples processed before
    the update, even when a window makes one update out of many samples.

    `nonfinite` says what to do when a loss, a gradient, the state or the carry is not
    finite: `"stop"` raises `NonFiniteError` with the step where it happened and the
    last good run; `"skip"` drops that sample (parameters, state and carry stay the
    same) and counts it in `run.skipped`. Inside your own `jit` or `vmap` nothing can be
    raised, so `"stop"` lets the numbers through: check the losses.

    >>> import jax, jax.numpy as jnp, norewind, optax
    >>> cell = norewind.cells.gru(inputs=3, hidden=8, outputs=3)
    >>> estimator = norewind.uoro(cell.transition, norewind.losses.cross_entropy)
    >>> learner = norewind.online(estimator, optax.adam(norewind.inverse_sqrt(1e-2, alpha=0.03)))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> text = jnp.array([0, 0, 2, 1, 1, 2] * 50)
    >>> run, losses = learner.scan(run, text[:-1], text[1:])
    >>> int(run.steps), bool(losses[-50:].mean() < losses[:50].mean())
    (299, True)
    """
    if nonfinite not in ("stop", "skip"):
        raise ValueError(f'nonfinite must be "stop" or "skip", not {nonfinite!r}.')
    checks.estimator("online", estimator)
    if not hasattr(optimizer, "update"):
        raise checks.ModelError(f"online takes an optax optimizer, such as optax.adam(1e-3), not {optimizer!r}.")
    update = Update(estimator, optax.with_extra_args_support(optimizer))
    learning = _Online(
        stops=nonfinite == "stop",
        compiled_step=jax.jit(update.advance_if_finite),
        fast_chunk=_chunk(update, _fast_step if nonfinite == "stop" else _skipping_step),
        careful_chunk=_chunk(update, _careful_step),
        compiled_transition=estimator.model and _compiled_transition(estimator.model),
        compiled_reset=jax.jit(update.reset),
    )
    return Learner(update.start, learning.step, learning.scan, learning.predict, learning.learn, learning.reset)


@dataclass(frozen=True)
class _Online:
    """The functions of a learner, around programs that are compiled once per shape."""

    stops: bool
    compiled_step: Callable
    fast_chunk: Callable
    careful_chunk: Callable
    compiled_transition: Callable | None
    compiled_reset: Callable

    def step(self, run: Run, x: Tree, target: Tree) -> tuple[Run, Estimate]:
        """Learn from one sample or window: see `RunStepFn`."""
        _nothing_pending(run, "step")
        new, estimate, finite = self.compiled_step(run, x, target)
        if self.stops and _is_false(finite):
            raise _nonfinite(run)
        return new, estimate

    def scan(self, run: Run, xs: Tree, targets: Tree, resets: Any = None, *, count=None, outputs=False):
        """Learn from a chunk in one compiled loop: see `RunScanFn`."""
        _nothing_pending(run, "scan")
        inputs = {"xs": xs, "targets": targets}
        if resets is not None:
            inputs["resets"] = resets = jnp.asarray(resets)
        length = checks.common_length("scan", **inputs)
        if isinstance(count, int) and not 0 <= count <= length:
            raise ValueError(f"scan: count is {count}, but the chunk holds {length} steps.")
        (new,), seen = self.fast_chunk((run,), (xs, targets, resets), count, outputs)
        losses = seen[0] if outputs else seen
        if self.stops and _is_false(_chunk_is_finite(run, new, losses)):
            # Go through the chunk again, step by step, to the last good run.
            (last_good, _), _ = self.careful_chunk((run, jnp.array(True)), (xs, targets, resets), count, False)
            raise _nonfinite(last_good)
        return new, seen

    def predict(self, run: Run, x: Tree) -> tuple[Run, Tree]:
        """Answer now, and learn when the target comes: see `RunPredictFn`."""
        if self.compiled_transition is None:
            raise ValueError("this estimator was made without its model: build it with Estimator(..., model=...).")
        ahead, output = self.compiled_transition(run.params, run.ahead if run.pending else run.state, x)
        return run._replace(pending=(*run.pending, x), ahead=ahead), output

    def learn(self, run: Run, target: Tree) -> tuple[Run, Estimate]:
        """Learn from the oldest input that waits: see `RunLearnFn`."""
        if not run.pending:
            raise ValueError("no input waits for a target: call predict(run, x) before learn(run, target).")
        x, *later = run.pending
        new, estimate = self.step(run._replace(pending=(), ahead=None), x, target)
        if not later:
            return new, estimate
        return new._replace(pending=tuple(later), ahead=run.ahead), estimate

    def reset(self, run: Run, when: Any = True) -> Run:
        """Begin a new sequence: see `RunResetFn`."""
        _nothing_pending(run, "reset")
        mask = when if hasattr(when, "dtype") else np.asarray(when)
        if mask.dtype != bool:
            raise checks.ModelError(
                "reset: `when` must be True, False or a boolean per stream. The state returns to the one given to init."
            )
        return self.compiled_reset(run, mask)


def _fast_step(update: Update, loop: tuple[Run], x: Tree, target: Tree) -> tuple[tuple[Run], Estimate]:
    (run,) = loop
    run, estimate = update.advance(run, x, target)
    return (run,), estimate


def _skipping_step(update: Update, loop: tuple[Run], x: Tree, target: Tree) -> tuple[tuple[Run], Estimate]:
    (run,) = loop
    run, estimate, _ = update.advance_if_finite(run, x, target)
    return (run,), estimate


def _careful_step(update: Update, loop: tuple[Run, jax.Array], x: Tree, target: Tree):
    """Advances as long as everything is finite, and then stands still."""
    run, good = loop
    new, estimate, finite = update.advance_if_finite(run, x, target)
    good = good & finite
    return (where(good, new, run), good), estimate


def _chunk(update: Update, one_step: Callable) -> Callable:
    """A compiled loop of one of the steps above over the leading axis of its inputs, resets included."""

    def chunk(loop, inputs, count, outputs):
        def body(loop, inputs):
            x, target, when = inputs
            run, *rest = loop
            if when is not None:
                run = update.reset(run, when)
            loop, estimate = one_step(update, (run, *rest), x, target)
            return loop, (estimate.loss, estimate.output) if outputs else estimate.loss

        return jax.lax.scan(body, loop, inputs) if count is None else scan_some(body, loop, inputs, count)

    return compiled_loop(chunk, static_argnames="outputs")


def scan_some(body, carry, inputs, count):
    """`jax.lax.scan` over the first `count` entries, where `count` need not be known when compiling.

    Beyond `count` the outputs are zeros.
    """

    def entry(i):
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(jnp.asarray(leaf), i, keepdims=False), inputs)

    def write(i, carry_and_outputs):
        carry, outputs = carry_and_outputs
        carry, output = body(carry, entry(i))
        outputs = jax.tree.map(lambda all, one: jax.lax.dynamic_update_index_in_dim(all, one, i, 0), outputs, output)
        return carry, outputs

    length = jax.tree.leaves(inputs)[0].shape[0]
    shapes = jax.eval_shape(body, carry, jax.eval_shape(entry, 0))[1]
    empty = jax.tree.map(lambda one: jnp.zeros((length, *one.shape), one.dtype), shapes)
    return jax.lax.fori_loop(0, count, write, (carry, empty))


@jax.jit
def _chunk_is_finite(before: Run, after: Run, losses: jax.Array) -> jax.Array:
    """Whether a chunk gave finite numbers only.

    One look after the chunk is enough, because what is not finite stays in what a run
    keeps; a look at every gradient would be one more pass over the parameters in every
    step. A state that was not finite from the start may be so on purpose.
    """
    state_is_finite = all_finite(after.state) | ~all_finite((before.state, before.initial_state))
    return all_finite((losses, after.params, after.carry)) & state_is_finite


def _compiled_transition(model: Model) -> Callable:
    @jax.jit
    def transition(params, state, x):
        return checks.transition_result(model.transition(params, state, x), state)

    return transition


def _nothing_pending(run: Run, what: str) -> None:
    if run.pending:
        raise ValueError(
            f"{what}: inputs still wait for their targets ({len(run.pending)} of them). "
            "Call learn(run, target) for each first."
        )


def _is_false(flag: jax.Array) -> bool:
    """Whether a flag is known and false; inside a caller's own transformation it is not known."""
    return not isinstance(flag, Tracer) and not bool(flag)


def _nonfinite(run: Run) -> NonFiniteError:
    step = int(run.steps) + 1
    return NonFiniteError(
        f"step {step} (counting from 1) gave a loss, gradient, state or carry that is not finite. The run before it "
        "is intact: it is this error's `run`. Check x and target of that step, lower the learning rate, "
        'or use online(..., nonfinite="skip") to drop such samples and count them.',
        step,
        run,
    )
