"""Recurrent trace units: linear recurrent units in real numbers, with a nonlinearity."""

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init
from norewind.cells.lru import check_spectrum, input_gain, spectrum_init, spectrum_units, turn
from norewind.structure import declare


def rtu(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    linear: bool = False,
    symbols: bool = True,
    times: tuple[float, float] = (1.0, 1000.0),
    ring: tuple[float, float, float] | None = None,
    dtype=float,
) -> Cell:
    """Recurrent trace units, each a pair of numbers that turn and decay together:

        r = exp(−e^ν)                         g = r cos e^θ,  φ = r sin e^θ,  γ = √(1 − r²)
        re' = tanh(g ⊙ re − φ ⊙ im + γ ⊙ W_1 x)
        im' = tanh(g ⊙ im + φ ⊙ re + γ ⊙ W_2 x)             o = W_o [re', im'] + b_o

    `params["input"]` holds W_1 and W_2 side by side. With `linear=True` the tanh is
    taken of the state that the readout sees and not of the one that is carried on.
    `times`, `ring` and `symbols` are those of `lru`, and as there the recurrence is
    elementwise: a trace per weight is exact.

    Reference: Elelimy et al., Real-Time Recurrent Learning using Trace Units in
    Reinforcement Learning (2024).

    >>> import jax, jax.numpy as jnp
    >>> cell = rtu(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state["re"].shape, state["im"].shape, output.shape
    ((4,), (4,), (2,))
    """
    check_spectrum("rtu", times, ring)

    def init(key):
        keys = jax.random.split(key, 3)
        return spectrum_init(keys[0], hidden, times, ring, dtype) | {
            "input": input_table(keys[1], inputs, 2 * hidden, symbols, dtype),
            "readout": readout_init(keys[2], 2 * hidden, outputs, dtype),
        }

    def initial_state():
        return {"re": jnp.zeros(hidden, dtype), "im": jnp.zeros(hidden, dtype)}

    def transition(params, state, x):
        drive = jnp.tile(input_gain(params), 2) * read_input(params["input"], x)
        turned = turn(params, state, drive)
        bent = jax.tree.map(jnp.tanh, turned)
        output = read_out(params["readout"], jnp.concatenate([bent["re"], bent["im"]]))
        return turned if linear else bent, output

    return Cell(init, initial_state, declare(transition, units=spectrum_units(hidden), elementwise=True))
