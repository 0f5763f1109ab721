"""A deeper readout for any cell."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, input_table, read_input, read_out, readout_init
from norewind.estimator import Transition
from norewind.structure import Layer, Structure, declare, structure_of
from norewind.trees import Tree

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

    h is what the cell's own linear readout reads. A cell that ends in
    `read_out(params["readout"], h)`, as those here do, has that readout replaced, and a
    `stack` that of its last cell. Any other cell gives its output as h. The state and
    what the cell declares of it stay as they are.

    `skip` is the term E x: the layer sees the input as well, so that the state need not
    hold it. `norm` is a layer norm with a learned scale and shift; `prenorm` is one of h
    in front of W. `symbols=False` scales the initial E for float vectors instead of
    integer symbols.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = with_readout(norewind.cells.lru(3, 8, 3), 3, 3, hidden=16)
    >>> params = cell.init(jax.random.key(0))
    >>> state, output = cell.transition(params, cell.initial_state(), jnp.array(1))
    >>> params["readout"]["hidden"]["weight"].shape, output.shape
    ((16, 16), (3,))
    """

    def init(key):
        keys = jax.random.split(key, 4)
        params = _without_linear_readout(cell.init(keys[0]))
        x = jnp.zeros((), jnp.int32) if symbols else jnp.zeros(inputs)
        _, features = jax.eval_shape(cell.transition, params, cell.initial_state(), x)
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
        return {"cell": params, "readout": readout}

    def around(inner):
        def transition(params, state, x):
            state, features = inner(params["cell"], state, x)
            readout = params["readout"]
            drive = read_out(readout["hidden"], _layer_norm(readout["prenorm"], features) if prenorm else features)
            if skip:
                drive = drive + read_input(readout["skip"], x)
            if norm:
                drive = _layer_norm(readout["norm"], drive)
            return state, read_out(readout["output"], jax.nn.relu(drive))

        return transition

    return Cell(init, cell.initial_state, _declared_as(cell.transition, around))


def _without_linear_readout(params: Tree) -> Tree:
    """A cell's parameters with None in place of its linear readout, so that it outputs what that reads."""
    if type(params) is tuple and params:
        return (*params[:-1], _without_linear_readout(params[-1]))
    linear = params.get("readout") if isinstance(params, dict) else None
    if isinstance(linear, dict) and linear.keys() == {"weight", "bias"}:
        return dict(params, readout=None)
    return params


def _norm_init(width: int, dtype) -> Tree:
    return {"scale": jnp.ones(width, dtype), "shift": jnp.zeros(width, dtype)}


def _layer_norm(norm: Tree, values: jax.Array) -> jax.Array:
    centred = values - jnp.mean(values)
    return norm["scale"] * centred * jax.lax.rsqrt(jnp.mean(centred**2) + EPSILON) + norm["shift"]


def _declared_as(cell: Transition, around: Callable[[Transition], Transition]) -> Transition:
    """The transition around a cell, with its declarations; a readout reaches no state, its outputs are no units."""
    told = structure_of(cell)
    if told == Structure():
        return around(cell)

    def inside(function):
        return function and (lambda params, *rest: {"cell": function(params["cell"], *rest), "readout": None})

    mixing, layer = told.mixing, told.layer
    return declare(
        around(cell),
        units=inside(told.units),
        memory=told.memory,
        elementwise=told.elementwise,
        mixing=mixing and (lambda product: _declared_as(mixing(product), around)),
        layer=layer and Layer(inside(layer.rows), inside(layer.inputs), lambda params: layer.bias(params["cell"])),
    )
