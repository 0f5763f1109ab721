"""The long short-term memory cell of the paper's experiments."""

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init, uniform


def lstm(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The authors' LSTM: one embedding for all gates, and −0.3 on the forget gate.

        e = E x                               a = W e + b + U h + d
        i, f, o, g = σ(a_i), σ(a_f − 0.3), σ(a_o), tanh(a_g)
        c' = f ⊙ c + i ⊙ g                    h' = o ⊙ tanh(c')             y = W_o h' + b_o

    The four blocks of a stand in the order i, f, o, g. `symbols=False` scales the
    initial E for float vectors instead of integer symbols.

    >>> import jax, jax.numpy as jnp
    >>> cell = lstm(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state["h"].shape, state["c"].shape, output.shape
    ((4,), (4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 6)
        return {
            "embedding": input_table(keys[0], inputs, hidden, symbols, dtype),
            "input": uniform(keys[1], (4 * hidden, hidden), hidden, dtype),
            "input_bias": uniform(keys[2], (4 * hidden,), hidden, dtype),
            "recurrent": uniform(keys[3], (4 * hidden, hidden), hidden, dtype),
            "recurrent_bias": uniform(keys[4], (4 * hidden,), hidden, dtype),
            "readout": readout_init(keys[5], hidden, outputs, dtype),
        }

    def initial_state():
        return {"h": jnp.zeros(hidden, dtype), "c": jnp.zeros(hidden, dtype)}

    def transition(params, state, x):
        embedded = read_input(params["embedding"], x)
        drive = params["input"] @ embedded + params["input_bias"]
        drive = drive + params["recurrent"] @ state["h"] + params["recurrent_bias"]
        enter, forget, leave, new = drive.reshape(4, hidden)
        c = jax.nn.sigmoid(forget - 0.3) * state["c"] + jax.nn.sigmoid(enter) * jnp.tanh(new)
        h = jax.nn.sigmoid(leave) * jnp.tanh(c)
        return {"h": h, "c": c}, read_out(params["readout"], h)

    return Cell(init, initial_state, transition)
