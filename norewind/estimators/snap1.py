"""SnAp-1: a trace per weight of its influence on its own unit."""

from norewind.estimator import Estimator, Loss, Transition, model_of
from norewind.traces import traces_alone, unit_by_unit


def snap1(transition: Transition, loss: Loss) -> Estimator:
    """SnAp-1: RTRL with the influence of every weight on all units but its own set to zero.

    At every step, with J = ∂s'/∂s, I = ∂s'/∂θ, and a mask that is one where a weight
    meets the entries of the state of the unit that it feeds,

        g = ∂ℓ/∂s · G + ∂ℓ/∂θ
        G ← mask ⊙ (J G + I)

    starting from zero. Within the step (a window, if it is one) the gradient is that of
    the whole model; only what is carried to the next one is masked. A unit may have
    several entries, such as h and c of an LSTM: a weight then has a trace for each.

    Exact for elementwise recurrences (`declare(elementwise=True)`), where nothing is
    masked that is not zero. Biased for others: what passes from unit to unit between
    steps is dropped. In `cells.gru` with the reset gate before the product, a unit's gate
    reaches other units within the step, and that is dropped, too.

    Time: one evaluation of the model, and 1 + k reverse derivatives with k the entries of a
    unit; O(1) per weight. Bytes carried: k sets of parameters (without the readout). Needs a
    model that declares which unit each weight feeds and that is elementwise or declares
    how its units mix (`norewind.declare` with `units` and `elementwise` or `mixing`).

    `transition` and `loss` are the model: see `norewind.Model`.

    Reference: Menick et al., A Practical Sparse Approximation for Real Time Recurrent
    Learning (2020).

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.lstm(inputs=3, hidden=4, outputs=3, embedding=False)
    >>> estimator = norewind.snap1(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> [trace["recurrent"].shape for trace in carry]
    [(16, 4), (16, 4)]
    """
    model = model_of(transition, loss)
    return traces_alone("snap1", model, unit_by_unit("snap1", transition), model)
