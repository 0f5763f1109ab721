"""The reservoir of a liquid state machine: leaky integrate-and-fire neurons."""

from math import exp

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, read_input, read_out, within, zero_readout
from norewind.cells.reservoir import check_fraction
from norewind.core.structure import sized

THRESHOLD = 1.0


def liquid(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    times: tuple[float, float] = (10.0, 10.0),
    refractory: int = 2,
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
        times: the time constants τ of the membrane and τ' of the trace, in steps.
        refractory: the number of steps for which a neuron is refractory after it fires.
        inhibitory: the fraction of the neurons that act on others with negative weights; the rest have positive ones.
        sparsity: the fraction of the weights W that are zero.
        strength: the other weights are uniform up to `strength`·√(3/k), where k is the expected number of inputs of a
            neuron.
        input_scaling: W_in is uniform in plus or minus this number.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: a fraction is not between 0 and 1, or a time constant is not above 0.

    >>> import jax, jax.numpy as jnp
    >>> cell = liquid(inputs=3, hidden=50, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> sorted(state), output.shape
    (['refractory', 'spikes', 'trace', 'voltage'], (2,))
    """
    check_fraction("liquid", sparsity=sparsity, inhibitory=inhibitory)
    if min(times) <= 0:
        raise ValueError(f"liquid: times must be above 0, but they are {times}. They are in steps.")
    alpha, beta = (exp(-1 / time) for time in times)

    def init(key):
        keys = jax.random.split(key, 4)
        scale = strength * (3 / max(1.0, (1 - sparsity) * hidden)) ** 0.5
        size = jax.random.uniform(keys[0], (hidden, hidden), dtype, 0, scale)
        size = jnp.where(jax.random.uniform(keys[1], (hidden, hidden)) < sparsity, 0, size)
        sign = jnp.where(jnp.arange(hidden) < round(inhibitory * hidden), -1, 1)
        return {
            "recurrent": (size * sign).astype(dtype),
            "input": within(input_scaling, keys[2], (inputs, hidden), dtype),
            "bias": jax.random.uniform(keys[3], (hidden,), dtype, 0, (1 - alpha) * THRESHOLD / 2),
            "readout": zero_readout(hidden, outputs, dtype),
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

    return Cell(init, initial_state, sized(transition, inputs, outputs))
