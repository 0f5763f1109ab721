"""An LSTM whose units remember without reading one another."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init, uniform
from norewind.core.structure import declare, sized


def elstm(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The LSTM with elementwise recurrence; its state is the cell c:

        f = σ(F x + w_f ⊙ c + b_f)            z = tanh(Z x + w_z ⊙ c + b_z)
        c' = f ⊙ c + (1 − f) ⊙ z
        h = σ(O x + U c' + b_u) ⊙ c'          o = W_o h + b_o

    `params["input"]` holds [F, Z] side by side, `params["recurrent"]` is [w_f, w_z] and
    `params["bias"]` is [b_f, b_z]. O, U and b_u belong to the output gate, which does not
    influence the state.

    Since a unit remembers nothing but c, a trace per weight is exact, and so is
    `norewind.estimators.lstm97`.

    Reference: Irie, Gopalakrishnan & Schmidhuber, Exploring the Promise and Limits of
    Real-Time Recurrent Learning (2023).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial input tables for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = elstm(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 6)
        return {
            "input": input_table(keys[0], inputs, 2 * hidden, symbols, dtype),
            "recurrent": uniform(keys[1], (2 * hidden,), 1, dtype),
            "bias": uniform(keys[2], (2 * hidden,), 1, dtype),
            "gate": {
                "input": input_table(keys[3], inputs, hidden, symbols, dtype),
                **readout_init(keys[4], hidden, hidden, dtype),
            },
            "readout": readout_init(keys[5], hidden, outputs, dtype),
        }

    def initial_state():
        return jnp.zeros(hidden, dtype)

    def transition(params, state, x):
        drive = read_input(params["input"], x) + params["recurrent"] * jnp.tile(state, 2) + params["bias"]
        forget, new = jax.nn.sigmoid(drive[:hidden]), jnp.tanh(drive[hidden:])
        state = forget * state + (1 - forget) * new
        gate = jax.nn.sigmoid(read_input(params["gate"]["input"], x) + read_out(params["gate"], state))
        return state, read_out(params["readout"], gate * state)

    def units(params):
        row = np.tile(np.arange(hidden), 2)
        return {"input": row, "recurrent": row, "bias": row, "gate": None, "readout": None}

    declared = declare(transition, units=units, memory=lambda state: state, elementwise=True)
    return Cell(init, initial_state, sized(declared, inputs, outputs))
