"""The paper's recurrent network, with the pre-activation as state."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, affine_layer, input_table, read_input, read_out, readout_init, uniform
from norewind.structure import declare


def rnn(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The tanh network of the paper's section "Background". Its state s is the pre-activation.

        s' = W_x x + W_s tanh(s) + b          o = W_o tanh(s') + b_o

    `symbols=False` scales the initial W_x for float vectors instead of integer symbols.

    `inputs` (the number of symbols, or of entries in x), `hidden` and `outputs` are sizes;
    `dtype` is that of the parameters and the state.

    >>> import jax, jax.numpy as jnp
    >>> cell = rnn(inputs=3, hidden=4, outputs=2)
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

    def mixing(product):
        def transition(params, state, x):
            state = read_input(params["input"], x) + product(params["recurrent"], jnp.tanh(state)) + params["bias"]
            return state, read_out(params["readout"], jnp.tanh(state))

        return transition

    def units(params):
        row = np.arange(hidden)
        return {"input": row, "recurrent": row[:, None], "bias": row, "readout": None}

    layer = affine_layer(units, lambda params, state, x: {"recurrent": jnp.tanh(state)})
    return Cell(init, initial_state, declare(mixing(jnp.matmul), units=units, mixing=mixing, layer=layer))
