"""A training run, and one step of learning: from run to run."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from norewind import checks, shown
from norewind.estimator import Estimate, Estimator, Model, reset_carry
from norewind.optimizers import at_sample
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

    def __repr__(self) -> str:
        return shown.lines(*self._facts())

    def _repr_html_(self) -> str:
        return shown.table(*self._facts())

    def _facts(self) -> tuple[str, dict[str, str]]:
        waiting = f", {len(self.pending)} more wait for their targets" if self.pending else ""
        steps = f"{shown.count(self.steps)}, of which {shown.count(self.skipped)} were skipped{waiting}"
        parts = {name: shown.size(part) for name, part in (("parameters", self.params), ("state", self.state))}
        carry = f"{shown.size(self.carry)}; optimizer: {shown.size(self.optimizer)}"
        return f"Run after {shown.count(self.samples)} samples", {"steps": steps, **parts, "carry": carry}


class NonFiniteError(ArithmeticError):
    """A number that must be finite was not. `step` is the step, counted from 1; `run` is the last good run."""

    def __init__(self, message: str, step: int, run: Any):
        super().__init__(message)
        self.step = step
        self.run = run


def nonfinite_error(run: Any) -> NonFiniteError:
    step = int(run.steps) + 1
    return NonFiniteError(
        f"step {step} (counting from 1) gave a loss, gradient, state or carry that is not finite. The run before it "
        "is intact: it is this error's `run`. Check x and target of that step, lower the learning rate, "
        'or use online(..., nonfinite="skip") to drop such samples and count them.',
        step,
        run,
    )


@dataclass(frozen=True)
class Update:
    """An estimator and an optimizer, as pure functions from run to run. Nothing here is compiled."""

    estimator: Estimator
    optimizer: optax.GradientTransformationExtraArgs

    @property
    def model(self) -> Model:
        if self.estimator.model is None:
            raise ValueError("this estimator was made without its model: build it with Estimator(..., model=...).")
        return self.estimator.model

    def transition(self, params: Tree, state: Tree, x: Tree) -> tuple[Tree, Tree]:
        return checks.transition_result(self.model.transition(params, state, x), state)

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

    def advance_and_look(self, run: Run, x: Tree, target: Tree) -> tuple[Run, Estimate, jax.Array]:
        """Advance, and say whether that gave finite numbers only."""
        new, estimate = self.advance(run, x, target)
        # A state may hold an infinity on purpose, such as a running minimum that starts there.
        finite = all_finite((estimate.loss, estimate.grad, new.params, new.carry)) & (
            all_finite(new.state) | ~all_finite(run.state)
        )
        return new, estimate, finite

    def advance_if_finite(self, run: Run, x: Tree, target: Tree) -> tuple[Run, Estimate, jax.Array]:
        """Advance, unless that gives a number that is not finite: then only the counts change."""
        new, estimate, finite = self.advance_and_look(run, x, target)
        kept = run._replace(steps=new.steps, samples=new.samples, skipped=_saturating_add(run.skipped, 1))
        return where(finite, new, kept), estimate, finite

    def reset(self, run: Run, when: jax.Array) -> Run:
        return run._replace(
            state=where(when, run.initial_state, run.state),
            ahead=None if run.ahead is None else where(when, run.initial_state, run.ahead),
            carry=reset_carry(self.estimator, run.params, run.initial_state, run.carry, when),
        )


def explain(what: str, error: Exception, update: Update, run: Any, *inputs: Tree) -> None:
    """If an error of Python or JAX comes from a run or data that do not belong here, raise one that says so."""
    if isinstance(error, ValueError):
        return  # ours are, and say what is wrong
    for name, part in zip(("x", "target"), inputs, strict=False):
        checks.arrays(what + name, part)
    carry = jax.eval_shape(update.estimator.init, run.params, run.state, jax.random.key(0))
    expected = {"carry": carry, "optimizer": jax.eval_shape(update.optimizer.init, run.params)}
    for name, part in expected.items():
        if _kinds(part) != _kinds(getattr(run, name)):
            raise checks.ModelError(
                f"{what}this run was made by another learner: its {name} is not what this one would start with. "
                "Start a run with this learner's init(params, state, key)."
            )
    error.add_note(f"{what}was the run made by this learner's init, and are x and target what its model and loss take?")


def _kinds(tree: Tree) -> Any:
    return jax.tree.structure(tree), [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(tree)]


def _saturating_add(count: jax.Array, more: int | jax.Array) -> jax.Array:
    limit = jnp.iinfo(count.dtype).max
    return jnp.where(count > limit - more, limit, count + more).astype(count.dtype)
