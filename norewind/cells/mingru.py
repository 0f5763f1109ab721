"""The GRU reduced to one gate, which depends only on the input."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init, uniform
from norewind.core.structure import declare, sized


def mingru(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The minimal GRU: gate and candidate depend on the input alone.

        z = σ(E_z x + b_z)                    c = E_c x + b_c
        h' = z ⊙ c + (1 − z) ⊙ h              o = W_o h' + b_o

    `params["input"]` holds [E_z, E_c] side by side and `params["bias"]` is [b_z, b_c].

    The recurrence is elementwise: a trace per weight is exact.

    Reference: Feng et al., Were RNNs All We Needed? (2024).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial E for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = mingru(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 3)
        return {
            "input": input_table(keys[0], inputs, 2 * hidden, symbols, dtype),
            "bias": uniform(keys[1], (2 * hidden,), inputs, dtype),
            "readout": readout_init(keys[2], hidden, outputs, dtype),
        }

    def initial_state():
        return jnp.zeros(hidden, dtype)

    def transition(params, state, x):
        drive = read_input(params["input"], x) + params["bias"]
        update, candidate = jax.nn.sigmoid(drive[:hidden]), drive[hidden:]
        state = update * candidate + (1 - update) * state
        return state, read_out(params["readout"], state)

    def units(params):
        row = np.tile(np.arange(hidden), 2)
        return {"input": row, "bias": row, "readout": None}

    declared = declare(transition, units=units, memory=lambda state: state, elementwise=True)
    return Cell(init, initial_state, sized(declared, inputs, outputs))
