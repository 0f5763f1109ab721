"""The contract of every gradient estimator, and the one linearisation they share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from norewind import checks
from norewind.trees import Tree, is_key, real_leaves, where, with_real_leaves

Transition = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
Loss = Callable[[Tree, Tree], jax.Array]


def one_sample(x: Tree) -> int:
    """The samples in one x of an ordinary model: one."""
    return 1


class Model(NamedTuple):
    """A recurrent model as estimators see it: a black box.

    `transition(params, state, x) -> (new_state, output)` is the paper's F_state and
    F_out together, `loss(output, target)` a scalar, and `samples(x)` says how many
    samples of the stream one x holds (T for a window, otherwise one).
    """

    transition: Transition
    loss: Loss
    samples: Callable[[Tree], int] = one_sample


class Estimate(NamedTuple):
    """What one step gives: the loss, a gradient shaped like the parameters, and the model's output."""

    loss: jax.Array
    grad: Tree
    output: Tree


class Estimator(NamedTuple):
    """A way to estimate gradients online, as two pure functions.

    `init(params, state, key) -> carry` and
    `step(params, state, carry, x, target) -> (state, carry, estimate)`, where `carry`
    is what the method carries forward in place of the past.

    The rest is optional. `model` lets a learner predict and count samples.
    `reset(params, state, carry, when) -> carry` forgets the past wherever the boolean
    `when` holds; without it, a reset starts from `init` again and keeps the PRNG keys.
    `mean_step` is `step` on a stack of carries with the mean of their gradients, and
    `streams_step` the same with a state, an x and a target for each of the carries,
    where a method knows a faster way than the mean of as many steps.
    """

    init: Callable[[Tree, Tree, jax.Array], Tree]
    step: Callable[[Tree, Tree, Tree, Tree, Tree], tuple[Tree, Tree, Estimate]]
    model: Model | None = None
    reset: Callable[[Tree, Tree, Tree, jax.Array], Tree] | None = None
    mean_step: Callable[[Tree, Tree, Tree, Tree, Tree], tuple[Tree, Tree, Estimate]] | None = None
    streams_step: Callable[[Tree, Tree, Tree, Tree, Tree], tuple[Tree, Tree, Estimate]] | None = None


def samples_of(transition: Transition) -> Callable[[Tree], int]:
    """How many samples one x of a transition holds: its own word (a window's, say), or one."""
    return getattr(transition, "samples", one_sample)


def model_of(transition: Transition, loss: Loss) -> Model:
    """The model made of a transition and a loss, which may be windowed."""
    return Model(transition, loss, samples_of(transition))


def parallel_model(model: Model) -> Model:
    """Many streams as one model: a leading axis on all but the parameters, and the mean of the losses."""

    def transition(params, state, x):
        return jax.vmap(model.transition, in_axes=(None, 0, 0))(params, state, x)

    def loss(output, target):
        return jnp.mean(jax.vmap(model.loss)(output, target))

    def samples(x):
        return model.samples(jax.tree.map(lambda leaf: leaf[0], x))

    return Model(transition, loss, samples)


def reset_carry(estimator: Estimator, params: Tree, state: Tree, carry: Tree, when: jax.Array) -> Tree:
    """The carry without its past wherever `when` holds."""
    if estimator.reset is not None:
        return estimator.reset(params, state, carry, when)
    fresh = estimator.init(params, state, jax.random.key(0))
    # Fresh noise after a reset: the keys go on as if nothing had happened.
    fresh = jax.tree.map(lambda new, old: old if is_key(old) else new, fresh, carry)
    return where(when, fresh, carry)


class Linearisation(NamedTuple):
    """One run of the model, and its derivatives at that point.

    With s the floating leaves of the state (as reals, see `trees.real_leaves`):
    `jvp(ds) -> (J ds, (∂ℓ/∂s) ds)` and `vjp(c, d) -> (c J + d ∂ℓ/∂s, c I + d ∂ℓ/∂θ)`,
    where J = ∂s'/∂s and I = ∂s'/∂θ.
    """

    state: Tree
    output: Tree
    loss: jax.Array
    jvp: Callable[[Tree], tuple[Tree, jax.Array]]
    vjp: Callable[[Tree, jax.Array], tuple[Tree, Tree]]


def linearise(model: Model, params: Tree, state: Tree, x: Tree, target: Tree) -> Linearisation:
    """Run the model once, and return its results together with its derivatives.

    The forward derivative is the transpose of the reverse one. It is exact, it costs
    one pass over what the single run has stored (also when the model is a loop), and
    the two can never disagree, not even in a model that defines its own reverse rule
    (`jax.custom_vjp`, as surrogate gradients of spiking cells do).
    """

    def run(params, leaves):
        new_state, output = checks.transition_result(
            model.transition(params, with_real_leaves(state, leaves), x), state
        )
        value = checks.loss_result(model.loss(output, target))
        return (real_leaves(new_state), value), (new_state, output)

    results, pullback, (new_state, output) = jax.vjp(run, params, real_leaves(state), has_aux=True)

    def vjp(state_cotangent, loss_cotangent):
        grad, state_grad = pullback((state_cotangent, loss_cotangent))
        return state_grad, grad

    def jvp(state_tangent):
        transposed = jax.linear_transpose(lambda c, d: vjp(c, d)[0], *results)
        return transposed(state_tangent)

    return Linearisation(new_state, output, results[1], jvp, vjp)


def zeros_like(tree: Any) -> Any:
    """Zeros of the same shapes and dtypes."""
    return jax.tree.map(jnp.zeros_like, tree)
