"""The gated recurrent unit of the paper's experiments."""

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init, uniform


def gru(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The authors' GRU: the reset gate is applied before the matrix product.

        r = σ(E_r x + U_r h + b_r)            z = σ(E_z x + U_z h + b_z)
        c = tanh(E_c x + U_c (r ⊙ h) + b_c)
        h' = z ⊙ c + (1 − z) ⊙ h              o = W_o h' + b_o

    `params["input"]` holds [E_r, E_z, E_c] side by side, `params["gates"]` stacks U_r
    on U_z, and `params["bias"]` is [b_r, b_z, b_c]. `inputs`, `hidden`, `outputs`,
    `symbols` (for the scale of E) and `dtype` are those of `rnn`.

    >>> import jax, jax.numpy as jnp
    >>> cell = gru(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 5)
        return {
            "input": input_table(keys[0], inputs, 3 * hidden, symbols, dtype),
            "gates": uniform(keys[1], (2 * hidden, hidden), hidden, dtype),
            "candidate": uniform(keys[2], (hidden, hidden), hidden, dtype),
            "bias": uniform(keys[3], (3 * hidden,), hidden, dtype),
            "readout": readout_init(keys[4], hidden, outputs, dtype),
        }

    def transition(params, state, x):
        drive = read_input(params["input"], x) + params["bias"]
        gates = jax.nn.sigmoid(drive[: 2 * hidden] + params["gates"] @ state)
        reset, update = gates[:hidden], gates[hidden:]
        candidate = jnp.tanh(drive[2 * hidden :] + params["candidate"] @ (reset * state))
        state = update * candidate + (1 - update) * state
        return state, read_out(params["readout"], state)

    return Cell(init, lambda: jnp.zeros(hidden, dtype), transition)
