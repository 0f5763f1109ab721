"""Real-time recurrent learning: the exact gradient, forward in time."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from norewind.estimator import Estimate, Estimator, Loss, Transition, build_estimator, linearise, model_of, zeros_like
from norewind.trees import real_leaves


def rtrl(transition: Transition, loss: Loss) -> Estimator:
    """RTRL: carry the whole influence matrix G = ∂s/∂θ.

    At every step, with J = ∂s'/∂s and I = ∂s'/∂θ,

        g = ∂ℓ/∂s · G + ∂ℓ/∂θ
        G ← J G + I

    starting from zero. For frozen parameters g is the exact gradient of every step's loss.

    Exact. Time: n reverse derivatives of the model and n²·P multiplications, for a state
    of size n and P parameters (n⁴ for a dense cell). Bytes carried: n sets of parameters.
    Needs only a model that can be differentiated.

    `transition` and `loss` are the model: see `norewind.Model`.

    Reference: Williams & Zipser, A Learning Algorithm for Continually Running Fully
    Recurrent Neural Networks (1989).

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
        leaves = real_leaves(state)
        flat, unravel = ravel_pytree(leaves)
        state_grad, direct = point.vjp(zeros_like(leaves), jnp.ones_like(point.loss))

        def contract(row, influence):
            return jnp.tensordot(row, influence, 1).astype(influence.dtype)

        row = ravel_pytree(state_grad)[0]
        grad = jax.tree.map(lambda g, influence: contract(row, influence) + g, direct, carry)

        def row_of(unit):
            jacobian_row, immediate = point.vjp(unravel(unit), jnp.zeros_like(point.loss))
            return ravel_pytree(jacobian_row)[0], immediate

        jacobian, immediate = jax.vmap(row_of)(jnp.eye(flat.size, dtype=flat.dtype))
        carry = jax.tree.map(lambda influence, i: contract(jacobian, influence) + i, carry, immediate)
        return point.state, carry, Estimate(point.loss, grad, point.output)

    return build_estimator(init, step, model)
