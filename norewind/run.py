"""A training run, the functions of a learner that go from run to run, and one step of learning."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from norewind import checks
from norewind.estimator import Estimate, Estimator, reset_carry
from norewind.schedules import at_sample
from norewind.trees import Tree, all_finite, strong, where


class Run(NamedTuple):
    """A whole training run as one pytree. Save it, restore it, and training continues exactly.

    `steps` counts the calls of `step` (or the entries of a `scan`), `samples` the
    samples along the stream (T per step for windows of T), and `skipped` the steps that
    were dropped as not finite; all three stop at 2³¹ − 1. A reset returns to
    `initial_state`. `pending` holds the inputs that wait for their targets, oldest
    first, and `ahead` the state after them (None when no input waits).
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
    """A number that must be finite was not. `step` is the step, counted from 1; `run` is the last good run."""

    def __init__(self, message: str, step: int, run: Run):
        super().__init__(message)
        self.step = step
        self.run = run


class RunInitFn(Protocol):
    """Start a run. A reset returns to `state`; `key` is for the estimator's noise."""

    def __call__(self, params: Tree, state: Tree, key: jax.Array) -> Run: ...


class RunStepFn(Protocol):
    """Learn from one sample or window: `x` is the model's input, `target` what the loss compares its output with."""

    def __call__(self, run: Run, x: Tree, target: Tree) -> tuple[Run, Estimate]: ...


class RunScanFn(Protocol):
    """Learn from a chunk in one compiled loop, the fast way, and return `(run, losses)`.

    How a stream is cut into chunks changes nothing but rounding.

    - `xs` and `targets` have one entry per step along their leading axis.
    - `resets`: a boolean per step, or per step and stream. Where it is true a new
      sequence begins: state and carry are reset before that step.
    - `count`: learn from the first `count` steps only, and return zeros for the rest.
      Every count runs the same compiled loop, so chunks of one length that are only
      partly filled do not even change rounding.
    - `outputs`: return `(run, (losses, outputs))`.
    """

    def __call__(
        self,
        run: Run,
        xs: Tree,
        targets: Tree,
        resets: Any = None,
        *,
        count: int | jax.Array | None = None,
        outputs: bool = False,
    ) -> tuple[Run, Any]: ...


class RunPredictFn(Protocol):
    """Answer the input `x` now, with an output; it then waits in the run for its target."""

    def __call__(self, run: Run, x: Tree) -> tuple[Run, Tree]: ...


class RunLearnFn(Protocol):
    """Learn from the oldest input that waits, of which `target` is the target.

    Targets may come k samples late, in order: the run then holds k inputs and one more state.
    """

    def __call__(self, run: Run, target: Tree) -> tuple[Run, Estimate]: ...


class RunResetFn(Protocol):
    """Begin a new sequence where `when`, a boolean or one per stream, is true.

    The state returns to the initial one and the carry forgets the past. The parameters
    stay the same, and the noise continues.
    """

    def __call__(self, run: Run, when: Any = True) -> Run: ...


class Learner(NamedTuple):
    """What `online` returns: functions from run to run, each compiled once per shape."""

    init: RunInitFn
    step: RunStepFn
    scan: RunScanFn
    predict: RunPredictFn
    learn: RunLearnFn
    reset: RunResetFn


@dataclass(frozen=True)
class Update:
    """An estimator and an optimizer, as pure functions from run to run. Nothing here is compiled."""

    estimator: Estimator
    optimizer: optax.GradientTransformationExtraArgs

    def start(self, params: Tree, state: Tree, key: jax.Array) -> Run:
        checks.parameters_and_state(params, state)
        params, state = strong(params), strong(state)
        zero = jnp.zeros((), jnp.int32)
        return Run(
            params=params,
            state=state,
            carry=strong(self.estimator.init(params, state, key)),
            optimizer=strong(self.optimizer.init(params)),
            steps=zero,
            samples=zero,
            skipped=zero,
            initial_state=state,
        )

    def advance(self, run: Run, x: Tree, target: Tree) -> tuple[Run, Estimate]:
        state, carry, estimate = self.estimator.step(run.params, run.state, run.carry, x, target)
        updates, optimizer_state = self.optimizer.update(
            estimate.grad, at_sample(run.optimizer, run.samples), run.params, value=estimate.loss, grad=estimate.grad
        )
        model = self.estimator.model
        new = run._replace(
            params=optax.apply_updates(run.params, updates),
            state=state,
            carry=carry,
            optimizer=optimizer_state,
            steps=_saturating_add(run.steps, 1),
            samples=_saturating_add(run.samples, model.samples(x) if model else 1),
        )
        return strong(new), estimate

    def advance_if_finite(self, run: Run, x: Tree, target: Tree) -> tuple[Run, Estimate, jax.Array]:
        """Advance, unless that gives a number that is not finite: then only the counts change."""
        new, estimate = self.advance(run, x, target)
        # A state may hold an infinity on purpose, such as a running minimum that starts there.
        finite = all_finite((estimate.loss, estimate.grad, new.params, new.carry)) & (
            all_finite(new.state) | ~all_finite(run.state)
        )
        kept = run._replace(steps=new.steps, samples=new.samples, skipped=_saturating_add(run.skipped, 1))
        return where(finite, new, kept), estimate, finite

    def reset(self, run: Run, when: jax.Array) -> Run:
        return run._replace(
            state=where(when, run.initial_state, run.state),
            carry=reset_carry(self.estimator, run.params, run.initial_state, run.carry, when),
        )


def _saturating_add(count: jax.Array, more: int) -> jax.Array:
    limit = jnp.iinfo(count.dtype).max
    return jnp.where(count > limit - more, limit, count + more).astype(count.dtype)
