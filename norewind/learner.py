"""The online learner: an estimator and an optimizer, one sample (or window) at a time."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from norewind import checks
from norewind.compilation import compiled_loop
from norewind.estimator import Estimate, Estimator, reset_carry
from norewind.schedules import at_sample
from norewind.trees import Tree, all_finite, strong, where


class Run(NamedTuple):
    """Everything there is to know about a training run, as one pytree. Saved and restored, it goes on exactly.

    `steps` counts the calls of `step` (or the entries of a `scan`), `samples` the
    samples along the stream (T a step for windows of T), `skipped` the steps dropped
    as not finite; all three stay at 2³¹ − 1 once they get there. `initial_state` is
    what a reset goes back to. `pending` holds the inputs that wait for their target,
    oldest first, and `ahead` the state after them (None when nothing waits).
    """

    params: Tree
    state: Tree
    carry: Tree
    optimizer: Tree
    steps: jax.Array
    samples: jax.Array
    skipped: jax.Array
    initial_state: Tree
    pending: tuple[Tree, ...] = ()
    ahead: Tree = None


class NonFiniteError(ArithmeticError):
    """A number that must be finite was not. `step` says where (counting from 1); `run` is the last good one."""

    def __init__(self, message: str, step: int, run: Run):
        super().__init__(message)
        self.step = step
        self.run = run


class Learner(NamedTuple):
    """What `online` returns: pure functions from run to run, compiled once per shape."""

    init: Callable[[Tree, Tree, jax.Array], Run]
    step: Callable[[Run, Tree, Tree], tuple[Run, Estimate]]
    scan: Callable[..., tuple[Run, jax.Array]]
    predict: Callable[[Run, Tree], tuple[Run, Tree]]
    learn: Callable[[Run, Tree], tuple[Run, Estimate]]
    reset: Callable[..., Run]


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
      compiled loop: the fast way. How a stream is cut into chunks changes nothing but
      rounding. Where `resets` (a boolean per step, or per step and stream) holds, a new
      sequence begins: state and carry are reset before that step. With `outputs=True`
      it returns `(run, (losses, outputs))`. With `count=k` it learns from the first k
      steps only; the rest of what it returns is zeros. Any k runs the same compiled
      loop, so that chunks of one length, filled more or less, change not even rounding.
    - `predict(run, x) -> (run, output)` answers now; the input waits for its target.
      `learn(run, target) -> (run, estimate)` takes the target of the oldest one, so
      targets may come k samples late, in order, at the memory of k inputs and a state.
    - `reset(run, when=True) -> run` goes back to the initial state and forgets the past
      influence, not the parameters nor the noise; `when` may be a boolean per stream.

    Any optax optimizer will do. Its schedules see the number of samples processed
    before the update, also when a window makes one update out of many samples.

    `nonfinite` says what follows when a loss, a gradient, the state or the carry is not
    finite: `"stop"` raises `NonFiniteError` with the step where it happened and the
    last good run; `"skip"` drops that sample (parameters, state and carry stay as they
    were) and counts it in `run.skipped`. Inside your own `jit` or `vmap` nothing can be
    raised: there, `"stop"` lets the numbers through; look at the losses.

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
    optimizer = optax.with_extra_args_support(optimizer)
    model = estimator.model

    def init(params, state, key):
        checks.parameters(params)
        checks.state_leaves(state)
        params, state = strong(params), strong(state)
        zero = jnp.zeros((), jnp.int32)
        return Run(
            params=params,
            state=state,
            carry=strong(estimator.init(params, state, key)),
            optimizer=strong(optimizer.init(params)),
            steps=zero,
            samples=zero,
            skipped=zero,
            initial_state=state,
        )

    def advance(run, x, target):
        state, carry, estimate = estimator.step(run.params, run.state, run.carry, x, target)
        updates, optimizer_state = optimizer.update(
            estimate.grad, at_sample(run.optimizer, run.samples), run.params, value=estimate.loss, grad=estimate.grad
        )
        new = run._replace(
            params=optax.apply_updates(run.params, updates),
            state=state,
            carry=carry,
            optimizer=optimizer_state,
            steps=_saturating_add(run.steps, 1),
            samples=_saturating_add(run.samples, samples_in(x)),
        )
        return strong(new), estimate

    def advance_if_finite(run, x, target):
        """The same, but a step that gives anything not finite changes only the counts."""
        new, estimate = advance(run, x, target)
        # A state may hold an infinity of its own from the start (a running minimum, say).
        finite = all_finite((estimate.loss, estimate.grad, new.params, new.carry)) & (
            all_finite(new.state) | ~all_finite(run.state)
        )
        kept = run._replace(steps=new.steps, samples=new.samples, skipped=_saturating_add(run.skipped, 1))
        return where(finite, new, kept), estimate, finite

    def samples_in(x):
        return model.samples(x) if model else 1

    def chunk(one_step):
        """A compiled loop of one step over the leading axis of its inputs, resets included."""

        def loop(carry, inputs, count, outputs):
            def body(carry, inputs):
                x, target, when = inputs
                run, *rest = carry
                if when is not None:
                    run = reset_now(run, when)
                carry, estimate = one_step((run, *rest), x, target)
                return carry, (estimate.loss, estimate.output) if outputs else estimate.loss

            return jax.lax.scan(body, carry, inputs) if count is None else scan_some(body, carry, inputs, count)

        return compiled_loop(loop, static_argnames="outputs")

    def fast_step(carry, x, target):
        (run,) = carry
        run, estimate = advance(run, x, target)
        return (run,), estimate

    def skipping_step(carry, x, target):
        (run,) = carry
        run, estimate, _ = advance_if_finite(run, x, target)
        return (run,), estimate

    def careful_step(carry, x, target):
        """Goes on as long as everything is finite, then stands still."""
        run, good = carry
        new, estimate, finite = advance_if_finite(run, x, target)
        good = good & finite
        return (where(good, new, run), good), estimate

    compiled_step = jax.jit(advance_if_finite)
    fast_chunk = chunk(skipping_step if nonfinite == "skip" else fast_step)
    careful_chunk = chunk(careful_step)
    # Looking at every gradient would be one more pass over the parameters in every step.
    # What is not finite stays in what the run keeps, so one look after the chunk is enough.
    chunk_is_finite = jax.jit(lambda run, losses: all_finite((losses, run.params, run.carry)))

    def step(run, x, target):
        nothing_pending(run, "step")
        new, estimate, finite = compiled_step(run, x, target)
        if nonfinite == "stop" and _is_false(finite):
            raise _nonfinite(run)
        return new, estimate

    def scan(run, xs, targets, resets=None, *, count=None, outputs=False):
        nothing_pending(run, "scan")
        inputs = {"xs": xs, "targets": targets}
        if resets is not None:
            inputs["resets"] = resets = jnp.asarray(resets)
        length = checks.common_length("scan", **inputs)
        if isinstance(count, int) and not 0 <= count <= length:
            raise ValueError(f"scan: count is {count}, but the chunk holds {length} steps.")
        (new,), seen = fast_chunk((run,), (xs, targets, resets), count, outputs)
        losses = seen[0] if outputs else seen
        if nonfinite == "stop" and _is_false(chunk_is_finite(new, losses)):
            # Go through the chunk again, step by step, to the last run that was good.
            (last_good, _), _ = careful_chunk((run, jnp.array(True)), (xs, targets, resets), count, False)
            raise _nonfinite(last_good)
        return new, seen

    def predict(run, x):
        if model is None:
            raise ValueError("this estimator was made without its model: build it with Estimator(..., model=...).")
        ahead, output = compiled_transition(run.params, run.ahead if run.pending else run.state, x)
        return run._replace(pending=(*run.pending, x), ahead=ahead), output

    def learn(run, target):
        if not run.pending:
            raise ValueError("no input waits for a target: call predict(run, x) before learn(run, target).")
        x, *later = run.pending
        new, estimate = step(run._replace(pending=(), ahead=None), x, target)
        if not later:
            return new, estimate
        return new._replace(pending=tuple(later), ahead=run.ahead), estimate

    @jax.jit
    def compiled_transition(params, state, x):
        assert model is not None
        return checks.transition_result(model.transition(params, state, x), state)

    def nothing_pending(run, what):
        if run.pending:
            raise ValueError(
                f"{what}: inputs still wait for their targets ({len(run.pending)} of them). "
                "Call learn(run, target) for each first."
            )

    def reset_now(run, when):
        return run._replace(
            state=where(when, run.initial_state, run.state),
            carry=reset_carry(estimator, run.params, run.initial_state, run.carry, when),
        )

    compiled_reset = jax.jit(reset_now)

    def reset(run, when: Any = True):
        nothing_pending(run, "reset")
        mask = when if hasattr(when, "dtype") else np.asarray(when)
        if mask.dtype != bool:
            raise checks.ModelError(
                "reset: `when` must be True, False or a boolean per stream. (The state goes back to what init got.)"
            )
        return compiled_reset(run, mask)

    return Learner(init, step, scan, predict, learn, reset)


def scan_some(body, carry, inputs, count):
    """`jax.lax.scan` over the first `count` entries, a number that need not be known when compiling."""

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


def _saturating_add(count: jax.Array, more: int) -> jax.Array:
    limit = jnp.iinfo(count.dtype).max
    return jnp.where(count > limit - more, limit, count + more).astype(count.dtype)


def _is_false(flag: jax.Array) -> bool:
    """Whether a flag is known and false; inside a caller's own transformation it is not known."""
    return not isinstance(flag, Tracer) and not bool(flag)


def _nonfinite(run: Run) -> NonFiniteError:
    step = int(run.steps) + 1
    return NonFiniteError(
        f"step {step} (counting from 1) gave a loss, gradient, state or carry that is not finite. The run before it "
        "is intact: it is this error's `run`. Look at x and target of that step; lower the learning rate, "
        'or use online(..., nonfinite="skip") to drop such samples and count them.',
        step,
        run,
    )
