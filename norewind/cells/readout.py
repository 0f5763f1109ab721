"""A deeper readout for any cell."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init
from norewind.core.structure import declared_around, sized
from norewind.core.trees import Tree

EPSILON = 1e-5


def with_readout(
    cell: Cell,
    inputs: int,
    outputs: int,
    *,
    hidden: int = 64,
    skip: bool = True,
    norm: bool = True,
    prenorm: bool = False,
    symbols: bool = True,
) -> Cell:
    """A cell with a hidden layer between its state and the output:

        a = W h + E x + b                     o = W_o relu(norm(a)) + b_o

    h is the vector that the cell's own linear readout reads. A cell that ends in
    `read_out(params["readout"], h)`, like all cells of norewind, gets that readout replaced; in
    a `stack`, this is the readout of the last cell. For any other cell, h is its output. The
    state and its declarations do not change.

    Args:
        cell: the cell.
        inputs: the number of symbols, or of entries in x.
        outputs: the number of outputs.
        hidden: the number of units of the hidden layer.
        skip: include the term E x: the layer reads the input as well, so that the state need not remember it.
        norm: apply a layer norm with a learned scale and shift to the hidden layer.
        prenorm: apply a layer norm to h, before W.
        symbols: scale the initial E for integer symbols; False for float vectors.

    Returns:
        The cell with the new readout.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = with_readout(norewind.cells.lru(3, 8, 3), 3, 3, hidden=16)
    >>> params = cell.init(jax.random.key(0))
    >>> state, output = cell.transition(params, cell.initial_state(), jnp.array(1))
    >>> params["readout"]["hidden"]["weight"].shape, output.shape
    ((16, 16), (3,))
    """

    linear = _has_linear_readout(cell)

    def inside(params):
        return _in_last_cell(_put_none, params["cell"]) if linear else params["cell"]

    def outside(params, readout):
        return {"cell": _in_last_cell(_drop_readout, params) if linear else params, "readout": readout}

    def init(key):
        keys = jax.random.split(key, 4)
        params = outside(cell.init(keys[0]), None)
        x = jnp.zeros((), jnp.int32) if symbols else jnp.zeros(inputs)
        _, features = jax.eval_shape(cell.transition, inside(params), cell.initial_state(), x)
        if not hasattr(features, "shape") or len(features.shape) != 1:
            raise ValueError("with_readout: the cell's output must be one vector, for the hidden layer to read.")
        (width,), dtype = features.shape, features.dtype
        readout = {
            "hidden": readout_init(keys[1], width, hidden, dtype),
            "output": readout_init(keys[2], hidden, outputs, dtype),
        }
        if skip:
            readout["skip"] = input_table(keys[3], inputs, hidden, symbols, dtype)
        if norm:
            readout["norm"] = _norm_init(hidden, dtype)
        if prenorm:
            readout["prenorm"] = _norm_init(width, dtype)
        return params | {"readout": readout}

    def around(inner):
        def transition(params, state, x):
            state, features = inner(inside(params), state, x)
            readout = params["readout"]
            drive = read_out(readout["hidden"], _layer_norm(readout["prenorm"], features) if prenorm else features)
            if skip:
                drive = drive + read_input(readout["skip"], x)
            if norm:
                drive = _layer_norm(readout["norm"], drive)
            return state, read_out(readout["output"], jax.nn.relu(drive))

        return transition

    # A readout does not influence the state.
    transition = declared_around(cell.transition, around, inside, lambda tree: outside(tree, None))
    return Cell(init, cell.initial_state, sized(transition, inputs, outputs))


def _norm_init(width: int, dtype) -> Tree:
    return {"scale": jnp.ones(width, dtype), "shift": jnp.zeros(width, dtype)}


def _layer_norm(norm: Tree, values: jax.Array) -> jax.Array:
    centred = values - jnp.mean(values)
    return norm["scale"] * centred * jax.lax.rsqrt(jnp.mean(centred**2) + EPSILON) + norm["shift"]


def _has_linear_readout(cell: Cell) -> bool:
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0)))  # with the key inside, nothing is compiled
    while type(params) is tuple:
        params = params[-1]
    readout = params.get("readout") if isinstance(params, dict) else None
    return isinstance(readout, dict) and readout.keys() == {"weight", "bias"}


def _in_last_cell(change: Callable[[dict], dict], params: Tree) -> Tree:
    """Change the parameters of the last cell of a stack, or those of a single cell."""
    return (*params[:-1], _in_last_cell(change, params[-1])) if type(params) is tuple else change(params)


def _drop_readout(params: dict) -> dict:
    return {name: part for name, part in params.items() if name != "readout"}


def _put_none(params: dict) -> dict:
    return {**params, "readout": None}
