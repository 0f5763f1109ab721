"""A training run, and one step of learning as a function from run to run."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from norewind.core import checks
from norewind.core.estimator import Estimate, Estimator
from norewind.core.optimizers import at_sample
from norewind.core.trees import Tree, all_finite, is_differentiable, named_leaves, norm, where, without_weak_types
from norewind.errors import Diverged

# What a step does about numbers that are not finite; see `Update.step`.
Nonfinite = Literal["ignore", "mark", "report", "skip"]


class Run(NamedTuple):
    """A whole training run as one pytree. Save it, restore it, and training continues exactly where it stopped.

    The three counts stop at 2³¹ − 1.

    Attributes:
        params: the parameters of the model.
        state: the state of the model.
        carry: the carry of the estimator.
        opt_state: the state of the optimizer.
        steps: the number of calls of `step`, or of entries of a `scan`.
        samples: the number of samples along the stream (T per step for windows of T).
        skipped: the number of steps dropped because a number was not finite.
        initial_state: the state that a reset returns to.
        pending: the inputs that are still waiting for their targets, oldest first.
        latest_state: the state after all inputs, also those not learned from yet; None if it is `state`.
    """

    params: Tree
    state: Tree
    carry: Tree
    opt_state: Tree
    steps: jax.Array
    samples: jax.Array
    skipped: jax.Array
    initial_state: Tree
    pending: tuple[Tree, ...] = ()
    latest_state: Tree = None

    def __repr__(self) -> str:
        pending = f", {len(self.pending)} pending input{'s' * (len(self.pending) > 1)}" if self.pending else ""
        numbers = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        return (
            f"Run(samples={self.samples}, steps={self.steps}, skipped={self.skipped}, {numbers:,} parameters{pending})"
        )


class NonFiniteError(Diverged):
    """Raised when the loss, gradient, parameters, state or carry of a step are not finite.

    Args:
        reason: the problem, as a sentence.
        step: the number of the step, counted from 1.
        run: the last good run.
        remedy: what to do, as further sentences of the message.
    """

    def __init__(self, reason: str, step: int, run: Any, remedy: str = ""):
        super().__init__(reason, int(run.samples) + 1, run, remedy)
        self.step = step


def nonfinite_leaf(trees: dict[str, Tree]) -> str:
    """Return the place of the first leaf that holds a number that is not finite, such as `grad['w']`; "" if none does.

    Args:
        trees: the trees to search in order, by name.
    """
    for name, tree in trees.items():
        for place, leaf in named_leaves(name, tree):
            if is_differentiable(leaf) and not jnp.all(jnp.isfinite(leaf)):
                return place
    return ""


def nonfinite_error(run: Any, step: int | None = None, place: str = "") -> NonFiniteError:
    """Return the error for the step after a run.

    Args:
        run: the last good run.
        step: the number of the step, if the run does not count its steps.
        place: the first leaf that is not finite, if known.
    """
    step = int(run.steps) + 1 if step is None else step
    return NonFiniteError(
        f"sample {int(run.samples) + 1} gave numbers that are not finite.",
        step,
        run,
        (f"The first are in {place}. " if place else "")
        + f"The last good run, before step {step} (counting from 1), is this error's `run`. Check x and target of that "
        'step, lower the learning rate, or use online(..., nonfinite="skip") to drop such samples and count them.',
    )


@dataclass(frozen=True)
class Update:
    """One step of learning: an estimator and an optimizer as pure functions from run to run. Nothing here is compiled.

    Args:
        estimator: estimates the gradient.
        optimizer: turns the gradient into an update of the parameters.
    """

    estimator: Estimator
    optimizer: optax.GradientTransformationExtraArgs

    def transition(self, params: Tree, state: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Run one step of the model, and check its result.

        Args:
            params: the parameters.
            state: the state before the step.
            x: the input.

        Returns:
            The new state and the output.

        Raises:
            ModelError: the transition returns something invalid.
        """
        return checks.check_transition_result(self.estimator.model.transition(params, state, x), state)

    def step(
        self, run: Run, x: Tree, target: Tree, latest: Tree = None, *, nonfinite: Nonfinite = "ignore"
    ) -> tuple[Run, Estimate, jax.Array | None]:
        """Learn from one sample or window, then answer a newer input if there is one.

        Args:
            run: the run before it.
            x: the input.
            target: the target of the loss.
            latest: a newer input, to be answered with `run.latest_state` after learning; None for none.
            nonfinite: what to do about a loss, gradient, state or carry that is not finite. `"ignore"`: nothing.
                `"mark"`: return a loss of NaN if the gradient is not finite, which clipping could hide. `"report"`:
                return whether all numbers are finite. `"skip"`: also leave the run unchanged, except its counts.

        Returns:
            The new run, the estimate of this step (its output is that of the newer input, if there is one), and whether
            all numbers are finite; None if that is not asked for.
        """
        new, estimate = self._learn(run, x, target)
        finite = None
        if nonfinite == "mark":
            estimate = estimate._replace(loss=jnp.where(jnp.isfinite(norm(estimate.grad)), estimate.loss, jnp.nan))
        elif nonfinite != "ignore":
            # A state may hold an infinity on purpose, such as a running minimum that starts there.
            finite = all_finite((estimate.loss, estimate.grad, new.params, new.carry)) & (
                all_finite(new.state) | ~all_finite(run.state)
            )
        if finite is not None and nonfinite == "skip":
            kept = run._replace(steps=new.steps, samples=new.samples, skipped=_saturating_add(run.skipped, 1))
            new = where(finite, new, kept)
        if latest is None:
            return new, estimate, finite
        state, output = self.transition(new.params, new.latest_state, latest)
        estimate = estimate._replace(output=output)
        answered = new._replace(latest_state=without_weak_types(state))
        if finite is None:
            return answered, estimate, None
        still_finite = latest_state_is_finite(new, answered)
        if nonfinite == "skip":
            answered = new._replace(latest_state=where(still_finite, answered.latest_state, new.latest_state))
        return answered, estimate, finite & still_finite

    def _learn(self, run: Run, x: Tree, target: Tree) -> tuple[Run, Estimate]:
        state, carry, estimate = self.estimator.step(run.params, run.state, run.carry, x, target)
        known = {"value": estimate.loss, "grad": estimate.grad, "value_grad": estimate.value_grad, "model_state": state}
        updates, opt_state = self.optimizer.update(
            estimate.grad, at_sample(run.opt_state, run.samples), run.params, **known
        )
        new = run._replace(
            params=optax.apply_updates(run.params, updates),
            state=state,
            carry=carry,
            opt_state=opt_state,
            steps=_saturating_add(run.steps, 1),
            samples=_saturating_add(run.samples, self.estimator.model.samples(x)),
        )
        return without_weak_types(new), estimate

    def reset(self, run: Run, when: jax.Array) -> Run:
        """Start a new sequence from the initial state, and forget the past.

        Args:
            run: the run before the reset.
            when: the reset happens only where this is true.

        Returns:
            The run after the reset.
        """
        return run._replace(
            state=where(when, run.initial_state, run.state),
            latest_state=None if run.latest_state is None else where(when, run.initial_state, run.latest_state),
            carry=self.estimator.reset(run.params, run.initial_state, run.carry, when),
        )


