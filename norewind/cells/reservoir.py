"""The reservoir of an echo state network."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, affine_layer, read_input, read_out
from norewind.structure import declare


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

    The fraction `sparsity` of W is zero and the rest is uniform, scaled so that the
    largest modulus of its eigenvalues is `spectral_radius`: below one, the past fades
    (the echo state property, in practice). W_in and b are uniform in ±`input_scaling`, a
    is `leak`, and the readout starts at zero. With `norewind.readout_only` this is an
    echo state network; with any other estimator, its recurrent weights learn as well.

    `inputs` (the number of symbols, or of entries in x), `hidden` and `outputs` are sizes;
    `dtype` is that of the parameters and the state.

    Reference: Jaeger (2001); Lukoševičius, A practical guide to applying echo state
    networks (2012).

    >>> import jax, jax.numpy as jnp
    >>> cell = reservoir(inputs=3, hidden=50, outputs=2, spectral_radius=0.8)
    >>> params = cell.init(jax.random.key(0))
    >>> round(float(jnp.max(jnp.abs(jnp.linalg.eigvals(params["recurrent"])))), 4)
    0.8
    """
    check_fraction("reservoir", sparsity=sparsity)
    if not 0 < leak <= 1:
        raise ValueError(f"reservoir: leak must be above 0 and at most 1, not {leak}.")

    def init(key):
        keys = jax.random.split(key, 3)
        return {
            "recurrent": reservoir_weights(keys[0], hidden, spectral_radius, sparsity, dtype),
            "input": jax.random.uniform(keys[1], (inputs, hidden), dtype, -input_scaling, input_scaling),
            "bias": jax.random.uniform(keys[2], (hidden,), dtype, -input_scaling, input_scaling),
            "readout": {"weight": jnp.zeros((outputs, hidden), dtype), "bias": jnp.zeros(outputs, dtype)},
        }

    def initial_state():
        return jnp.zeros(hidden, dtype)

    def mixing(product):
        def transition(params, state, x):
            drive = product(params["recurrent"], state) + read_input(params["input"], x) + params["bias"]
            state = (1 - leak) * state + leak * jnp.tanh(drive)
            return state, read_out(params["readout"], state)

        return transition

    def units(params):
        row = np.arange(hidden)
        return {"recurrent": row[:, None], "input": row, "bias": row, "readout": None}

    layer = affine_layer(units, lambda params, state, x: {"recurrent": state})
    return Cell(init, initial_state, declare(mixing(jnp.matmul), units=units, mixing=mixing, layer=layer))


def reservoir_weights(key: jax.Array, hidden: int, spectral_radius: float, sparsity: float, dtype) -> jax.Array:
    """A random sparse matrix with this spectral radius."""
    value_key, place_key = jax.random.split(key)
    weights = jax.random.uniform(value_key, (hidden, hidden), dtype, -1, 1)
    weights = jnp.where(jax.random.uniform(place_key, (hidden, hidden)) < sparsity, 0, weights)
    radius = jnp.max(jnp.abs(jnp.linalg.eigvals(weights)))
    # All eigenvalues of a very small sparse matrix can be zero: then there is nothing to scale.
    scale = jnp.where(radius > 1e-6, spectral_radius / jnp.maximum(radius, 1e-6), 1.0)
    return (scale * weights).astype(dtype)


def check_fraction(who: str, **fractions: float) -> None:
    """A fraction must be between 0 and 1."""
    for name, value in fractions.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{who}: {name} must be between 0 and 1, not {value}.")
