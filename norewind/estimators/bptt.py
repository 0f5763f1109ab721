"""Truncated backpropagation through time: over one step or window, and in its sliding form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.core import checks
from norewind.core.estimator import NO_INFLUENCE, Estimate, Estimator, Loss, Transition, linearise, model_of
from norewind.core.trees import Tree, as_arrays


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

    return Estimator.build(lambda params, state, key: (), step, model, influence=NO_INFLUENCE)


class SlidingCarry(NamedTuple):
    """A ring buffer of the last T − 1 inputs and the states before them.

    Attributes:
        states: the state before each of these steps.
        xs: the input of each of these steps.
        steps: the number of entries written so far; once the ring is full, it only tells the next place.
    """

    states: Tree
    xs: Tree
    steps: jax.Array


def sliding_bptt(transition: Transition, loss: Loss, *, length: int, x: Tree) -> Estimator:
    """Truncated BPTT, sliding: at every step, the latest loss is propagated back T = `length` steps.

    With J_k and I_k the derivatives of step k at the state before it,

        g_t = ∂ℓ_t/∂θ + Σ_{k = t−T+1}^{t−1} ∂ℓ_t/∂s_{t−1} · J_{t−1} ⋯ J_{k+1} · I_k

    Every loss is propagated back T steps, while in the block form (`bptt(*window(...))`) the
    first loss of a block is propagated back only one. Older steps are linearised at the
    current parameters and at the states stored when they were taken.

    Biased, unless T covers the whole past: then it is exact for frozen parameters. Time:
    T evaluations and reverse derivatives of the model at every step. Bytes carried: T − 1
    inputs and states. Needs only a differentiable model (see `norewind.core.Model`).

    Reference: Williams & Peng, An efficient gradient-based algorithm for on-line
    training of recurrent network trajectories (1990): BPTT(h) with h = T.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.
        length: T, the number of steps to propagate back.
        x: an example of an input, for the shape of the stored inputs.

    Returns:
        The estimator.

    Raises:
        ModelError: `length` is not a whole number above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> loss, x = norewind.losses.cross_entropy, jnp.array(0)
    >>> estimator = norewind.estimators.sliding_bptt(cell.transition, loss, length=8, x=x)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry.states.shape, carry.xs.shape
    ((7, 4), (7,))
    """
    checks.check_at_least_one("sliding_bptt: length", length)
    model = model_of(transition, loss)
    kept = length - 1

    def init(params, state, key):
        # Entries not written yet have no effect, but the model is evaluated on them, so they must be valid.
        def ring(leaf):
            return jnp.broadcast_to(leaf[None], (kept, *leaf.shape))

        states, xs = jax.tree.map(ring, as_arrays((state, x)))
        return SlidingCarry(states, xs, jnp.zeros((), jnp.int32))

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        cotangent, grad = point.loss_grads()
        if kept == 0:
            return point.state, carry, Estimate(point.loss, grad, point.output)

        def one_step_back(loop, age):
            cotangent, grad = loop
            place = (carry.steps - age) % kept
            past_state, past_x = jax.tree.map(lambda leaf: leaf[place], (carry.states, carry.xs))
            older = linearise(without_loss, params, past_state, past_x, None)
            exists = age <= jnp.minimum(carry.steps, kept)
            cotangent = jax.tree.map(lambda c: jnp.where(exists, c, jnp.zeros_like(c)), cotangent)
            cotangent, more = older.pull_back(cotangent)
            return (cotangent, jax.tree.map(jnp.add, grad, more)), None

        ages = jnp.arange(1, length, dtype=jnp.int32)
        (_, grad), _ = jax.lax.scan(one_step_back, (cotangent, grad), ages)
        place = carry.steps % kept
        states, xs = jax.tree.map(lambda ring, leaf: ring.at[place].set(leaf), (carry.states, carry.xs), (state, x))
        # Once the ring is full, only the place matters, so the counter wraps around and never overflows.
        steps = carry.steps + 1
        steps = jnp.where(steps >= 2 * kept, steps - kept, steps)
        return point.state, SlidingCarry(states, xs, steps), Estimate(point.loss, grad, point.output)

    # Older steps matter only through their states.
    without_loss = model._replace(loss=lambda output, target: jnp.zeros(()))
    return Estimator.build(init, step, model)
