"""The simple recurrent network, with the activation as state."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init, uniform
from norewind.structure import declare


def elman(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The usual tanh network; its state h is the activation:

        h' = tanh(W_x x + W_h h + b)          o = W_o h' + b_o

    It computes what `rnn` computes, but the noise of a stochastic estimator enters
    after the tanh and not before it. `symbols=False` scales the initial W_x for float
    vectors instead of integer symbols.

    Reference: Elman, Finding structure in time (1990).

    >>> import jax, jax.numpy as jnp
    >>> cell = elman(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 4)
        return {
            "input": input_table(keys[0], inputs, hidden, symbols, dtype),
            "recurrent": uniform(keys[1], (hidden, hidden), hidden, dtype),
            "bias": uniform(keys[2], (hidden,), hidden, dtype),
            "readout": readout_init(keys[3], hidden, outputs, dtype),
        }

    def initial_state():
        return jnp.zeros(hidden, dtype)

    def transition(params, state, x):
        state = jnp.tanh(read_input(params["input"], x) + params["recurrent"] @ state + params["bias"])
        return state, read_out(params["readout"], state)

    def units(params):
        row = np.arange(hidden)
        return {"input": row, "recurrent": row[:, None], "bias": row, "readout": None}

    return Cell(init, initial_state, declare(transition, units=units))
