"""Decoupled neural interfaces: truncated BPTT that bootstraps from predicted gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from norewind import checks
from norewind.estimator import Estimate, Estimator, Loss, Transition, linearise, model_of
from norewind.trees import Tree, real_leaves, strong


class Predictor(NamedTuple):
    """A map from states to gradients: `init(state) -> weights`, `apply(weights, state) -> like its floating leaves`."""

    init: Callable[[Tree], Tree]
    apply: Callable[[Tree, Tree], Tree]


class Carry(NamedTuple):
    """The weights of the predictor and the state of its optimizer."""

    weights: Tree
    optimizer: Tree


def linear_predictor() -> Predictor:
    """sg(s) = A s + b, starting from zero."""

    def init(state):
        flat, _ = ravel_pytree(real_leaves(state))
        return {"A": jnp.zeros((flat.size, flat.size), flat.dtype), "b": jnp.zeros_like(flat)}

    def apply(weights, state):
        flat, unravel = ravel_pytree(real_leaves(state))
        return unravel(weights["A"] @ flat + weights["b"])

    return Predictor(init, apply)


def dni(
    transition: Transition,
    loss: Loss,
    *,
    predictor: Predictor | None = None,
    optimizer: optax.GradientTransformation | None = None,
) -> Estimator:
    """DNI: the future's gradient at a state is predicted by sg(s), which is learned on the way.

    At every step, with J = ∂s'/∂s and I = ∂s'/∂θ, one pullback gives both

        g = sg(s')·I + ∂ℓ/∂θ
        target of sg(s) = sg(s')·J + ∂ℓ/∂s

    and the predictor takes one step of its own `optimizer` (Adam at 1e-3, if not given)
    on ½‖sg(s) − target‖². g is what the parameters do at this step to all the losses to
    come, where a forward method takes what they did at all steps to the present loss: the
    sums over a sequence agree. Over windows, `dni(*window(transition, loss))`, the last T
    steps are exact and the prediction starts at the end of the window.

    Biased by as much as sg is wrong (it bootstraps from its own predictions); with the
    expected future gradient in its place, g is unbiased. Time: one run of the model, one
    reverse derivative, and the predictor's (n² for the linear one). Memory: the
    predictor and its optimizer (3n² with Adam). Needs nothing of the model but that it
    can be differentiated. `predictor` is a linear map of the state if not given.

    Reference: Jaderberg et al., Decoupled Neural Interfaces using Synthetic Gradients (2016).

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.dni(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> carry.weights["A"].shape
    (4, 4)
    """
    model = model_of(transition, loss)
    gradient_of = predictor or linear_predictor()
    rule = optimizer or optax.adam(1e-3)

    def init(params, state, key):
        checks.parameters(params)
        checks.state_leaves(state)
        weights = gradient_of.init(state)
        return strong(Carry(weights, rule.init(weights)))

    def step(params, state, carry, x, target):
        run = linearise(model, params, state, x, target)
        ahead = gradient_of.apply(carry.weights, run.state)
        wanted, grad = run.vjp(ahead, jnp.ones_like(run.loss))

        def error(weights):
            difference = jax.tree.map(jnp.subtract, gradient_of.apply(weights, state), wanted)
            return 0.5 * sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(difference)), start=jnp.zeros(()))

        updates, optimizer_state = rule.update(jax.grad(error)(carry.weights), carry.optimizer, carry.weights)
        carry = Carry(optax.apply_updates(carry.weights, updates), optimizer_state)
        return run.state, strong(carry), Estimate(run.loss, grad, run.output)

    def reset(params, state, carry, when):
        """A new sequence has nothing to forget here: what the predictor learned holds for the next one too."""
        return carry

    return Estimator(init, step, model, reset)
