"""Cells whose units do not read one another: a trace of each weight's influence on its own unit is then exact."""

from math import pi

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, init_readout, input_table, read_input, read_out, uniform
from norewind.core.estimator import Transition
from norewind.core.structure import declare
from norewind.core.trees import Tree


def mingru(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The minimal GRU: gate and candidate depend on the input alone.

        z = σ(E_z x + b_z)                    c = E_c x + b_c
        h' = z ⊙ c + (1 − z) ⊙ h              o = W_o h' + b_o

    `params["input"]` holds [E_z, E_c] side by side and `params["bias"]` is [b_z, b_c].

    The recurrence is elementwise: a trace per weight is exact.

    Reference: Feng et al., Were RNNs All We Needed? (2024).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial E for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = mingru(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 3)
        return {
            "input": input_table(keys[0], inputs, 2 * hidden, symbols, dtype),
            "bias": uniform(keys[1], (2 * hidden,), inputs, dtype),
            "readout": init_readout(keys[2], hidden, outputs, dtype),
        }

    def transition(params, state, x):
        drive = read_input(params["input"], x) + params["bias"]
        update, candidate = jax.nn.sigmoid(drive[:hidden]), drive[hidden:]
        state = update * candidate + (1 - update) * state
        return state, read_out(params["readout"], state)

    return _gated_cell(init, transition, (inputs, outputs), hidden, 2, dtype)


def diagonal_gru(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The GRU with diagonal recurrent matrices, stored as the vectors u:

        r = σ(E_r x + u_r ⊙ h + b_r)          z = σ(E_z x + u_z ⊙ h + b_z)
        c = tanh(E_c x + u_c ⊙ r ⊙ h + b_c)
        h' = z ⊙ c + (1 − z) ⊙ h              o = W_o h' + b_o

    `params["input"]` holds [E_r, E_z, E_c] side by side; `params["recurrent"]` is
    [u_r, u_z, u_c] and `params["bias"]` [b_r, b_z, b_c].

    The recurrence is elementwise: a trace per weight is exact.

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial E for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = diagonal_gru(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 4)
        return {
            "input": input_table(keys[0], inputs, 3 * hidden, symbols, dtype),
            "recurrent": uniform(keys[1], (3 * hidden,), 1, dtype),
            "bias": uniform(keys[2], (3 * hidden,), 1, dtype),
            "readout": init_readout(keys[3], hidden, outputs, dtype),
        }

    def transition(params, state, x):
        e_r, e_z, e_c = jnp.split(read_input(params["input"], x) + params["bias"], 3)
        u_r, u_z, u_c = jnp.split(params["recurrent"], 3)
        reset, update = jax.nn.sigmoid(e_r + u_r * state), jax.nn.sigmoid(e_z + u_z * state)
        candidate = jnp.tanh(e_c + u_c * reset * state)
        state = update * candidate + (1 - update) * state
        return state, read_out(params["readout"], state)

    return _gated_cell(init, transition, (inputs, outputs), hidden, 3, dtype)


def elstm(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The LSTM with elementwise recurrence; its state is the cell c:

        f = σ(F x + w_f ⊙ c + b_f)            z = tanh(Z x + w_z ⊙ c + b_z)
        c' = f ⊙ c + (1 − f) ⊙ z
        h = σ(O x + U c' + b_u) ⊙ c'          o = W_o h + b_o

    `params["input"]` holds [F, Z] side by side, `params["recurrent"]` is [w_f, w_z] and
    `params["bias"]` is [b_f, b_z]. O, U and b_u belong to the output gate, which does not
    influence the state.

    Since a unit remembers nothing but c, a trace per weight is exact, and so is
    `norewind.estimators.lstm97`.

    Reference: Irie, Gopalakrishnan & Schmidhuber, Exploring the Promise and Limits of
    Real-Time Recurrent Learning (2023).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial input tables for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = elstm(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 6)
        return {
            "input": input_table(keys[0], inputs, 2 * hidden, symbols, dtype),
            "recurrent": uniform(keys[1], (2 * hidden,), 1, dtype),
            "bias": uniform(keys[2], (2 * hidden,), 1, dtype),
            "gate": {
                "input": input_table(keys[3], inputs, hidden, symbols, dtype),
                **init_readout(keys[4], hidden, hidden, dtype),
            },
            "readout": init_readout(keys[5], hidden, outputs, dtype),
        }

    def transition(params, state, x):
        drive = read_input(params["input"], x) + params["recurrent"] * jnp.tile(state, 2) + params["bias"]
        forget, new = jax.nn.sigmoid(drive[:hidden]), jnp.tanh(drive[hidden:])
        state = forget * state + (1 - forget) * new
        gate = jax.nn.sigmoid(read_input(params["gate"]["input"], x) + read_out(params["gate"], state))
        return state, read_out(params["readout"], gate * state)

    return _gated_cell(init, transition, (inputs, outputs), hidden, 2, dtype)


def _gated_cell(init, transition: Transition, sizes: tuple[int, int], hidden: int, blocks: int, dtype) -> Cell:
    """A cell whose state is one vector, and whose weights into the state are in blocks with one entry per unit."""
    row = np.tile(np.arange(hidden), blocks)

    def units(params):
        return {name: row if name in ("input", "recurrent", "bias") else None for name in params}

    declared = declare(transition, units=units, memory=lambda state: state, reads="own", sizes=sizes)
    return Cell(init, lambda: jnp.zeros(hidden, dtype), declared, linear_readout=True)


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
    weight within its own layer drops that part, which is most of it if the layers above are slow.

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
        state = _rotate(params, state, read_input(params["input"], x))
        gain = _input_gain(params)
        return state, read_out(params["readout"], jnp.concatenate([gain * state["re"], gain * state["im"]]))

    return _rotating_cell("lru", transition, (inputs, hidden, outputs), symbols, times, ring, dtype)


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
        rotated = _rotate(params, state, jnp.tile(_input_gain(params), 2) * read_input(params["input"], x))
        bounded = jax.tree.map(jnp.tanh, rotated)
        output = read_out(params["readout"], jnp.concatenate([bounded["re"], bounded["im"]]))
        return rotated if linear else bounded, output

    return _rotating_cell("rtu", transition, (inputs, hidden, outputs), symbols, times, ring, dtype)


def _rotating_cell(
    caller: str, transition: Transition, sizes: tuple[int, int, int], symbols: bool, times, ring, dtype
) -> Cell:
    """A cell whose units are complex numbers, stored as two vectors, with the parameters of `lru`."""
    inputs, hidden, outputs = sizes
    if not 0 < times[0] <= times[1]:
        raise ValueError(f"{caller}: times must be two numbers of steps above 0, the shorter first, not {times}.")
    if ring is not None and not (0 <= ring[0] <= ring[1] <= 1 and ring[2] > 0):
        raise ValueError(
            f"{caller}: ring is (r_min, r_max, max_phase) with 0 ≤ r_min ≤ r_max ≤ 1 and a phase above 0, not {ring}."
        )

    def init(key):
        keys = jax.random.split(key, 3)
        return _init_spectrum(keys[0], hidden, times, ring, dtype) | {
            "input": input_table(keys[1], inputs, 2 * hidden, symbols, dtype),
            "readout": init_readout(keys[2], 2 * hidden, outputs, dtype),
        }

    def initial_state():
        return {"re": jnp.zeros(hidden, dtype), "im": jnp.zeros(hidden, dtype)}

    def units(params):
        row = np.arange(hidden)
        return {"nu": row, "theta": row, "input": np.tile(row, 2), "readout": None}

    declared = declare(transition, units=units, reads="own", sizes=(inputs, outputs))
    return Cell(init, initial_state, declared, linear_readout=True)


def _init_spectrum(key: jax.Array, hidden: int, times, ring, dtype) -> Tree:
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


def _rotate(params: Tree, state: Tree, drive: jax.Array) -> Tree:
    """Rotate and decay the state, and add the input: λ z + drive, with real and imaginary parts side by side."""
    radius, angle = jnp.exp(-jnp.exp(params["nu"])), jnp.exp(params["theta"])
    along, across = radius * jnp.cos(angle), radius * jnp.sin(angle)
    re, im = jnp.split(drive, 2)
    return {
        "re": along * state["re"] - across * state["im"] + re,
        "im": along * state["im"] + across * state["re"] + im,
    }


def _input_gain(params: Tree) -> jax.Array:
    """γ = √(1 − |λ|²), computed without cancellation for slow units."""
    return jnp.sqrt(-jnp.expm1(-2 * jnp.exp(params["nu"])))
