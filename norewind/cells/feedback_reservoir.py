"""A reservoir whose outputs are some of its own units."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, affine_layer, read_input
from norewind.cells.reservoir import check_fraction, reservoir_weights
from norewind.structure import declare


def feedback_reservoir(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    spectral_radius: float = 0.9,
    leak: float = 1.0,
    sparsity: float = 0.9,
    input_scaling: float = 1.0,
    feedback: float = 0.1,
    dtype=float,
) -> Cell:
    """The network of backpropagation-decorrelation: leaky units, of which the last are the outputs.

        s' = (1 − Δt) s + Δt (W tanh(s) + W_in x + b)          o = the last entries of s'

    The rows of W, W_in and b for the `hidden` units are drawn as in `reservoir`, with the
    same `spectral_radius`, `sparsity` and `input_scaling`; the weights from the outputs
    back to them are uniform in ±`feedback`. The rows for the output units start at zero.
    Δt is `leak`.

    `inputs` (the number of symbols, or of entries in x), `hidden` and `outputs` are sizes;
    `dtype` is that of the parameters and the state.

    Reference: Steil (2004).

    >>> import jax, jax.numpy as jnp
    >>> cell = feedback_reservoir(inputs=3, hidden=20, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((22,), (2,))
    """
    check_fraction("feedback_reservoir", sparsity=sparsity)
    if not 0 < leak <= 1:
        raise ValueError(f"feedback_reservoir: leak must be above 0 and at most 1, not {leak}.")
    size = hidden + outputs

    def init(key):
        keys = jax.random.split(key, 4)
        inner = reservoir_weights(keys[0], hidden, spectral_radius, sparsity, dtype)
        back = jax.random.uniform(keys[1], (hidden, outputs), dtype, -feedback, feedback)
        drive = jax.random.uniform(keys[2], (inputs, hidden), dtype, -input_scaling, input_scaling)
        bias = jax.random.uniform(keys[3], (hidden,), dtype, -input_scaling, input_scaling)
        return {
            "recurrent": jnp.zeros((size, size), dtype).at[:hidden, :hidden].set(inner).at[:hidden, hidden:].set(back),
            "input": jnp.zeros((inputs, size), dtype).at[:, :hidden].set(drive),
            "bias": jnp.zeros(size, dtype).at[:hidden].set(bias),
        }

    def initial_state():
        return jnp.zeros(size, dtype)

    def mixing(product):
        def transition(params, state, x):
            drive = product(params["recurrent"], jnp.tanh(state)) + read_input(params["input"], x) + params["bias"]
            state = (1 - leak) * state + leak * drive
            return state, state[hidden:]

        return transition

    def units(params):
        row = np.arange(size)
        return {"recurrent": row[:, None], "input": row, "bias": row}

    layer = affine_layer(units, lambda params, state, x: {"recurrent": jnp.tanh(state)})
    told = {"units": units, "output_units": tuple(range(hidden, size)), "mixing": mixing, "layer": layer}
    return Cell(init, initial_state, declare(mixing(jnp.matmul), **told))
