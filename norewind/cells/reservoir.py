"""The reservoir of an echo state network, and a reservoir whose outputs are some of its own units."""

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, affine_layer, layer_units, read_input, read_out, within, zero_readout
from norewind.core.structure import declare, sized


def reservoir(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    spectral_radius: float = 0.9,
    leak: float = 1.0,
    sparsity: float = 0.9,
    input_scaling: float = 1.0,
    dtype=float,
) -> Cell:
    """A fixed random network of leaky tanh units, and a linear readout.

        h' = (1 − a) h + a tanh(W h + W_in x + b)          o = W_o h' + b_o

    The readout starts at zero. With `norewind.estimators.readout_only` this is an echo state
    network; with any other estimator, its recurrent weights learn as well.

    Reference: Jaeger (2001); Lukoševičius, A practical guide to applying echo state
    networks (2012).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of units.
        outputs: the number of outputs.
        spectral_radius: the largest modulus of the eigenvalues of W. Below one, the past fades (the echo state
            property, in practice).
        leak: a, above 0 and at most 1.
        sparsity: the fraction of W that is zero; the rest is uniform.
        input_scaling: W_in and b are uniform in plus or minus this number.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: `sparsity` or `leak` is out of range.

    >>> import jax, jax.numpy as jnp
    >>> cell = reservoir(inputs=3, hidden=50, outputs=2, spectral_radius=0.8)
    >>> params = cell.init(jax.random.key(0))
    >>> round(float(jnp.max(jnp.abs(jnp.linalg.eigvals(params["recurrent"])))), 4)
    0.8
    """
    _check("reservoir", sparsity, leak)

    def init(key):
        keys = jax.random.split(key, 3)
        return {
            "recurrent": _sparse_weights(keys[0], hidden, spectral_radius, sparsity, dtype),
            "input": within(input_scaling, keys[1], (inputs, hidden), dtype),
            "bias": within(input_scaling, keys[2], (hidden,), dtype),
            "readout": zero_readout(hidden, outputs, dtype),
        }

    def mixing(product):
        def transition(params, state, x):
            drive = product(params["recurrent"], state) + read_input(params["input"], x) + params["bias"]
            state = (1 - leak) * state + leak * jnp.tanh(drive)
            return state, read_out(params["readout"], state)

        return transition

    def units(params):
        return {**layer_units(hidden), "readout": None}

    layer = affine_layer(units, lambda params, state, x: {"recurrent": state})
    declared = declare(mixing(jnp.matmul), units=units, mixing=mixing, layer=layer)
    return Cell(init, lambda: jnp.zeros(hidden, dtype), sized(declared, inputs, outputs))


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
    """The network of backpropagation-decorrelation: leaky units, the last of which are the outputs.

        s' = (1 − Δt) s + Δt (W tanh(s) + W_in x + b)          o = the last entries of s'

    The rows of W, W_in and b for the hidden units are drawn as in `reservoir`. The rows for
    the output units start at zero.

    Reference: Steil (2004).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of output units.
        spectral_radius: as in `reservoir`, for the weights between hidden units.
        leak: Δt, above 0 and at most 1.
        sparsity: the fraction of the weights between hidden units that is zero.
        input_scaling: W_in and b of the hidden units are uniform in plus or minus this number.
        feedback: the weights from the outputs back to the hidden units are uniform in plus or minus this number.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: `sparsity` or `leak` is out of range.

    >>> import jax, jax.numpy as jnp
    >>> cell = feedback_reservoir(inputs=3, hidden=20, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((22,), (2,))
    """
    _check("feedback_reservoir", sparsity, leak)
    size = hidden + outputs

    def init(key):
        keys = jax.random.split(key, 4)
        inner = _sparse_weights(keys[0], hidden, spectral_radius, sparsity, dtype)
        back = within(feedback, keys[1], (hidden, outputs), dtype)
        drive = within(input_scaling, keys[2], (inputs, hidden), dtype)
        bias = within(input_scaling, keys[3], (hidden,), dtype)
        return {
            "recurrent": jnp.zeros((size, size), dtype).at[:hidden, :hidden].set(inner).at[:hidden, hidden:].set(back),
            "input": jnp.zeros((inputs, size), dtype).at[:, :hidden].set(drive),
            "bias": jnp.zeros(size, dtype).at[:hidden].set(bias),
        }

    def mixing(product):
        def transition(params, state, x):
            drive = product(params["recurrent"], jnp.tanh(state)) + read_input(params["input"], x) + params["bias"]
            state = (1 - leak) * state + leak * drive
            return state, state[hidden:]

        return transition

    def units(params):
        return layer_units(size)

    layer = affine_layer(units, lambda params, state, x: {"recurrent": jnp.tanh(state)})
    told = {"units": units, "output_units": tuple(range(hidden, size)), "mixing": mixing, "layer": layer}
    return Cell(init, lambda: jnp.zeros(size, dtype), sized(declare(mixing(jnp.matmul), **told), inputs, outputs))


def _sparse_weights(key: jax.Array, hidden: int, spectral_radius: float, sparsity: float, dtype) -> jax.Array:
    value_key, place_key = jax.random.split(key)
    weights = within(1, value_key, (hidden, hidden), dtype)
    weights = jnp.where(jax.random.uniform(place_key, (hidden, hidden)) < sparsity, 0, weights)
    radius = jnp.max(jnp.abs(jnp.linalg.eigvals(weights)))
    # All eigenvalues of a very small sparse matrix can be zero: then there is nothing to scale.
    scale = jnp.where(radius > 1e-6, spectral_radius / jnp.maximum(radius, 1e-6), 1.0)
    return (scale * weights).astype(dtype)


def _check(who: str, sparsity: float, leak: float) -> None:
    check_fraction(who, sparsity=sparsity)
    if not 0 < leak <= 1:
        raise ValueError(f"{who}: leak must be above 0 and at most 1, not {leak}.")


def check_fraction(who: str, **fractions: float) -> None:
    """Check that the given numbers are between 0 and 1."""
    for name, value in fractions.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{who}: {name} must be between 0 and 1, not {value}.")
