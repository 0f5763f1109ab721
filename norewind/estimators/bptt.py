"""Backpropagation through time, over one window."""

from norewind.core.estimator import Estimate, Estimator, Loss, Transition, checked, linearise, model_of


def bptt(transition: Transition, loss: Loss) -> Estimator:
    """Truncated backpropagation through time: g = ∂ℓ/∂θ, with the state before the step held constant.

    Without a window, this is truncated BPTT of length one. Over a window of T steps,
    `bptt(*window(transition, loss))`, it is T-truncated BPTT in the paper's form (the
    losses of a block are summed, and each block gives one gradient), and over a window
    as long as the sequence it is full BPTT.

    Biased, unless the window is the whole sequence. Time: one evaluation of the model
    and one reverse derivative. Bytes carried: none; T states are stored during a step.
    Needs only a differentiable model (see `norewind.core.Model`).

    Reference: Jaeger, A tutorial on training recurrent neural networks (2002).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

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

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        _, grad = point.loss_grads()
        return point.state, carry, Estimate(point.loss, grad, point.output)

    return checked(Estimator(lambda params, state, key: (), step, model))
