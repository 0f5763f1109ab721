"""Diffusion networks: a zeroth-order gradient, from noise in the state and its likelihood ratio."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.estimator import Estimate, Estimator, Loss, Transition, build_estimator, linearise, model_of, zeros_like
from norewind.noise import Noise, as_key, gaussian
from norewind.trees import Tree, as_arrays, combine, real_leaves, with_real_leaves


class Carry(NamedTuple):
    """The score e = ∂ log p(states so far)/∂θ, the noiseless state (for the baseline), and the key."""

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
    noise so far, λ is `decay` and σ is `sigma`. The noise is added after the output is
    computed, so the output and the loss of a step see the noise of earlier steps only.
    No derivative is taken through time: the past enters by correlation alone.

    Unbiased (for λ = 1 and frozen parameters) for the gradient of E[ℓ] of the *noisy*
    system, which tends to that of the model as σ → 0. The variance grows like 1/σ² and
    with the number of steps; λ < 1 bounds it, but forgets, which adds a bias. Time: two
    evaluations of the model and two reverse derivatives. Bytes carried: one state and
    one set of parameters. Needs a model that tolerates noise on all floating leaves of
    its state: the state, output and loss returned are those of the noisy system.

    `baseline=False` sets b = 0. The usual baseline, a running mean of the losses, would
    add a bias: past losses correlate with the score of the same past, and on a stationary
    stream subtracting their mean removes the gradient itself.

    `noise(key, like) -> (noise, next_key)` replaces the source of ε.

    `transition` and `loss` are the model: see `norewind.Model`.

    Reference: Movellan, Mineiro & Williams, A Monte Carlo EM approach for partially
    observable diffusion processes (2002); Williams (1992).

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.diffusion(cell.transition, norewind.losses.cross_entropy, sigma=0.1)
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
        return Carry(zeros_like(params), as_arrays(state) if baseline else None, as_key(key))

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        _, direct = point.vjp(zeros_like(real_leaves(state)), jnp.ones_like(point.loss))
        noiseless, advantage = carry.noiseless, point.loss
        if baseline:
            noiseless, output = transition(params, carry.noiseless, x)
            advantage = point.loss - loss(output, target)
        one = jnp.ones_like(advantage)
        grad = combine(advantage, carry.score, one, direct)

        clean = real_leaves(point.state)
        drawn, key = noise(carry.key, clean)
        _, score = point.vjp(jax.tree.map(lambda e: e / sigma, drawn), jnp.zeros_like(point.loss))
        noisy = jax.tree.map(lambda leaf, e: leaf + sigma * e, clean, drawn)
        carry = Carry(combine(decay * one, carry.score, one, score), noiseless, key)
        return with_real_leaves(point.state, noisy), carry, Estimate(point.loss, grad, point.output)

    return build_estimator(init, step, model)
