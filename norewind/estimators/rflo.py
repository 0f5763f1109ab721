"""RFLO: traces without recurrent weights."""

from norewind.core.estimator import Estimator, Loss, Transition, model_of
from norewind.core.traces import cut_product, traces_alone, unit_by_unit


def rflo(transition: Transition, loss: Loss) -> Estimator:
    """RFLO: a trace per weight that follows the leak of its own unit and ignores the recurrent weights.

    For leaky units h' = (1 − α) h + α φ(W a), with δ = ∂ℓ/∂h',

        B ← (1 − α) B + α φ' aᵀ               g = diag(δ) B

    starting from zero. In general, it is the gradient of each loss with the state treated as
    a constant wherever a recurrent weight multiplies it. The leak is the factor by which the
    model itself keeps a unit's state (1 − z in a GRU, the forget gate of an LSTM's cell, where
    this is close to `lstm97`). A model without one, such as `cells.elman`, carries nothing.

    Biased: everything that passes through recurrent weights is dropped, including the
    influence of a unit on itself, which `snap1` keeps. The error is propagated back through the
    readout's own weights, where the paper also considers fixed random ones.

    Time: one evaluation of the model, and 1 + k reverse derivatives, where k is the number of
    entries of a unit; O(1) per weight. Bytes carried: k sets of parameters (without the
    readout). Needs a model that declares which unit each weight feeds and how its units mix
    (`norewind.declare` with `units` and `mixing`). For an elementwise model, which has no
    recurrent matrix, it is exact.

    Reference: Murray, Local online learning in recurrent networks with random feedback
    (2019).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare its units and how they mix.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.reservoir(inputs=3, hidden=20, outputs=3, leak=0.1)
    >>> estimator = norewind.estimators.rflo(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> jax.tree.structure(estimate.grad) == jax.tree.structure(params)
    True
    """
    alone = unit_by_unit("rflo", transition, cut_product)
    return traces_alone("rflo", model_of(transition, loss), alone, model_of(alone, loss))
