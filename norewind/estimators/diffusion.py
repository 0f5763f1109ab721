"""Diffusion networks: a zeroth-order gradient, from noise in the state and its likelihood ratio."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.core.estimator import Estimate, Estimator, Loss, Transition, linearise, model_of
from norewind.core.noise import Noise, as_key, gaussian
from norewind.core.trees import Tree, as_arrays, combine, real_leaves, with_real_leaves, zeros_like


class DiffusionCarry(NamedTuple):
    """The score, and a noiseless copy of the network for the baseline.

    Attributes:
        score: e = ∂ log p(states so far)/∂θ, shaped like the parameters.
        noiseless: the state of the noiseless copy; None without a baseline.
        key: the PRNG key of the next step's noise.
    """

    score: Tree
    noiseless: Tree
    key: jax.Array


def diffusion(
    transition: Transition,
    loss: Loss,
    *,
    sigma: float = 0.1,
    decay: float = 1.0,
    baseline: bool = True,
    noise: Noise = gaussian,
) -> Estimator:
    """The likelihood-ratio gradient of a network with noise in its state: s' = F(x, s, θ) + σε, ε ~ N(0, 1).

    With I = ∂F/∂θ and b the loss of a noiseless copy of the network that runs alongside,

        g = (ℓ − b) e + ∂ℓ/∂θ
        e ← λ e + εI/σ

    starting from zero: e is the score, the gradient of the log-likelihood of all the
    noise so far. The noise is added after the output is computed, so the output and the
    loss of a step depend on the noise of earlier steps only. No derivative is taken through
    time: the past enters by correlation alone.

    Unbiased (for λ = 1 and frozen parameters) for the gradient of E[ℓ] of the *noisy*
    system, which tends to that of the model as σ → 0. The variance grows like 1/σ² and
    with the number of steps; λ < 1 bounds it, but forgets, which adds a bias. Time: two
    evaluations of the model and two reverse derivatives. Bytes carried: one state and
    one set of parameters. Needs a differentiable model that tolerates noise on all floating
    leaves of its state: the state, output and loss returned are those of the noisy system.

    The usual baseline, a running mean of the losses, would add a bias: past losses
    correlate with the score of the same past, and on a stationary stream subtracting their
    mean removes the gradient itself.

    Reference: Movellan, Mineiro & Williams, A Monte Carlo EM approach for partially
    observable diffusion processes (2002); Williams (1992).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.
        sigma: σ, the standard deviation of the noise.
        decay: λ, the decay of the score, from 0 to 1.
        baseline: subtract b, the loss of the noiseless copy. Otherwise b = 0.
        noise: the source of ε, called as `noise(key, like) -> (noise, next_key)`.

    Returns:
        The estimator.

    Raises:
        ValueError: `sigma` is not above 0, or `decay` is not between 0 and 1.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.diffusion(cell.transition, norewind.losses.cross_entropy, sigma=0.1)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> bool(jnp.all(carry.noiseless != state))
    True
    """
    if not sigma > 0:
        raise ValueError(f"diffusion: sigma must be above 0, not {sigma}: the gradient comes from the noise.")
    if not 0 <= decay <= 1:
        raise ValueError(f"diffusion: decay must be between 0 and 1, not {decay}.")
    model = model_of(transition, loss)

    def init(params, state, key):
        return DiffusionCarry(zeros_like(params), as_arrays(state) if baseline else None, as_key(key))

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        _, direct = point.loss_grads()
        noiseless, advantage = carry.noiseless, point.loss
        if baseline:
            noiseless, output = transition(params, carry.noiseless, x)
            advantage = point.loss - loss(output, target)
        one = jnp.ones_like(advantage)
        grad = combine(advantage, carry.score, one, direct)

        clean = real_leaves(point.state)
        drawn, key = noise(carry.key, clean)
        _, score = point.pull_back(jax.tree.map(lambda e: e / sigma, drawn))
        noisy = jax.tree.map(lambda leaf, e: leaf + sigma * e, clean, drawn)
        carry = DiffusionCarry(combine(decay * one, carry.score, one, score), noiseless, key)
        return with_real_leaves(point.state, noisy), carry, Estimate(point.loss, grad, point.output)

    return Estimator.build(init, step, model, perturbs_state=True)
