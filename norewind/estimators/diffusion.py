"""Diffusion networks: a zeroth-order gradient, from noise in the state and its likelihood ratio."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind import checks
from norewind.estimator import Estimate, Estimator, Loss, Transition, linearise, model_of, zeros_like
from norewind.noise import Noise, as_key, gaussian
from norewind.trees import Tree, as_arrays, combine, real_leaves, with_real_leaves


class Carry(NamedTuple):
    """The score e = ∂ log p(states so far)/∂θ, the state without noise (for the baseline), and the key."""

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

    With I = ∂F/∂θ and b the loss of a run without noise alongside,

        g = (ℓ − b) e + ∂ℓ/∂θ
        e ← λ e + εI/σ

    starting from zero: e is the score, the gradient of the log-likelihood of all the
    noise so far, and λ its `decay`. The noise enters after the step's output, so the
    output and the loss of a step see the noise of the steps before it. No derivative
    goes through time: the past acts through correlation alone.

    Unbiased (for λ = 1 and frozen parameters) for the gradient of E[ℓ] of the *noisy*
    system, which tends to the model's own as σ → 0, while the variance grows like
    1/σ² and with the number of steps; λ < 1 bounds it and forgets, which biases. Time:
    two runs of the model and two reverse derivatives. Memory: one state and one set of
    parameters. Needs a model that lives with noise on all floating leaves of its state,
    and it does perturb them: state, output and loss are those of the noisy system.

    `baseline=False` sets b = 0. A running mean of the losses, the usual baseline, would
    bias: past losses correlate with the score of the same past, and on a stationary
    stream their mean takes away the very gradient.

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
        raise ValueError(f"diffusion: sigma must be above 0, not {sigma}: without noise there is nothing to correlate.")
    if not 0 <= decay <= 1:
        raise ValueError(f"diffusion: decay must lie between 0 and 1, not {decay}.")
    model = model_of(transition, loss)

    def init(params, state, key):
        checks.parameters(params)
        checks.state_leaves(state)
        return Carry(zeros_like(params), as_arrays(state) if baseline else None, as_key(key))

    def step(params, state, carry, x, target):
        run = linearise(model, params, state, x, target)
        _, direct = run.vjp(zeros_like(real_leaves(state)), jnp.ones_like(run.loss))
        noiseless, advantage = carry.noiseless, run.loss
        if baseline:
            noiseless, output = transition(params, carry.noiseless, x)
            advantage = run.loss - loss(output, target)
        one = jnp.ones_like(advantage)
        grad = combine(advantage, carry.score, one, direct)

        clean = real_leaves(run.state)
        drawn, key = noise(carry.key, clean)
        _, score = run.vjp(jax.tree.map(lambda e: e / sigma, drawn), jnp.zeros_like(run.loss))
        noisy = jax.tree.map(lambda leaf, e: leaf + sigma * e, clean, drawn)
        carry = Carry(combine(decay * one, carry.score, one, score), noiseless, key)
        return with_real_leaves(run.state, noisy), carry, Estimate(run.loss, grad, run.output)

    return Estimator(init, step, model)
