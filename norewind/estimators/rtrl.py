"""Real-time recurrent learning: the exact gradient, forward in time."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from norewind.core.estimator import Estimate, Estimator, Loss, Transition, linearise, model_of
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
    model = model_of(transition, loss)

    def init(params, state, key):
        n = ravel_pytree(real_leaves(state))[0].size
        return jax.tree.map(lambda leaf: jnp.zeros((n, *jnp.shape(leaf)), jnp.result_type(leaf)), params)

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        state_grad, direct = point.loss_grads()

        def contract(row, influence):
            return jnp.tensordot(row, influence, 1).astype(influence.dtype)

        row = ravel_pytree(state_grad)[0]
        grad = jax.tree.map(lambda g, influence: contract(row, influence) + g, direct, carry)

        jacobian, immediate = point.rows()
        carry = jax.tree.map(lambda influence, i: contract(jacobian, influence) + i, carry, immediate)
        return point.state, carry, Estimate(point.loss, grad, point.output)

    return Estimator.build(init, step, model)
