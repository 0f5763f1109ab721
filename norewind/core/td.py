"""Temporal-difference learning: a combinator that turns an estimator of ∂v/∂θ into one of the TD(λ) update."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.core import checks, losses
from norewind.core.estimator import Estimate, Estimator, Loss
from norewind.core.trees import Tree, combine, zeros_like


class Outcome(NamedTuple):
    """The target of a value: what followed the input x_t.

    Attributes:
        reward: r_{t+1}, the reward (or any other number whose discounted sum is predicted).
        discount: γ_{t+1}, the factor of everything after that reward; 0 where an episode ended.
        x: x_{t+1}, the next input. Where the discount is 0 it only has to have the right shape.
        action: the action taken at x_t, for the loss of an actor (see `norewind.losses.actor_critic`).
    """

    reward: jax.Array
    discount: jax.Array
    x: Tree
    action: Tree = None


class Choice(NamedTuple):
    """The target that `td` passes to the loss of its estimator.

    Attributes:
        action: the action taken.
        sign: the sign of the TD error.
    """

    action: Tree
    sign: jax.Array


class TDCarry(NamedTuple):
    """The carry of `td`.

    Attributes:
        carry: the carry of the inner estimator.
        trace: γ_t λ e_{t−1}, shaped like the parameters.
    """

    carry: Tree
    trace: Tree


def td(estimator: Estimator, *, decay: float, value: Loss = losses.value) -> Estimator:
    """TD(λ) with a recurrent value function, on any estimator: the update −δ_t e_t in place of a gradient.

    The model's output v_t predicts the discounted sum of the rewards that follow x_t. With
    ∂v_t/∂θ from the inner estimator, whose loss is the value itself (`norewind.losses.value`),

        δ_t = r_{t+1} + γ_{t+1} v_{t+1} − v_t
        e_t = γ_t λ e_{t−1} + ∂v_t/∂θ
        g_t = −δ_t e_t

    starting from zero, so that any optax optimizer moves θ by α δ_t e_t. Both values of δ_t are
    computed with the same parameters. The target of a sample is an `Outcome`: the reward, the
    discount and the next input. A discount of 0 ends an episode and clears the trace; to reset the
    state as well, reset the learner before the next sample.

    For frozen parameters and an exact estimator, Σ δ_t e_t over an episode equals
    Σ (G_t^λ − v_t) ∂v_t/∂θ, with G^λ the λ-return; with an unbiased estimator its mean does.
    (It is a semi-gradient: δ_t is not differentiated.) The loss returned is ½ δ_t².

    With a loss that adds the log-probability of the action taken (`norewind.losses.actor_critic`)
    this is a streaming actor-critic: the same δ_t multiplies the traces of the value and of the policy.

    Time: that of the estimator and two evaluations of the model (one of which the compiler usually
    shares with the estimator). Bytes carried: one set of parameters more.

    Reference: Sutton (1988); Sutton & Barto, Reinforcement Learning (2018), chapter 12; Elsayed, Vasan & Mahmood,
    Streaming Deep Reinforcement Learning Finally Works (2024).

    Args:
        estimator: an estimator of the gradient of the value.
        decay: λ, from 0 (one step ahead) to 1 (the whole return).
        value: `value(output, None)` is the value in the output of the model, by default its first number.

    Returns:
        The estimator of the update. Its estimates have the gradient of the value as `value_grad`.

    Raises:
        ModelError: `estimator` is not an estimator.
        ValueError: `decay` is not between 0 and 1.

    >>> import jax, jax.numpy as jnp, norewind, optax
    >>> cell = norewind.cells.gru(inputs=2, hidden=4, outputs=1, symbols=False)
    >>> estimator = norewind.td(norewind.uoro(cell.transition, norewind.losses.value), decay=0.9)
    >>> learner = norewind.online(estimator, optax.sgd(0.1))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> xs, rewards = jnp.ones((6, 2)), jnp.ones(5)
    >>> run, losses, _ = learner.scan(run, xs[:-1], norewind.core.Outcome(rewards, 0.9 * jnp.ones(5), xs[1:]))
    >>> losses.shape
    (5,)
    """
    checks.check_estimator("td", estimator)
    if not 0 <= decay <= 1:
        raise ValueError(f"td: decay must be between 0 and 1, not {decay}.")
    model = estimator.model

    def init(params, state, key):
        return TDCarry(estimator.init(params, state, key), zeros_like(params))

    def step(params, state, carry, x, target):
        if not isinstance(target, Outcome):
            raise checks.ModelError(
                f"td: the target is a {type(target).__name__}, but it must be an Outcome(reward, discount, x): what "
                "followed the input."
            )
        here, output = checks.check_transition_result(model.transition(params, state, x), state)
        _, following = model.transition(params, here, target.x)
        prediction = value(output, None)
        error = target.reward + target.discount * value(following, None) - prediction
        error = error.astype(prediction.dtype)
        choice = Choice(target.action, jnp.sign(error))
        state, inner, estimate = estimator.step(params, state, carry.carry, x, choice)
        one = jnp.ones_like(error)
        trace = combine(one, carry.trace, one, estimate.grad)
        update = jax.tree.map(lambda e: (-error * e).astype(e.dtype), trace)
        kept = jax.tree.map(lambda e: (target.discount * decay * e).astype(e.dtype), trace)
        return state, TDCarry(inner, kept), Estimate(0.5 * error**2, update, output, estimate.grad)

    def reset(params, state, carry, when):
        trace = jax.tree.map(lambda e: jnp.where(when, jnp.zeros_like(e), e), carry.trace)
        return TDCarry(estimator.reset(params, state, carry.carry, when), trace)

    return Estimator.build(init, step, model, reset=reset, perturbs_state=estimator.perturbs_state)
