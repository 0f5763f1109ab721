"""The simple recurrent network, with the activation as state."""

import jax.numpy as jnp

from norewind.cells.cell import Cell, affine_layer, read_input, read_out
from norewind.cells.rnn import rnn
from norewind.structure import declare, structure_of


def elman(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The usual tanh network. Its state h is the activation.

        h' = tanh(W_x x + W_h h + b)          o = W_o h' + b_o

    It computes the same outputs as `rnn`, but the noise of a stochastic estimator enters
    after the tanh instead of before it. `symbols=False` scales the initial W_x for float
    vectors instead of integer symbols.

    `inputs` (the number of symbols, or of entries in x), `hidden` and `outputs` are sizes;
    `dtype` is that of the parameters and the state.

    Reference: Elman, Finding structure in time (1990).

    >>> import jax, jax.numpy as jnp
    >>> cell = elman(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """
    # The weights are those of rnn, drawn and connected in the same way: only the tanh is in another place.
    network = rnn(inputs, hidden, outputs, symbols=symbols, dtype=dtype)

    def mixing(product):
        def transition(params, state, x):
            state = jnp.tanh(read_input(params["input"], x) + product(params["recurrent"], state) + params["bias"])
            return state, read_out(params["readout"], state)

        return transition

    units = structure_of(network.transition).units
    assert units is not None
    layer = affine_layer(units, lambda params, state, x: {"recurrent": state})
    return network._replace(transition=declare(mixing(jnp.matmul), units=units, mixing=mixing, layer=layer))
