"""Linear recurrent units: each unit is a complex number that rotates and decays."""

from math import pi

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init
from norewind.core.estimator import Transition
from norewind.core.structure import declare, sized
from norewind.core.trees import Tree


def lru(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    symbols: bool = True,
    times: tuple[float, float] = (1.0, 1000.0),
    ring: tuple[float, float, float] | None = None,
    dtype=float,
) -> Cell:
    """A complex diagonal linear recurrence; unit k has the state z_k:

        λ = exp(−e^ν + i e^θ)                 z' = λ ⊙ z + B x
        o = W_o [γ ⊙ Re z', γ ⊙ Im z'] + b_o  γ = √(1 − |λ|²)

    The state keeps the real and the imaginary part as two vectors, `re` and `im`, and
    `params["input"]` holds Re B and Im B side by side. γ makes the outputs of fast and
    slow units similar in size. In the paper it is at the input, as a separate parameter.

    The recurrence is elementwise, so a trace per weight carries its whole influence: an
    estimator that keeps only that is exact. In a `stack`, this is true of the top layer only:
    the weights below also act through the past states of the layers above. A trace per
    weight of their own layer drops that part, which is most of it if those layers are slow.

    Reference: Orvieto et al., Resurrecting Recurrent Neural Networks for Long Sequences
    (2023); Zucchet et al., Online learning of long-range dependencies (2023).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of units, each a complex number.
        outputs: the number of outputs.
        symbols: scale the initial B for integer symbols; False for float vectors.
        times: the shortest and the longest time constant in steps. The time constants τ = e^−ν start log-spaced between
            them, and the phases e^θ uniform up to min(π, 6π/τ).
        ring: `(r_min, r_max, max_phase)` to start as in the paper instead: λ is uniform in the ring of radii r_min to
            r_max, up to that phase.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: `times` are not above 0 and in order, or `ring` is not inside the unit circle.

    >>> import jax, jax.numpy as jnp
    >>> cell = lru(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state["re"].shape, state["im"].shape, output.shape
    ((4,), (4,), (2,))
    """

    def transition(params, state, x):
        state = turn(params, state, read_input(params["input"], x))
        gain = input_gain(params)
        return state, read_out(params["readout"], jnp.concatenate([gain * state["re"], gain * state["im"]]))

    return turning_cell("lru", transition, (inputs, hidden, outputs), symbols, times, ring, dtype)


def turning_cell(
    who: str, transition: Transition, sizes: tuple[int, int, int], symbols: bool, times, ring, dtype
) -> Cell:
    """A cell whose units are complex numbers, stored as two vectors, with the parameters of `lru`.

    Args:
        who: the name of the cell, for messages.
        transition: one step of the cell.
        sizes: the number of inputs, of hidden units and of outputs.
        symbols: see `lru`.
        times: see `lru`.
        ring: see `lru`.
        dtype: see `lru`.

    Returns:
        The cell.

    Raises:
        ValueError: `times` or `ring` is invalid.
    """
    inputs, hidden, outputs = sizes
    _check_spectrum(who, times, ring)

    def init(key):
        keys = jax.random.split(key, 3)
        return _spectrum_init(keys[0], hidden, times, ring, dtype) | {
            "input": input_table(keys[1], inputs, 2 * hidden, symbols, dtype),
            "readout": readout_init(keys[2], 2 * hidden, outputs, dtype),
        }

    def initial_state():
        return {"re": jnp.zeros(hidden, dtype), "im": jnp.zeros(hidden, dtype)}

    def units(params):
        row = np.arange(hidden)
        return {"nu": row, "theta": row, "input": np.tile(row, 2), "readout": None}

    return Cell(init, initial_state, sized(declare(transition, units=units, elementwise=True), inputs, outputs))


def _spectrum_init(key: jax.Array, hidden: int, times, ring, dtype) -> Tree:
    """The initial ν and θ of λ = exp(−e^ν + i e^θ): see `lru`."""
    decay_key, phase_key = jax.random.split(key)
    if ring is None:
        shortest, longest = times
        decay = 1 / jnp.geomspace(shortest, longest, hidden)
        max_phase = jnp.minimum(pi, 6 * pi * decay)
    else:
        r_min, r_max, max_phase = ring
        square = jax.random.uniform(decay_key, (hidden,), minval=r_min**2, maxval=r_max**2)
        # |λ| = 0 and |λ| = 1 have no finite ν.
        decay = -jnp.log(jnp.clip(square, 1e-6, 1 - 1e-6)) / 2
    phase = max_phase * jax.random.uniform(phase_key, (hidden,), minval=1e-6)
    return {"nu": jnp.log(decay).astype(dtype), "theta": jnp.log(phase).astype(dtype)}


def turn(params: Tree, state: Tree, drive: jax.Array) -> Tree:
    """Rotate and decay the state, and add the input: λ z + drive, in real numbers.

    Args:
        params: the parameters, of which ν and θ define λ.
        state: the state z, as its real and imaginary parts.
        drive: the real and the imaginary parts to add, side by side.

    Returns:
        The new state.
    """
    radius, angle = jnp.exp(-jnp.exp(params["nu"])), jnp.exp(params["theta"])
    along, across = radius * jnp.cos(angle), radius * jnp.sin(angle)
    re, im = jnp.split(drive, 2)
    return {
        "re": along * state["re"] - across * state["im"] + re,
        "im": along * state["im"] + across * state["re"] + im,
    }


def input_gain(params: Tree) -> jax.Array:
    """γ = √(1 − |λ|²), computed without cancellation for slow units."""
    return jnp.sqrt(-jnp.expm1(-2 * jnp.exp(params["nu"])))


def _check_spectrum(who: str, times, ring) -> None:
    """Check that the time constants are positive, and that the ring lies in the unit disc."""
    if not 0 < times[0] <= times[1]:
        raise ValueError(f"{who}: times must be two numbers of steps above 0, the shorter first, not {times}.")
    if ring is not None and not (0 <= ring[0] <= ring[1] <= 1 and ring[2] > 0):
        raise ValueError(
            f"{who}: ring is (r_min, r_max, max_phase) with 0 ≤ r_min ≤ r_max ≤ 1 and a phase above 0, not {ring}."
        )
