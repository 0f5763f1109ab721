"""A GRU whose units do not read one another."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init, uniform
from norewind.core.structure import declare, sized


def diagonal_gru(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The GRU with diagonal recurrent matrices, stored as the vectors u:

        r = σ(E_r x + u_r ⊙ h + b_r)          z = σ(E_z x + u_z ⊙ h + b_z)
        c = tanh(E_c x + u_c ⊙ r ⊙ h + b_c)
        h' = z ⊙ c + (1 − z) ⊙ h              o = W_o h' + b_o

    `params["input"]` holds [E_r, E_z, E_c] side by side; `params["recurrent"]` is
    [u_r, u_z, u_c] and `params["bias"]` [b_r, b_z, b_c].

    The recurrence is elementwise: a trace per weight is exact.

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial E for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = diagonal_gru(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 4)
        return {
            "input": input_table(keys[0], inputs, 3 * hidden, symbols, dtype),
            "recurrent": uniform(keys[1], (3 * hidden,), 1, dtype),
            "bias": uniform(keys[2], (3 * hidden,), 1, dtype),
            "readout": readout_init(keys[3], hidden, outputs, dtype),
        }

    def initial_state():
        return jnp.zeros(hidden, dtype)

    def transition(params, state, x):
        e_r, e_z, e_c = jnp.split(read_input(params["input"], x) + params["bias"], 3)
        u_r, u_z, u_c = jnp.split(params["recurrent"], 3)
        reset, update = jax.nn.sigmoid(e_r + u_r * state), jax.nn.sigmoid(e_z + u_z * state)
        candidate = jnp.tanh(e_c + u_c * reset * state)
        state = update * candidate + (1 - update) * state
        return state, read_out(params["readout"], state)

    def units(params):
        row = np.tile(np.arange(hidden), 3)
        return {"input": row, "recurrent": row, "bias": row, "readout": None}

    declared = declare(transition, units=units, memory=lambda state: state, elementwise=True)
    return Cell(init, initial_state, sized(declared, inputs, outputs))
