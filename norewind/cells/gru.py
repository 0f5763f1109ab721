"""The gated recurrent unit of the paper's experiments."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, affine_layer, input_table, read_input, read_out, readout_init, uniform
from norewind.core.structure import declare, sized


def gru(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, reset: str = "before", dtype=float) -> Cell:
    """The authors' GRU: the reset gate is applied before the matrix product.

        r = σ(E_r x + U_r h + b_r)            z = σ(E_z x + U_z h + b_z)
        c = tanh(E_c x + U_c (r ⊙ h) + b_c)
        h' = z ⊙ c + (1 − z) ⊙ h              o = W_o h' + b_o

    `params["input"]` holds [E_r, E_z, E_c] side by side, `params["gates"]` stacks U_r
    on U_z, and `params["bias"]` is [b_r, b_z, b_c].

    With `reset="after"` it is the GRU of PyTorch and cuDNN, where the reset gate is
    applied to the product, which has its own bias, and z keeps the old state:

        c = tanh(E_c x + b_c + r ⊙ (U_c h + b_u))            h' = (1 − z) ⊙ c + z ⊙ h

    `params["bias"]` is then [b_r, b_z, b_c, b_u]. In this form every weight feeds one unit,
    which some methods need.

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial E for integer symbols; False for float vectors.
        reset: apply the reset gate `"before"` or `"after"` the matrix product.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: `reset` is neither `"before"` nor `"after"`.

    >>> import jax, jax.numpy as jnp
    >>> cell = gru(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """
    if reset not in ("before", "after"):
        raise ValueError(f'gru: reset must be "before" or "after" (the matrix product), not {reset!r}.')
    after = reset == "after"
    blocks = 4 if after else 3

    def init(key):
        keys = jax.random.split(key, 5)
        return {
            "input": input_table(keys[0], inputs, 3 * hidden, symbols, dtype),
            "gates": uniform(keys[1], (2 * hidden, hidden), hidden, dtype),
            "candidate": uniform(keys[2], (hidden, hidden), hidden, dtype),
            "bias": uniform(keys[3], (blocks * hidden,), hidden, dtype),
            "readout": readout_init(keys[4], hidden, outputs, dtype),
        }

    def initial_state():
        return jnp.zeros(hidden, dtype)

    def gates_of(params, state, x, product):
        drive = read_input(params["input"], x) + params["bias"][: 3 * hidden]
        gates = jax.nn.sigmoid(drive[: 2 * hidden] + product(params["gates"], state))
        return gates[:hidden], gates[hidden:], drive[2 * hidden :]

    def mixing(product):
        def transition(params, state, x):
            reset, update, drive = gates_of(params, state, x, product)
            if after:
                inner = product(params["candidate"], state) + params["bias"][3 * hidden :]
                state = (1 - update) * jnp.tanh(drive + reset * inner) + update * state
            else:
                candidate = jnp.tanh(drive + product(params["candidate"], reset * state))
                state = update * candidate + (1 - update) * state
            return state, read_out(params["readout"], state)

        return transition

    def fed_by(row):
        matrices = {"input": row[: 3 * hidden], "gates": row[: 2 * hidden, None], "candidate": row[-hidden:, None]}
        return {**matrices, "bias": row, "readout": None}

    def units(params):
        return fed_by(np.tile(np.arange(hidden), blocks))

    def rows(params):
        return fed_by(np.arange(blocks * hidden))

    def recurrent_inputs(params, state, x):
        seen = state if after else gates_of(params, state, x, jnp.matmul)[0] * state
        return {"gates": state, "candidate": seen}

    layer = affine_layer(rows, recurrent_inputs)
    if after:
        transition = declare(mixing(jnp.matmul), units=units, mixing=mixing, layer=layer)
    else:
        # A reset gate reaches all units through the product: only where that is cut does every weight feed one unit.
        alone = lambda product: declare(mixing(product), units=units)  # noqa: E731
        transition = declare(mixing(jnp.matmul), mixing=alone, layer=layer)
    return Cell(init, initial_state, sized(transition, inputs, outputs))
