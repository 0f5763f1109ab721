"""The network for text: a GRU over a window of symbols, with a faster derivative."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from norewind.cells.cell import read_input, read_out
from norewind.core.combinators import WindowedTransition
from norewind.core.estimator import Transition
from norewind.core.structure import structure_of
from norewind.core.trees import Tree


class GruWindow(WindowedTransition):
    """A window of steps of `cells.gru`, as `window` makes it, with the same outputs and a faster derivative.

    The derivative of a loop over steps adds an outer product to the gradient of every
    matrix at every step. Here the loop contains only what depends on the state: inputs
    are read before it and outputs are computed after it, for all steps at once. A recurrent
    matrix U with aₜ = U vₜ + E xₜ + b gets its gradient as one product, Σₜ ∂ℓ/∂aₜ vₜᵀ, and
    ∂ℓ/∂aₜ is the gradient of the loop's input E xₜ + b.
    """

    def __call__(self, params: Tree, state: Tree, x: Tree) -> tuple[Tree, Tree]:
        drives = jax.vmap(read_input, (None, 0))(params["input"], x) + params["bias"]
        matrices = {name: params[name] for name in ("gates", "candidate")}
        states: Any = _states(self.transition, matrices, drives, state)
        return states[-1], jax.vmap(read_out, (None, 0))(params["readout"], states)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _states(transition: Transition, matrices: Tree, drives: jax.Array, state: jax.Array) -> jax.Array:
    """Return the state after each step, given E x + b of each step."""
    return _loop(transition, matrices, drives, state)[0]


def _loop(transition: Transition, matrices: Tree, drives: jax.Array, state: jax.Array) -> tuple[jax.Array, Any]:
    """Return the state after each step, and the vectors by which the matrices were multiplied."""
    mixing: Any = structure_of(transition).mixing

    def step(state, drive):
        factors = []

        def product(matrix, vector):
            factors.append(vector)
            return matrix @ vector

        params = {**matrices, "input": drive[None], "bias": jnp.zeros_like(drive), "readout": None}
        state, _ = mixing(product)(params, state, jnp.array(0))
        return state, (state, factors)

    return jax.lax.scan(step, state, drives)[1]


def _forward(transition, matrices, drives, state):
    states, pullback, factors = jax.vjp(partial(_loop, transition, matrices), drives, state, has_aux=True)
    return states, (pullback, factors)


def _backward(_, residuals, states_grad):
    pullback, (gates_factors, candidate_factors) = residuals
    drives_grad, state_grad = pullback(states_grad)
    of_gates, of_candidate = jnp.split(drives_grad, [2 * state_grad.shape[-1]], axis=1)
    matrices_grad = {"gates": of_gates.T @ gates_factors, "candidate": of_candidate.T @ candidate_factors}
    return matrices_grad, drives_grad, state_grad


_states.defvjp(_forward, _backward)
