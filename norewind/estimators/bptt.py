"""Backpropagation through time, over one window."""

import jax.numpy as jnp

from norewind.estimator import Estimate, Estimator, Loss, Transition, build_estimator, linearise, model_of, zeros_like
from norewind.trees import real_leaves


def bptt(transition: Transition, loss: Loss) -> Estimator:
    """BPTT with no influence from before the step: g = ∂ℓ/∂θ, with the old state held constant.

    Without a window, this is truncated BPTT of length one. Over a window of T steps,
    `bptt(*window(transition, loss))`, it is T-truncated BPTT in the paper's form (the
    losses of a block are summed, and each block gives one gradient), and over a window
    as long as the sequence it is full BPTT.

    Biased, unless the window is the whole sequence. Time: one evaluation of the model
    and one reverse derivative. Bytes carried: none; T states are stored during a step.
    Needs only a model that can be differentiated.

    `transition` and `loss` are the model: see `norewind.Model`.

    Reference: Jaeger, A tutorial on training recurrent neural networks (2002).

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.bptt(*norewind.window(cell.transition, norewind.losses.cross_entropy))
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> text = jnp.array([0, 0, 2, 1, 1, 2])
    >>> state, carry, estimate = estimator.step(params, state, carry, text[:-1], text[1:])
    >>> estimate.output.shape
    (5, 3)
    """
    model = model_of(transition, loss)

    def init(params, state, key):
        return ()

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        _, grad = point.vjp(zeros_like(real_leaves(state)), jnp.ones_like(point.loss))
        return point.state, carry, Estimate(point.loss, grad, point.output)

    return build_estimator(init, step, model)
