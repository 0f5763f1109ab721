"""The long short-term memory cell of the paper's experiments."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, affine_layer, input_table, read_input, read_out, readout_init, uniform
from norewind.core.structure import declare, sized


def lstm(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, embedding: bool = True, dtype=float) -> Cell:
    """The authors' LSTM: one embedding for all gates, and −0.3 on the forget gate.

        e = E x                               a = W e + b + U h + d
        i, f, o, g = σ(a_i), σ(a_f − 0.3), σ(a_o), tanh(a_g)
        c' = f ⊙ c + i ⊙ g                    h' = o ⊙ tanh(c')             y = W_o h' + b_o

    The four blocks of a are in the order i, f, o, g.

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial E for integer symbols; False for float vectors.
        embedding: feed the gates from an embedding. Otherwise the input feeds the gates directly, e = x, as in 1997:
            then every weight feeds one unit, which some methods need.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = lstm(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state["h"].shape, state["c"].shape, output.shape
    ((4,), (4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 6)
        if embedding:
            feed = {
                "embedding": input_table(keys[0], inputs, hidden, symbols, dtype),
                "input": uniform(keys[1], (4 * hidden, hidden), hidden, dtype),
            }
        else:
            feed = {"input": input_table(keys[0], inputs, 4 * hidden, symbols, dtype)}
        return feed | {
            "input_bias": uniform(keys[2], (4 * hidden,), hidden, dtype),
            "recurrent": uniform(keys[3], (4 * hidden, hidden), hidden, dtype),
            "recurrent_bias": uniform(keys[4], (4 * hidden,), hidden, dtype),
            "readout": readout_init(keys[5], hidden, outputs, dtype),
        }

    def initial_state():
        return {"h": jnp.zeros(hidden, dtype), "c": jnp.zeros(hidden, dtype)}

    def mixing(product):
        def transition(params, state, x):
            fed = params["input"] @ read_input(params["embedding"], x) if embedding else read_input(params["input"], x)
            drive = fed + params["input_bias"]
            drive = drive + product(params["recurrent"], state["h"]) + params["recurrent_bias"]
            enter, forget, leave, new = drive.reshape(4, hidden)
            c = jax.nn.sigmoid(forget - 0.3) * state["c"] + jax.nn.sigmoid(enter) * jnp.tanh(new)
            h = jax.nn.sigmoid(leave) * jnp.tanh(c)
            return {"h": h, "c": c}, read_out(params["readout"], h)

        return transition

    def units(params):
        return fed_by(np.tile(np.arange(hidden), 4))

    def fed_by(row):
        shared = {"embedding": None, "input": row[:, None]} if embedding else {"input": row}
        rest = {"input_bias": row, "recurrent": row[:, None], "recurrent_bias": row, "readout": None}
        return shared | rest

    def others(params, state, x):
        return {"recurrent": state["h"], "input_bias": jnp.ones(())}

    layer = None if embedding else affine_layer(lambda params: fed_by(np.arange(4 * hidden)), others, "recurrent_bias")
    told = {"units": units, "memory": lambda state: state["c"], "mixing": mixing, "layer": layer}
    return Cell(init, initial_state, sized(declare(mixing(jnp.matmul), **told), inputs, outputs))
