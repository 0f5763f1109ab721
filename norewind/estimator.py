"""The contract of every gradient estimator, and the one linearisation they share."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from norewind import checks
from norewind.trees import Tree, is_key, real_leaves, where, with_real_leaves

Transition = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
Loss = Callable[[Tree, Tree], jax.Array]


def one_sample(x: Tree) -> int:
    """The number of samples in one x of an ordinary model."""
    return 1


class Model(NamedTuple):
    """A recurrent model as estimators see it: a black box.

    `transition(params, state, x) -> (new_state, output)` is the paper's F_state and
    F_out together, `loss(output, target)` is a scalar, and `samples(x)` is the number
    of samples of the stream in one x (T for a window, otherwise one).
    """

    transition: Transition
    loss: Loss
    samples: Callable[[Tree], int] = one_sample


class Estimate(NamedTuple):
    """What one step gives: the loss, a gradient shaped like the parameters, and the model's output."""

    loss: jax.Array
    grad: Tree
    output: Tree


class InitFn(Protocol):
    """What a method carries before the first step; `key` is for its noise, if it has any."""

    def __call__(self, params: Tree, state: Tree, key: jax.Array, /) -> Tree: ...


class StepFn(Protocol):
    """One sample or window: from the input `x`, and the `target` of the loss, to new state, new carry and estimate.

    The new state and carry have the structure, shapes and dtypes of the old ones.
    """

    def __call__(
        self, params: Tree, state: Tree, carry: Tree, x: Tree, target: Tree, /
    ) -> tuple[Tree, Tree, Estimate]: ...


class ResetFn(Protocol):
    """The carry, with the past forgotten where the boolean `when` is true; `state` starts the new sequence."""

    def __call__(self, params: Tree, state: Tree, carry: Tree, when: jax.Array, /) -> Tree: ...


class Estimator(NamedTuple):
    """A way to estimate gradients online, as two pure functions, `init` and `step`.

    `carry` is what the method carries forward in place of the past. The other fields are
    optional. With `model`, a learner can predict and count samples. Without `reset`, a
    reset calls `init` again and keeps the PRNG keys.

    `mean_step` and `streams_step` are for methods that have a faster way to the mean
    gradient than one `step` per carry or stream. Along a leading axis, `mean_step` takes
    several carries (see `norewind.average`), and `streams_step` several of everything but
    the parameters (see `norewind.parallel`). A sixth argument of `streams_step`, the weights
    of the streams, asks for the weighted sum in place of the mean.
    """

    init: InitFn
    step: StepFn
    model: Model | None = None
    reset: ResetFn | None = None
    mean_step: StepFn | None = None
    streams_step: Callable[..., tuple[Tree, Tree, Estimate]] | None = None


def checked(estimator: Estimator) -> Estimator:
    """The same estimator, with a check of parameters and state before its `init`."""

    def init(params, state, key):
        checks.parameters_and_state(params, state)
        return estimator.init(params, state, key)

    return estimator._replace(init=init)


def samples_of(transition: Transition) -> Callable[[Tree], int]:
    """What counts the samples in one x: the transition's own function, as a window has, or `one_sample`."""
    return getattr(transition, "samples", one_sample)


def model_of(transition: Transition, loss: Loss) -> Model:
    checks.model(transition, loss)
    return Model(transition, loss, samples_of(transition))


def parallel_model(model: Model, weights: jax.Array | None = None) -> Model:
    """Many streams as one model: everything but the parameters has a leading axis, and the loss is the mean, or the
    sum with these weights."""

    def transition(params, state, x):
        return jax.vmap(model.transition, in_axes=(None, 0, 0))(params, state, x)

    def loss(output, target):
        losses = jax.vmap(model.loss)(output, target)
        return jnp.mean(losses) if weights is None else losses @ weights.astype(losses.dtype)

    def samples(x):
        return model.samples(jax.tree.map(lambda leaf: leaf[0], x))

    for outer, inner in ((transition, model.transition), (loss, model.loss)):
        outer.__dict__["inner"] = inner
    return Model(transition, loss, samples)


def reset_carry(estimator: Estimator, params: Tree, state: Tree, carry: Tree, when: jax.Array) -> Tree:
    if estimator.reset is not None:
        return estimator.reset(params, state, carry, when)
    fresh = estimator.init(params, state, jax.random.key(0))
    # The keys continue, so that the noise after a reset is new.
    fresh = jax.tree.map(lambda new, old: old if is_key(old) else new, fresh, carry)
    return where(when, fresh, carry)


class Linearisation(NamedTuple):
    """The model evaluated at one point, and its derivatives there.

    With s the floating leaves of the state (as real numbers, see `trees.real_leaves`):
    `jvp(ds) -> (J ds, (∂ℓ/∂s) ds)` and `vjp(c, d) -> (c J + d ∂ℓ/∂s, c I + d ∂ℓ/∂θ)`,
    where J = ∂s'/∂s and I = ∂s'/∂θ.
    """

    state: Tree
    output: Tree
    loss: jax.Array
    jvp: Callable[[Tree], tuple[Tree, jax.Array]]
    vjp: Callable[[Tree, jax.Array], tuple[Tree, Tree]]

    def loss_grads(self) -> tuple[Tree, Tree]:
        """∂ℓ/∂s and ∂ℓ/∂θ."""
        return self.vjp(zeros_like(real_leaves(self.state)), jnp.ones_like(self.loss))

    def pull_back(self, c: Tree) -> tuple[Tree, Tree]:
        """c J and c I."""
        return self.vjp(c, jnp.zeros_like(self.loss))


def linearise(model: Model, params: Tree, state: Tree, x: Tree, target: Tree) -> Linearisation:
    """Evaluate the model once, and return its results together with its derivatives.

    The forward derivative is the transpose of the reverse one. It is exact, it costs
    one pass over what the single evaluation stored (even when the model is a loop), and
    the two can never disagree, not even in a model that defines its own reverse rule
    (`jax.custom_vjp`, as surrogate gradients of spiking cells do).
    """

    def evaluate(params, leaves):
        new_state, output = checks.transition_result(
            model.transition(params, with_real_leaves(state, leaves), x), state
        )
        value = checks.loss_result(model.loss(output, target))
        return (real_leaves(new_state), value), (new_state, output)

    results, pullback, (new_state, output) = jax.vjp(evaluate, params, real_leaves(state), has_aux=True)

    def vjp(state_cotangent, loss_cotangent):
        grad, state_grad = pullback((state_cotangent, loss_cotangent))
        return state_grad, grad

    def jvp(state_tangent):
        transposed = jax.linear_transpose(lambda c, d: vjp(c, d)[0], *results)
        return transposed(state_tangent)

    return Linearisation(new_state, output, results[1], jvp, vjp)


def linearise_state(transition: Transition, params: Tree, state: Tree, x: Tree) -> Linearisation:
    """The derivatives of the new state alone, without output and loss."""
    model = Model(lambda *inputs: (transition(*inputs)[0], ()), lambda output, target: jnp.zeros(()))
    return linearise(model, params, state, x, ())


def zeros_like(tree: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, tree)
