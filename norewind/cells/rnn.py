"""Two simple recurrent networks, which differ in the position of the tanh."""

import jax
import jax.numpy as jnp

from norewind.cells.cell import (
    Cell,
    affine_layer,
    input_table,
    layer_units,
    read_input,
    read_out,
    readout_init,
    uniform,
)
from norewind.core.structure import declare, sized


def rnn(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The tanh network of the paper's section "Background". Its state s is the pre-activation.

        s' = W_x x + W_s tanh(s) + b          o = W_o tanh(s') + b_o

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial W_x for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = rnn(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def mixing(product):
        def transition(params, state, x):
            state = read_input(params["input"], x) + product(params["recurrent"], jnp.tanh(state)) + params["bias"]
            return state, read_out(params["readout"], jnp.tanh(state))

        return transition

    return _tanh_network(mixing, jnp.tanh, inputs, hidden, outputs, symbols, dtype)


def elman(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The usual tanh network. Its state h is the activation.

        h' = tanh(W_x x + W_h h + b)          o = W_o h' + b_o

    It computes the same outputs as `rnn`, but the noise of a stochastic estimator enters
    after the tanh instead of before it.

    Reference: Elman, Finding structure in time (1990).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial W_x for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = elman(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def mixing(product):
        def transition(params, state, x):
            state = jnp.tanh(read_input(params["input"], x) + product(params["recurrent"], state) + params["bias"])
            return state, read_out(params["readout"], state)

        return transition

    return _tanh_network(mixing, lambda state: state, inputs, hidden, outputs, symbols, dtype)


def _tanh_network(mixing, activation, inputs: int, hidden: int, outputs: int, symbols: bool, dtype) -> Cell:
    def init(key):
        keys = jax.random.split(key, 4)
        return {
            "input": input_table(keys[0], inputs, hidden, symbols, dtype),
            "recurrent": uniform(keys[1], (hidden, hidden), hidden, dtype),
            "bias": uniform(keys[2], (hidden,), hidden, dtype),
            "readout": readout_init(keys[3], hidden, outputs, dtype),
        }

    def units(params):
        return {**layer_units(hidden), "readout": None}

    layer = affine_layer(units, lambda params, state, x: {"recurrent": activation(state)})
    declared = declare(mixing(jnp.matmul), units=units, mixing=mixing, layer=layer)
    return Cell(init, lambda: jnp.zeros(hidden, dtype), sized(declared, inputs, outputs))
