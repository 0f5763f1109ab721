"""One step of learning: a gradient from an estimator, an update from an optimizer."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from norewind import checks
from norewind.estimator import Estimate, Estimator, reset_carry
from norewind.run import Run
from norewind.schedules import at_sample
from norewind.trees import Tree, all_finite, strong, where


@dataclass(frozen=True)
class Update:
    """An estimator and an optimizer, as pure functions from run to run. Nothing here is compiled."""

    estimator: Estimator
    optimizer: optax.GradientTransformationExtraArgs

    def start(self, params: Tree, state: Tree, key: jax.Array) -> Run:
        """A new run."""
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
        """Learn from one sample or window."""
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
        """The same, unless it gives a number that is not finite: then only the counts change."""
        new, estimate = self.advance(run, x, target)
        # A state may hold an infinity on purpose, such as a running minimum that starts there.
        finite = all_finite((estimate.loss, estimate.grad, new.params, new.carry)) & (
            all_finite(new.state) | ~all_finite(run.state)
        )
        kept = run._replace(steps=new.steps, samples=new.samples, skipped=_saturating_add(run.skipped, 1))
        return where(finite, new, kept), estimate, finite

    def reset(self, run: Run, when: jax.Array) -> Run:
        """The same run, at the start of a new sequence wherever `when` is true."""
        return run._replace(
            state=where(when, run.initial_state, run.state),
            carry=reset_carry(self.estimator, run.params, run.initial_state, run.carry, when),
        )


def _saturating_add(count: jax.Array, more: int) -> jax.Array:
    limit = jnp.iinfo(count.dtype).max
    return jnp.where(count > limit - more, limit, count + more).astype(count.dtype)
