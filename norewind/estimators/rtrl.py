"""Real-time recurrent learning: the exact gradient, forward in time."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from norewind.core.estimator import Estimator, Influence, Loss, Transition, model_of
from norewind.core.trees import real_leaves


def rtrl(transition: Transition, loss: Loss) -> Estimator:
    """RTRL: carry the whole influence matrix G = ∂s/∂θ.

    At every step, with J = ∂s'/∂s and I = ∂s'/∂θ,

        g = ∂ℓ/∂s · G + ∂ℓ/∂θ
        G ← J G + I

    starting from zero. For frozen parameters g is the exact gradient of every step's loss.

    Exact. Time: n reverse derivatives of the model and n²·P multiplications, for a state
    of size n and P parameters (n⁴ for a dense cell). Bytes carried: n sets of parameters.
    Needs only a differentiable model (see `norewind.core.Model`).

    Reference: Williams & Zipser, A Learning Algorithm for Continually Running Fully
    Recurrent Neural Networks (1989).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.rtrl(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry["bias"].shape
    (4, 4)
    """

    def init(params, state):
        n = ravel_pytree(real_leaves(state))[0].size
        return jax.tree.map(lambda leaf: jnp.zeros((n, *jnp.shape(leaf)), jnp.result_type(leaf)), params)

    def contract(rows, influence):
        return jax.tree.map(lambda leaf: jnp.tensordot(rows, leaf, 1).astype(leaf.dtype), influence)

    def product(params, row, influence):
        return contract(ravel_pytree(row)[0], influence)

    def advance(params, state, influence, x, point):
        jacobian, immediate = point.rows()
        return jax.tree.map(jnp.add, contract(jacobian, influence), immediate)

    return Estimator.of_influence(Influence(init, advance, product), model_of(transition, loss))
