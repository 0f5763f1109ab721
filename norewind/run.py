"""A training run, and the functions of a learner that go from run to run."""

from typing import Any, NamedTuple, Protocol

import jax

from norewind.estimator import Estimate
from norewind.trees import Tree


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
    """`init(params, state, key) -> run`: start a run."""

    def __call__(self, params: Tree, state: Tree, key: jax.Array) -> Run:
        """`state` is also the state that a reset returns to; `key` is for the estimator's noise."""
        ...


class RunStepFn(Protocol):
    """`step(run, x, target) -> (run, estimate)`: learn from one sample or window."""

    def __call__(self, run: Run, x: Tree, target: Tree) -> tuple[Run, Estimate]:
        """`x` is the model's input; `target` is what the loss compares its output with."""
        ...


class RunScanFn(Protocol):
    """`scan(run, xs, targets) -> (run, losses)`: learn from a chunk in one compiled loop, the fast way.

    How a stream is cut into chunks changes nothing but rounding.
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
    ) -> tuple[Run, Any]:
        """`xs` and `targets` have one entry per step along their leading axis.

        - `resets`: a boolean per step, or per step and stream. Where it is true a new
          sequence begins: state and carry are reset before that step.
        - `count`: learn from the first `count` steps only, and return zeros for the rest.
          Every count runs the same compiled loop, so chunks of one length that are only
          partly filled do not even change rounding.
        - `outputs`: return `(run, (losses, outputs))`.
        """
        ...


class RunPredictFn(Protocol):
    """`predict(run, x) -> (run, output)`: answer now, and learn when the target comes."""

    def __call__(self, run: Run, x: Tree) -> tuple[Run, Tree]:
        """`x` is the model's input, which then waits in the run for its target."""
        ...


class RunLearnFn(Protocol):
    """`learn(run, target) -> (run, estimate)`: learn from the oldest input that waits.

    Targets may come k samples late, in order: the run then holds k inputs and one more state.
    """

    def __call__(self, run: Run, target: Tree) -> tuple[Run, Estimate]:
        """`target` is that of the oldest input that waits."""
        ...


class RunResetFn(Protocol):
    """`reset(run, when=True) -> run`: begin a new sequence.

    The state returns to the initial one and the carry forgets the past. The parameters
    stay the same, and the noise continues.
    """

    def __call__(self, run: Run, when: Any = True) -> Run:
        """`when` is a boolean, or one per stream."""
        ...


class Learner(NamedTuple):
    """What `online` returns: functions from run to run, each compiled once per shape."""

    init: RunInitFn
    step: RunStepFn
    scan: RunScanFn
    predict: RunPredictFn
    learn: RunLearnFn
    reset: RunResetFn
