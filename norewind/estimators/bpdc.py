"""Backpropagation-decorrelation: only the output units of a reservoir learn, from part of the recurrent gradient."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core.checks import ModelError
from norewind.core.estimator import Estimate, Estimator, Loss, Transition, linearise, model_of
from norewind.core.structure import checked_single_units, require_declarations
from norewind.core.trees import real_leaves
from norewind.core.units import sum_per_unit


def bpdc(transition: Transition, loss: Loss, *, epsilon: float = 2e-3) -> Estimator:
    """Backpropagation-decorrelation: train the weights into the output units, looking back one step.

    With O the output units, e = ∂ℓ/∂s'_O their error, J = ∂s'/∂s, and I_i the row of
    ∂s'/∂θ for unit i,

        γ_i = Σ_{j ∈ O} J_ij e_j(before) − e_i(now)
        g = −Σ_{i ∈ O} γ_i I_i / (‖I_i‖² + ε)

    starting from e = 0. In Steil's network,
    s' = (1 − Δt) s + Δt W f(s), this is his rule
    Δw_ij = (η/Δt) f(s_j) γ_i / (‖f(s)‖² + ε/Δt²) under plain gradient descent; the inputs
    and the bias of a unit count as entries of f(s). From one step to the next, errors
    pass only between output units, and the division by the norm replaces a decorrelation
    of the inputs: g is not a gradient, and its size does not depend on that of the state.

    Biased. Time: one evaluation of the model, one forward and two reverse derivatives (of
    which only the rows of the output units are used). Bytes carried: one error per output.
    Needs a model whose output is part of its state, one number per unit, and that declares
    `units` and `output_units` (`norewind.declare`), such as `cells.feedback_reservoir`; other
    models are rejected.

    Reference: Steil, Backpropagation-Decorrelation: online recurrent learning with O(N)
    complexity (2004).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.
        epsilon: ε, which keeps the divisor above zero.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare `units` and `output_units`.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.feedback_reservoir(inputs=1, hidden=20, outputs=1)
    >>> estimator = norewind.estimators.bpdc(cell.transition, norewind.losses.squared_error)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> _, _, estimate = estimator.step(params, state + 0.1, carry, jnp.ones(1), jnp.ones(1))
    >>> bool(jnp.any(estimate.grad["recurrent"][-1])), bool(jnp.any(estimate.grad["recurrent"][:-1]))
    (True, False)
    """
    model = model_of(transition, loss)
    _, output_units = require_declarations("bpdc", "cells.feedback_reservoir", transition, "units", "output_units")
    chosen = np.array(output_units)

    def init(params, state, key):
        return jnp.zeros(chosen.size, state_vector(state).dtype)

    def state_vector(state):
        leaves = jax.tree.leaves(real_leaves(state))
        if len(leaves) != 1:
            raise ModelError(
                f"bpdc: the state has {len(leaves)} floating leaves, but it must be one vector, since output_units are "
                "positions in it. Keep all units in one array."
            )
        return leaves[0]

    def step(params, state, carry, x, target):
        size = state_vector(state).size
        units = checked_single_units("bpdc", transition, params, state, x)
        point = linearise(model, params, state, x, target)
        _, unravel = ravel_pytree(real_leaves(state))

        def on_outputs(values):
            return unravel(jnp.zeros(size, carry.dtype).at[chosen].set(values))

        if jnp.shape(point.output) != chosen.shape:
            raise ModelError(
                f"bpdc: the output has shape {jnp.shape(point.output)}, but the model declares {chosen.size} output "
                "units. Return exactly these units of the new state."
            )
        error = jax.grad(loss)(point.output, target).astype(carry.dtype)
        pushed, _ = point.jvp(on_outputs(carry))
        gamma = ravel_pytree(pushed)[0][chosen] - error
        _, rows = point.pull_back(on_outputs(jnp.ones_like(error)))
        squares = sum_per_unit(units, jax.tree.map(jnp.square, rows), size)[chosen]
        _, grad = point.pull_back(on_outputs(-gamma / (squares + epsilon)))
        return point.state, error, Estimate(point.loss, grad, point.output)

    return Estimator.build(init, step, model)
