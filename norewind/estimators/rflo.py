"""RFLO: traces that know of no recurrent weight."""

from norewind.estimator import Estimator, Loss, Transition, model_of
from norewind.traces import cut_product, traces_alone, unit_by_unit


def rflo(transition: Transition, loss: Loss) -> Estimator:
    """RFLO: a trace per weight that follows its unit's own leak and none of the recurrent weights.

    For leaky units h' = (1 − α) h + α φ(W a), with δ = ∂ℓ/∂h',

        B ← (1 − α) B + α φ' aᵀ               g = diag(δ) B

    starting from zero. In general: the gradient of each loss with the state taken as
    given wherever a recurrent weight multiplies it. The leak is whatever the model itself
    keeps of a unit's state (1 − z in a GRU, the forget gate of an LSTM's cell, where this
    is close to `lstm97`); where it keeps nothing, as in `cells.elman`, nothing is carried.

    Biased: everything that passes through recurrent weights is dropped, also what passes
    from a unit to itself, which `snap1` keeps. The error comes back through the readout's
    own weights, where the paper also takes fixed random ones.

    Time: one evaluation of the model, and 1 + k reverse derivatives with k the entries of a
    unit; O(1) per weight. Bytes carried: k sets of parameters (without the readout). Needs a
    model that declares which unit each weight feeds and how its units mix
    (`norewind.declare` with `units` and `mixing`). An elementwise model has no recurrent
    matrix: there it is exact.

    `transition` and `loss` are the model: see `norewind.Model`.

    Reference: Murray, Local online learning in recurrent networks with random feedback
    (2019).

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.reservoir(inputs=3, hidden=20, outputs=3, leak=0.1)
    >>> estimator = norewind.rflo(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> jax.tree.structure(estimate.grad) == jax.tree.structure(params)
    True
    """
    alone = unit_by_unit("rflo", transition, cut_product)
    return traces_alone("rflo", model_of(transition, loss), alone, model_of(alone, loss))
