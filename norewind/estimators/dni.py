"""Decoupled neural interfaces: truncated BPTT that bootstraps from predicted gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from norewind.core.estimator import Estimate, Estimator, Loss, Transition, linearise, model_of
from norewind.core.trees import Tree, real_leaves, without_weak_types


class Predictor(NamedTuple):
    """A learned map from states to gradients, as two functions.

    Attributes:
        init: makes the initial weights, `init(state) -> weights`.
        apply: predicts the gradient, `apply(weights, state) -> gradient`, shaped like the floating leaves of the state
            (see `norewind.core.real_leaves`).
    """

    init: Callable[[Tree], Tree]
    apply: Callable[[Tree, Tree], Tree]


class DNICarry(NamedTuple):
    """The weights of the predictor and the state of its optimizer."""

    weights: Tree
    opt_state: Tree


def _init_linear(state: Tree) -> Tree:
    flat, _ = ravel_pytree(real_leaves(state))
    return {"A": jnp.zeros((flat.size, flat.size), flat.dtype), "b": jnp.zeros_like(flat)}


def _apply_linear(weights: Tree, state: Tree) -> Tree:
    flat, unravel = ravel_pytree(real_leaves(state))
    return unravel(weights["A"] @ flat + weights["b"])


# The predictor sg(s) = A s + b, starting from zero.
LINEAR = Predictor(_init_linear, _apply_linear)


def dni(
    transition: Transition,
    loss: Loss,
    *,
    predictor: Predictor = LINEAR,
    optimizer: optax.GradientTransformation | None = None,
) -> Estimator:
    """DNI: a learned predictor sg(s) of the gradient of all future losses with respect to the state.

    At every step, with J = ∂s'/∂s and I = ∂s'/∂θ, one pullback gives both

        g = sg(s')·I + ∂ℓ/∂θ
        target of sg(s) = sg(s')·J + ∂ℓ/∂s

    and the predictor takes one step of its own optimizer on
    ½‖sg(s) − target‖². g is the influence of the parameters at this step on all future
    losses, while a forward method computes the influence of the parameters at all past
    steps on the present loss: the sums over a sequence agree. Over windows,
    `dni(*window(transition, loss))`, the T steps of a window are exact and the prediction
    starts at its end.

    Biased by the errors of sg, which bootstraps from its own predictions; if sg were the
    expected future gradient, g would be unbiased. Time: one evaluation of the model, one
    reverse derivative, and the predictor (n² for a linear one). Bytes carried: the
    predictor and its optimizer (3n² numbers with Adam). Needs only a differentiable model
    (see `norewind.core.Model`).

    Reference: Jaderberg et al., Decoupled Neural Interfaces using Synthetic Gradients (2016).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.
        predictor: the map sg; by default a linear map of the state.
        optimizer: the predictor's optax optimizer; by default Adam with a learning rate of 1e-3.

    Returns:
        The estimator.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.dni(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> carry.weights["A"].shape
    (4, 4)
    """
    model = model_of(transition, loss)
    rule = optimizer or optax.adam(1e-3)

    def init(params, state, key):
        weights = predictor.init(state)
        return without_weak_types(DNICarry(weights, rule.init(weights)))

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        ahead = predictor.apply(carry.weights, point.state)
        wanted, grad = point.vjp(ahead, jnp.ones_like(point.loss))

        def error(weights):
            difference = jax.tree.map(jnp.subtract, predictor.apply(weights, state), wanted)
            return 0.5 * sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(difference)), start=jnp.zeros(()))

        updates, opt_state = rule.update(jax.grad(error)(carry.weights), carry.opt_state, carry.weights)
        carry = DNICarry(optax.apply_updates(carry.weights, updates), opt_state)
        return point.state, without_weak_types(carry), Estimate(point.loss, grad, point.output)

    # A reset keeps the predictor, which is also valid for the next sequence.
    return Estimator.build(init, step, model, reset=lambda params, state, carry, when: carry)
