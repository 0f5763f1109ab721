"""A spiking cell whose recurrent weights learn, by a surrogate derivative of its spikes."""

from functools import partial
from math import exp

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, affine_layer, init_readout, input_table, read_input, read_out, uniform
from norewind.core.structure import declare

# The height γ of the surrogate derivative, which has the form of a triangle.
SURROGATE_HEIGHT = 0.3


@jax.custom_jvp
def spike(excess: jax.Array) -> jax.Array:
    """1 where the voltage exceeds the threshold, else 0; its derivative is taken to be γ max(0, 1 − |excess|).

    Args:
        excess: the voltage above the threshold, in units of the threshold at rest.
    """
    return (excess > 0).astype(excess.dtype)


@spike.defjvp
def _spike_derivative(primals, tangents):
    (excess,), (tangent,) = primals, tangents
    return spike(excess), SURROGATE_HEIGHT * jnp.maximum(0, 1 - jnp.abs(excess)) * tangent


def alif(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    symbols: bool = True,
    times: tuple[float, float, float] = (20.0, 200.0, 20.0),
    adaptation: float = 0.1,
    dtype=float,
) -> Cell:
    """Spiking neurons with adaptive thresholds, and a linear readout of their recent activity.

        v' = α v + W z + W_in x + b − z              a' = ρ a + z
        z' = 1 where v' > 1 + β a', else 0
        r' = κ r + (1 − κ) z'                        o = W_o r' + b_o

    A neuron that fired is reset by one threshold (the last term of v', a constant in derivatives),
    and its threshold rises by β and then returns slowly: a memory much longer than that of the
    voltage. The derivative of a spike is replaced by 0.3 max(0, 1 − |v' − 1 − β a'|). "Exact" and
    "unbiased" then refer to the gradient with this derivative.

    Reference: Bellec et al., A solution to the learning dilemma for recurrent networks of spiking
    neurons (2020).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of neurons.
        outputs: the number of outputs.
        symbols: scale the initial W_in for integer symbols; False for float vectors.
        times: the time constants of the voltage (α), the adaptation (ρ) and the readout (κ), in steps.
        adaptation: β.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: a time constant is not above 0.

    >>> import jax, jax.numpy as jnp
    >>> cell = alif(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> sorted(state), output.shape
    (['adaptation', 'spikes', 'trace', 'voltage'], (2,))
    """
    if min(times) <= 0:
        raise ValueError(f"alif: times must be above 0, but they are {times}. They are in steps.")
    alpha, rho, kappa = (exp(-1 / time) for time in times)

    def init(key):
        keys = jax.random.split(key, 4)
        return {
            "input": input_table(keys[0], inputs, hidden, symbols, dtype),
            "recurrent": uniform(keys[1], (hidden, hidden), hidden, dtype),
            "bias": uniform(keys[2], (hidden,), hidden, dtype),
            "readout": init_readout(keys[3], hidden, outputs, dtype),
        }

    def initial_state():
        return {name: jnp.zeros(hidden, dtype) for name in ("voltage", "adaptation", "spikes", "trace")}

    def transition(params, state, x, product=jnp.matmul):
        fired = state["spikes"]
        current = product(params["recurrent"], fired) + read_input(params["input"], x) + params["bias"]
        voltage = alpha * state["voltage"] + current - jax.lax.stop_gradient(fired)
        adapted = rho * state["adaptation"] + fired
        spikes = spike(voltage - 1 - adaptation * adapted)
        trace = kappa * state["trace"] + (1 - kappa) * spikes
        new = {"voltage": voltage, "adaptation": adapted, "spikes": spikes, "trace": trace}
        return new, read_out(params["readout"], trace)

    row = np.arange(hidden)
    units = {"input": row, "recurrent": row[:, None], "bias": row, "readout": None}
    declared = declare(
        transition,
        units=lambda params: units,
        mixing=lambda product: partial(transition, product=product),
        layer=affine_layer(lambda params: units, lambda params, state, x: {"recurrent": state["spikes"]}),
        sizes=(inputs, outputs),
    )
    return Cell(init, initial_state, declared, linear_readout=True)
