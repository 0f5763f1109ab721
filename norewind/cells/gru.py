"""The gated recurrent unit of the paper's experiments."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init, uniform
from norewind.structure import declare


def gru(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, reset: str = "before", dtype=float) -> Cell:
    """The authors' GRU: the reset gate is applied before the matrix product.

        r = σ(E_r x + U_r h + b_r)            z = σ(E_z x + U_z h + b_z)
        c = tanh(E_c x + U_c (r ⊙ h) + b_c)
        h' = z ⊙ c + (1 − z) ⊙ h              o = W_o h' + b_o

    `params["input"]` holds [E_r, E_z, E_c] side by side, `params["gates"]` stacks U_r
    on U_z, and `params["bias"]` is [b_r, b_z, b_c]. `symbols=False` scales the initial
    E for float vectors instead of integer symbols.

    With `reset="after"` it is the GRU of PyTorch and cuDNN, where the reset gate is
    applied to the product, with a bias of its own, and z keeps the old state:

        c = tanh(E_c x + b_c + r ⊙ (U_c h + b_u))            h' = (1 − z) ⊙ c + z ⊙ h

    `params["bias"]` is then [b_r, b_z, b_c, b_u]. Here every weight feeds one unit, which
    some methods need.

    >>> import jax, jax.numpy as jnp
    >>> cell = gru(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """
    if reset not in ("before", "after"):
        raise ValueError(f'gru: reset must be "before" or "after" (the matrix product), not {reset!r}.')
    after = reset == "after"

    def init(key):
        keys = jax.random.split(key, 5)
        return {
            "input": input_table(keys[0], inputs, 3 * hidden, symbols, dtype),
            "gates": uniform(keys[1], (2 * hidden, hidden), hidden, dtype),
            "candidate": uniform(keys[2], (hidden, hidden), hidden, dtype),
            "bias": uniform(keys[3], ((4 if after else 3) * hidden,), hidden, dtype),
            "readout": readout_init(keys[4], hidden, outputs, dtype),
        }

    def initial_state():
        return jnp.zeros(hidden, dtype)

    def transition(params, state, x):
        drive = read_input(params["input"], x) + params["bias"]
        gates = jax.nn.sigmoid(drive[: 2 * hidden] + params["gates"] @ state)
        reset, update = gates[:hidden], gates[hidden:]
        candidate = jnp.tanh(drive[2 * hidden :] + params["candidate"] @ (reset * state))
        state = update * candidate + (1 - update) * state
        return state, read_out(params["readout"], state)

    def transition_after(params, state, x):
        drive = read_input(params["input"], x) + params["bias"][: 3 * hidden]
        gates = jax.nn.sigmoid(drive[: 2 * hidden] + params["gates"] @ state)
        reset, keep = gates[:hidden], gates[hidden:]
        inner = params["candidate"] @ state + params["bias"][3 * hidden :]
        state = (1 - keep) * jnp.tanh(drive[2 * hidden :] + reset * inner) + keep * state
        return state, read_out(params["readout"], state)

    def units(params):
        row = np.arange(hidden)
        return {
            "input": np.tile(row, 3),
            "gates": np.tile(row, 2)[:, None],
            "candidate": row[:, None],
            "bias": np.tile(row, 4),
            "readout": None,
        }

    return Cell(init, initial_state, declare(transition_after, units=units) if after else transition)
