"""The traces with a fixed leak that SK-RTRL's study calls RFLO."""

import jax

import norewind
from norewind.cells.cell import Cell, read_out
from norewind.core.estimator import Estimator, Loss
from norewind.estimators import snap1

LEAK = 0.9


def leaky_traces(cell: Cell, loss: Loss, leak: float = LEAK) -> Estimator:
    """The gradient of traces S ← leak·S + ∂s'/∂θ, one per weight, whatever the network's own recurrence is.

    (`norewind.estimators.rflo` takes the leak from the model. A plain tanh network has none.)

    Args:
        cell: a cell whose state is one vector, which its readout reads.
        loss: the loss of one step.
        leak: the factor by which a trace decays in every step.

    Returns:
        The estimator.
    """

    def transition(params, state, x):
        # The value of the model, but with leak times the identity as its derivative by the state.
        old = jax.lax.stop_gradient(state)
        new = cell.transition(params, old, x)[0] + leak * (state - old)
        return new, read_out(params["readout"], new)

    # Units with such a derivative do not read one another, so SnAp-1 carries exactly these traces.
    return snap1(norewind.declare(transition, like=cell.transition, reads="own"), loss)
