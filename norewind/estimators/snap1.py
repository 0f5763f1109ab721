"""SnAp-1: for each weight, a trace of its influence on its own unit."""

from norewind.core.estimator import Estimator, Loss, Transition, model_of
from norewind.core.traces import traces_alone, unit_by_unit


def snap1(transition: Transition, loss: Loss) -> Estimator:
    """SnAp-1: RTRL in which the influence of every weight on units other than its own is set to zero.

    At every step, with J = ∂s'/∂s, I = ∂s'/∂θ, and a mask that is one where a weight
    meets the entries of the state of the unit that it feeds,

        g = ∂ℓ/∂s · G + ∂ℓ/∂θ
        G ← mask ⊙ (J G + I)

    starting from zero. Within a step (or a window of steps) the gradient is that of the
    whole model; only the influence carried to the next one is masked. A unit may have
    several entries, such as h and c of an LSTM: a weight then has a trace for each.

    Exact for elementwise recurrences (`declare(elementwise=True)`), where the mask removes
    only zeros. Biased for others: the influence that passes from unit to unit between
    steps is dropped. In `cells.gru` with the reset gate before the product, a unit's gate
    reaches other units within the step, and that is dropped, too.

    Time: one evaluation of the model, and 1 + k reverse derivatives, where k is the number of
    entries of a unit; O(1) per weight. Bytes carried: k sets of parameters (without the
    readout). Needs a model that declares which unit each weight feeds, and that is elementwise
    or declares how its units mix (`norewind.declare` with `units` and `elementwise` or `mixing`).

    Reference: Menick et al., A Practical Sparse Approximation for Real Time Recurrent
    Learning (2020).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare its units and how they mix.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.lstm(inputs=3, hidden=4, outputs=3, embedding=False)
    >>> estimator = norewind.estimators.snap1(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> [trace["recurrent"].shape for trace in carry]
    [(16, 4), (16, 4)]
    """
    model = model_of(transition, loss)
    return traces_alone("snap1", model, unit_by_unit("snap1", transition), model)
