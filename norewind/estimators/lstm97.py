"""The truncated gradient of the original LSTM."""

import jax
import jax.numpy as jnp

from norewind.core.estimator import Estimate, Estimator, Loss, Transition, checked, linearise, model_of
from norewind.core.structure import UNITS, declared_units, required
from norewind.core.traces import along_traces, next_trace, zero_trace


def lstm97(transition: Transition, loss: Loss) -> Estimator:
    """The gradient of the 1997 LSTM: cut at the recurrent input of every gate, exact along the memory cell.

    Every weight w, which feeds one unit i, has one trace E_w of its influence on the
    memory cell c_i. With every other part of the old state held constant,

        g_w = ∂ℓ/∂c_i · E_w + ∂ℓ/∂w
        E_w ← (∂c'_i/∂c_i) E_w + ∂c'_i/∂w

    starting from zero. It is the gradient of each loss through the old memory cell, but
    not through the rest of the old state (h). It is also known as e-prop.

    Biased: the influence that passes from unit to unit through h is dropped. Time: one
    evaluation of the model and two reverse derivatives, O(1) per weight. Bytes carried: one
    set of parameters (without the readout). Needs a model that declares which unit each
    weight feeds and which leaf of its state is the memory cell (`norewind.declare` with
    `units` and `memory`), such as `cells.lstm(..., embedding=False)`: all units share an
    embedding, which would need one trace per unit and weight.

    Reference: Hochreiter & Schmidhuber, Long Short-Term Memory (1997), appendix A.1.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare `units` and `memory`.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.lstm(inputs=3, hidden=4, outputs=3, embedding=False)
    >>> estimator = norewind.estimators.lstm97(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry["recurrent"].shape == params["recurrent"].shape, carry["readout"]
    (True, {'bias': None, 'weight': None})
    """
    units_of, memory_of = required(
        "lstm97", "cells.lstm(..., embedding=False)", transition, units=UNITS, memory="to know each unit's memory cell"
    )
    model = model_of(transition, loss)

    def init(params, state, key):
        return zero_trace(units_of(params), params)

    def step(params, state, carry, x, target):
        units = declared_units("lstm97", transition, params, state, x)
        point = linearise(model, params, state, x, target)
        # The cut: of ∂ℓ/∂s, only the part of the memory cell is used.
        state_grad, direct = point.loss_grads()
        grad = jax.tree.map(jnp.add, direct, along_traces(units, memory_of(state_grad), (carry,), params))
        # Each entry of the new memory cell depends on its own entry of the old one and on its own
        # weights, so the derivative of their sum contains all the derivatives, each in its place.
        ones = jax.grad(lambda state: jnp.sum(memory_of(state)))(state_grad)  # in the memory, and zeros elsewhere
        memory_rows, immediate = point.pull_back(ones)
        carried = along_traces(units, memory_of(memory_rows), (carry,), params)
        return point.state, next_trace(immediate, carried, carry), Estimate(point.loss, grad, point.output)

    return checked(Estimator(init, step, model))
