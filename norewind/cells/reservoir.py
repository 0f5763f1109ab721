"""Reservoirs: fixed random networks, of which usually only the readout or the output units learn."""

from math import exp

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, dense_cell, read_input, read_out
from norewind.core.structure import declare
from norewind.core.trees import Tree

# The voltage above which a spiking neuron fires.
THRESHOLD = 1.0


def reservoir(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    symbols: bool = True,
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
        symbols: as in other cells, but ignored: W_in is drawn in the same way for symbols and for float vectors.
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
    _check_reservoir("reservoir", sparsity, leak)

    def init(key):
        keys = jax.random.split(key, 3)
        return {
            "recurrent": _sparse_weights(keys[0], hidden, spectral_radius, sparsity, dtype),
            "input": _uniform(keys[1], (inputs, hidden), input_scaling, dtype),
            "bias": _uniform(keys[2], (hidden,), input_scaling, dtype),
            "readout": _init_zero_readout(hidden, outputs, dtype),
        }

    def transition(params, state, x, product=jnp.matmul):
        drive = product(params["recurrent"], state) + read_input(params["input"], x) + params["bias"]
        state = (1 - leak) * state + leak * jnp.tanh(drive)
        return state, read_out(params["readout"], state)

    return dense_cell(init, transition, lambda state: state, (inputs, outputs), hidden, dtype)


def feedback_reservoir(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    symbols: bool = True,
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
        symbols: as in other cells, but ignored: W_in is drawn in the same way for symbols and for float vectors.
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
    _check_reservoir("feedback_reservoir", sparsity, leak)
    size = hidden + outputs

    def init(key):
        keys = jax.random.split(key, 4)
        inner = _sparse_weights(keys[0], hidden, spectral_radius, sparsity, dtype)
        back = _uniform(keys[1], (hidden, outputs), feedback, dtype)
        drive = _uniform(keys[2], (inputs, hidden), input_scaling, dtype)
        bias = _uniform(keys[3], (hidden,), input_scaling, dtype)
        return {
            "recurrent": jnp.zeros((size, size), dtype).at[:hidden, :hidden].set(inner).at[:hidden, hidden:].set(back),
            "input": jnp.zeros((inputs, size), dtype).at[:, :hidden].set(drive),
            "bias": jnp.zeros(size, dtype).at[:hidden].set(bias),
        }

    def transition(params, state, x, product=jnp.matmul):
        drive = product(params["recurrent"], jnp.tanh(state)) + read_input(params["input"], x) + params["bias"]
        state = (1 - leak) * state + leak * drive
        return state, state[hidden:]

    return dense_cell(
        init, transition, jnp.tanh, (inputs, outputs), size, dtype, output_units=tuple(range(hidden, size))
    )


def liquid(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    symbols: bool = True,
    times: tuple[float, float, int] = (10.0, 10.0, 2),
    inhibitory: float = 0.2,
    sparsity: float = 0.9,
    strength: float = 1.0,
    input_scaling: float = 1.0,
    dtype=float,
) -> Cell:
    """A fixed random network of spiking neurons, and a linear readout of their recent activity.

        v' = α v + W z + W_in x + b          (v' = 0 while the neuron is refractory)
        z' = 1 where v' > 1, else 0          (and v' = 0 where it fired)
        r' = β r + (1 − β) z'                o = W_o r' + b_o

    Here α = exp(−1/τ) and β = exp(−1/τ'). b is uniform between 0 and half the current that
    would make a neuron fire.

    A spike has no derivative, so train only the readout, with
    `norewind.estimators.readout_only`. The readout starts at zero.

    Reference: Maass, Natschläger & Markram, Real-time computing without stable states (2002).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of neurons.
        outputs: the number of outputs.
        symbols: as in other cells, but ignored: W_in is drawn in the same way for symbols and for float vectors.
        times: the time constants τ of the membrane and τ' of the trace, and how long a neuron is refractory after it
            fires, all in steps.
        inhibitory: the fraction of the neurons that act on others with negative weights; the rest have positive ones.
        sparsity: the fraction of the weights W that are zero.
        strength: the other weights are uniform up to `strength`·√(3/k), where k is the expected number of inputs of a
            neuron.
        input_scaling: W_in is uniform in plus or minus this number.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: a fraction is not between 0 and 1, or `times` are not three numbers with time constants above 0.

    >>> import jax, jax.numpy as jnp
    >>> cell = liquid(inputs=3, hidden=50, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> sorted(state), output.shape
    (['refractory', 'spikes', 'trace', 'voltage'], (2,))
    """
    _check_fractions("liquid", sparsity=sparsity, inhibitory=inhibitory)
    if len(times) != 3 or min(times[:2]) <= 0:
        raise ValueError(f"liquid: times must be two time constants above 0 and a refractory period, not {times}.")
    alpha, beta, refractory = exp(-1 / times[0]), exp(-1 / times[1]), times[2]

    def init(key):
        keys = jax.random.split(key, 4)
        scale = strength * (3 / max(1.0, (1 - sparsity) * hidden)) ** 0.5
        size = jax.random.uniform(keys[0], (hidden, hidden), dtype, 0, scale)
        size = jnp.where(jax.random.uniform(keys[1], (hidden, hidden)) < sparsity, 0, size)
        sign = jnp.where(jnp.arange(hidden) < round(inhibitory * hidden), -1, 1)
        return {
            "recurrent": (size * sign).astype(dtype),
            "input": _uniform(keys[2], (inputs, hidden), input_scaling, dtype),
            "bias": jax.random.uniform(keys[3], (hidden,), dtype, 0, (1 - alpha) * THRESHOLD / 2),
            "readout": _init_zero_readout(hidden, outputs, dtype),
        }

    def initial_state():
        zeros = jnp.zeros(hidden, dtype)
        return {"voltage": zeros, "spikes": zeros, "trace": zeros, "refractory": jnp.zeros(hidden, jnp.int32)}

    def transition(params, state, x):
        current = params["recurrent"] @ state["spikes"] + read_input(params["input"], x) + params["bias"]
        resting = state["refractory"] > 0
        voltage = jnp.where(resting, 0, alpha * state["voltage"] + current)
        fired = voltage > THRESHOLD
        spikes = fired.astype(voltage.dtype)
        trace = beta * state["trace"] + (1 - beta) * spikes
        new = {
            "voltage": jnp.where(fired, 0, voltage),
            "spikes": spikes,
            "trace": trace,
            "refractory": jnp.where(fired, refractory, jnp.maximum(state["refractory"] - 1, 0)).astype(jnp.int32),
        }
        return new, read_out(params["readout"], trace)

    return Cell(init, initial_state, declare(transition, sizes=(inputs, outputs)), linear_readout=True)


def _sparse_weights(key: jax.Array, hidden: int, spectral_radius: float, sparsity: float, dtype) -> jax.Array:
    value_key, place_key = jax.random.split(key)
    weights = _uniform(value_key, (hidden, hidden), 1, dtype)
    weights = jnp.where(jax.random.uniform(place_key, (hidden, hidden)) < sparsity, 0, weights)
    radius = jnp.max(jnp.abs(jnp.linalg.eigvals(weights)))
    # All eigenvalues of a very small sparse matrix can be zero: then there is nothing to scale.
    scale = jnp.where(radius > 1e-6, spectral_radius / jnp.maximum(radius, 1e-6), 1.0)
    return (scale * weights).astype(dtype)


def _uniform(key: jax.Array, shape: tuple[int, ...], bound: float, dtype) -> jax.Array:
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def _init_zero_readout(hidden: int, outputs: int, dtype) -> Tree:
    return {"weight": jnp.zeros((outputs, hidden), dtype), "bias": jnp.zeros(outputs, dtype)}


def _check_reservoir(caller: str, sparsity: float, leak: float) -> None:
    _check_fractions(caller, sparsity=sparsity)
    if not 0 < leak <= 1:
        raise ValueError(f"{caller}: leak must be above 0 and at most 1, not {leak}.")


def _check_fractions(caller: str, **fractions: float) -> None:
    for name, value in fractions.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{caller}: {name} must be between 0 and 1, not {value}.")
