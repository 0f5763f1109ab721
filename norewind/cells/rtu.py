"""Recurrent trace units: linear recurrent units in real numbers, with a nonlinearity."""

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, read_input, read_out
from norewind.cells.lru import input_gain, turn, turning_cell


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
    """Recurrent trace units, each a pair of numbers that rotate and decay together:

        r = exp(−e^ν)                         g = r cos e^θ,  φ = r sin e^θ,  γ = √(1 − r²)
        re' = tanh(g ⊙ re − φ ⊙ im + γ ⊙ W_1 x)
        im' = tanh(g ⊙ im + φ ⊙ re + γ ⊙ W_2 x)             o = W_o [re', im'] + b_o

    `params["input"]` holds W_1 and W_2 side by side. As in `lru`, the recurrence is
    elementwise: a trace per weight is exact.

    Reference: Elelimy et al., Real-Time Recurrent Learning using Trace Units in
    Reinforcement Learning (2024).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of units, each a pair of numbers.
        outputs: the number of outputs.
        linear: apply the tanh only to the state that the readout reads, not to the one that is carried forward.
        symbols: scale the initial W_1 and W_2 for integer symbols; False for float vectors.
        times: the shortest and the longest initial time constant in steps, as in `lru`.
        ring: `(r_min, r_max, max_phase)`, as in `lru`.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: `times` are not above 0 and in order, or `ring` is not inside the unit circle.

    >>> import jax, jax.numpy as jnp
    >>> cell = rtu(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state["re"].shape, state["im"].shape, output.shape
    ((4,), (4,), (2,))
    """

    def transition(params, state, x):
        drive = jnp.tile(input_gain(params), 2) * read_input(params["input"], x)
        turned = turn(params, state, drive)
        bent = jax.tree.map(jnp.tanh, turned)
        output = read_out(params["readout"], jnp.concatenate([bent["re"], bent["im"]]))
        return turned if linear else bent, output

    return turning_cell("rtu", transition, (inputs, hidden, outputs), symbols, times, ring, dtype)