def latest_state_is_finite(before: Run, after: Run) -> jax.Array:
    """Return whether the latest state is finite. One that was not finite from the start may be so on purpose.

    Args:
        before: an earlier run.
        after: the run to check.
    """
    if after.latest_state is None:
        return jnp.array(True)
    return all_finite(after.latest_state) | ~all_finite((before.latest_state, before.initial_state))


def explain_call_error(caller: str, error: Exception, update: Update, run: Any, *inputs: Tree) -> None:
    """Find the cause of an error of Python or JAX, and raise an error that names it, or add a note to the original.

    The cause is often a run of another learner, or data that is not made of arrays.

    Args:
        caller: the name of the function that was called, for the message.
        error: the original error.
        update: the learner's estimator and optimizer.
        run: the run that the learner was given.
        *inputs: the input and the target, if any.

    Raises:
        ModelError: the cause was found.
    """
    if isinstance(error, ValueError):
        return  # our own errors are ValueErrors, and already explain themselves
    for name, part in zip(("x", "target"), inputs, strict=False):
        checks.check_arrays(f"{caller}: {name}", part)
    carry = jax.eval_shape(update.estimator.init, run.params, run.state, jax.random.key(0))
    expected = {"carry": carry, "opt_state": jax.eval_shape(update.optimizer.init, run.params)}
    for name, part in expected.items():
        if _kinds(part) != _kinds(getattr(run, name)):
            raise checks.ModelError(
                f"{caller}: this run was made by another learner: its {name} differs from the one that this learner "
                "would make. Start a run with this learner's init(params, state, key)."
            )
    error.add_note(
        f"{caller}: was the run made by this learner's init(params, state, key), with the arguments in this order, and "
        "do x and target suit its model and loss?"
    )


def _kinds(tree: Tree) -> Any:
    return jax.tree.structure(tree), [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(tree)]


def _saturating_add(count: jax.Array, more: int | jax.Array) -> jax.Array:
    limit = jnp.iinfo(count.dtype).max
    return jnp.where(count > limit - more, limit, count + more).astype(count.dtype)
