"""The sLSTM of xLSTM."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, affine_layer, init_readout, input_table, read_input, read_out, uniform
from norewind.core.structure import declare


def slstm(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The sLSTM of xLSTM with one head: an LSTM with an exponential input gate, a normaliser and a stabiliser.

        a = E x + R h + b                     i, f, g, z = exp(a_i), σ(a_f), σ(a_o), tanh(a_z)
        c' = f ⊙ c + i ⊙ z                    n' = f ⊙ n + i
        h' = g ⊙ c'/n'                        o = W_o h' + b_o

    The four blocks of a are in the order i, f, o, z. c and n are stored divided by e^m, where
    m' = max(log f + m, a_i), so that no exponential overflows; h does not depend on m, and no derivative is
    taken through it.

    Reference: Beck et al., xLSTM: Extended Long Short-Term Memory (2024), section 2.2. (Their f may also be an
    exponential.)

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial E for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = slstm(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> sorted(state), output.shape
    (['c', 'h', 'm', 'n'], (2,))
    """

    def init(key):
        keys = jax.random.split(key, 4)
        bias = uniform(keys[2], (4 * hidden,), hidden, dtype)
        return {
            "input": input_table(keys[0], inputs, 4 * hidden, symbols, dtype),
            "recurrent": uniform(keys[1], (4 * hidden, hidden), hidden, dtype),
            # Forget gates start with time constants of up to a hundred steps.
            "bias": bias.at[hidden : 2 * hidden].set(jnp.linspace(3, 5, hidden, dtype=dtype)),
            "readout": init_readout(keys[3], hidden, outputs, dtype),
        }

    def initial_state():
        # With m so low, the first step forgets c and n.
        zeros = jnp.zeros(hidden, dtype)
        return {"c": zeros, "h": zeros, "m": jnp.full(hidden, -1e4, dtype), "n": zeros}

    def transition(params, state, x, product=jnp.matmul):
        drive = read_input(params["input"], x) + product(params["recurrent"], state["h"]) + params["bias"]
        enter, forget, leave, new = drive.reshape(4, hidden)
        forget = jax.nn.log_sigmoid(forget) + state["m"]
        m = jax.lax.stop_gradient(jnp.maximum(forget, enter))
        kept, added = jnp.exp(forget - m), jnp.exp(enter - m)
        c, n = kept * state["c"] + added * jnp.tanh(new), kept * state["n"] + added
        h = jax.nn.sigmoid(leave) * c / n
        return {"c": c, "h": h, "m": m, "n": n}, read_out(params["readout"], h)

    def fed_by(row):
        return {"input": row, "recurrent": row[:, None], "bias": row, "readout": None}

    declared = declare(
        transition,
        units=lambda params: fed_by(np.tile(np.arange(hidden), 4)),
        mixing=lambda product: partial(transition, product=product),
        layer=affine_layer(
            lambda params: fed_by(np.arange(4 * hidden)), lambda params, state, x: {"recurrent": state["h"]}
        ),
        sizes=(inputs, outputs),
    )
    return Cell(init, initial_state, declared, linear_readout=True)
