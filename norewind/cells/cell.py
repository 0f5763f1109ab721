"""The definition of a cell, a deeper readout for any cell, and the parts that cells share."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.core import checks
from norewind.core.estimator import Transition
from norewind.core.structure import Layer, declare, wrap_declared
from norewind.core.trees import Tree


class Cell(NamedTuple):
    """A recurrent model, as three functions.

    Attributes:
        init: makes the parameters, `init(key) -> params`.
        initial_state: returns the state before the first step, `initial_state() -> state`.
        transition: one step, `transition(params, state, x) -> (new_state, output)`.
        linear_readout: whether its output is `read_out(params["readout"], h)`, so that `with_readout` can replace the
            readout. In a stack, these are the parameters of the last cell.
    """

    init: Callable[[jax.Array], Tree]
    initial_state: Callable[[], Tree]
    transition: Transition
    linear_readout: bool = False


def uniform(key: jax.Array, shape: tuple[int, ...], fan_in: int, dtype) -> jax.Array:
    """The authors' initialisation of linear maps and their biases: uniform in ±1/√fan_in.

    Args:
        key: the PRNG key.
        shape: the shape of the array.
        fan_in: the number of inputs of the map.
        dtype: the dtype of the array.

    Returns:
        The array.

    Raises:
        ModelError: `fan_in` is not a whole number above 0.
    """
    checks.check_at_least_one("the size of a layer", fan_in)
    size = math.prod(shape)
    # The first numbers of a longer draw are the same. Small arrays share one program, so a network starts faster.
    drawn = jax.random.uniform(key, (max(1024, size),), dtype, -(fan_in**-0.5), fan_in**-0.5)
    return drawn[:size].reshape(shape)


def input_table(key: jax.Array, inputs: int, width: int, symbols: bool, dtype) -> jax.Array:
    """The initial weights of the inputs, with one row per input.

    Args:
        key: the PRNG key.
        inputs: the number of symbols, or of entries in x.
        width: the size of a row.
        symbols: the inputs are symbols, and the rows are embeddings, drawn from N(0, 1). Otherwise the inputs are
            vectors, and the table is a linear map.
        dtype: the dtype of the array.

    Returns:
        The table, of shape (inputs, width).

    Raises:
        ModelError: a size is not a whole number above 0.
    """
    for size in (inputs, width):
        checks.check_at_least_one("the size of a layer", size)
    if symbols:
        return jax.random.normal(key, (inputs, width), dtype)
    return uniform(key, (inputs, width), inputs, dtype)


def read_input(table: jax.Array, x: jax.Array) -> jax.Array:
    """Look up a symbol in the input table, or multiply a vector by it.

    Args:
        table: the table, with one row per input.
        x: an integer symbol, or a float vector with one entry per row.

    Returns:
        A row of the table, or the product of the vector with the table.

    Raises:
        ValueError: `x` is neither, or out of range.
    """
    x = jnp.asarray(x)
    inputs = table.shape[0]
    if jnp.issubdtype(x.dtype, jnp.integer) and x.shape == ():
        checks.check_in_range(checks.INPUT, x, inputs)
        return table[x]
    if jnp.issubdtype(x.dtype, jnp.floating) and x.shape == (inputs,):
        return x.astype(table.dtype) @ table
    raise ValueError(
        f"the cell has {inputs} inputs: x must be one integer symbol below {inputs} or a float vector of shape "
        f"({inputs},), but it has dtype {x.dtype} and shape {x.shape}. For a sequence of inputs use window or scan, "
        "for several streams use parallel."
    )


def one_hot(x: jax.Array, inputs: int) -> jax.Array:
    """Turn an integer symbol into a one-hot vector.

    Args:
        x: the symbol, or an array of floats, which is returned as it is.
        inputs: the number of symbols.

    Returns:
        The vector.

    Raises:
        ModelError: the symbol is out of range.
    """
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return x
    checks.check_in_range(checks.INPUT, x, inputs)
    return jax.nn.one_hot(x, inputs, dtype=float)


def affine_layer(
    rows: Callable[[Tree], Tree], others: Callable[..., dict[str, jax.Array]], bias: str = "bias"
) -> Layer:
    """The affine layer of a cell with an input table and a bias, for `declare`.

    Args:
        rows: `rows(params)` is the row that each weight feeds (see `norewind.core.Layer`).
        others: `others(params, state, x)` returns the inputs of the other weights, by name.
        bias: the name of the bias in the parameters.

    Returns:
        The layer.
    """

    def inputs(params, state, x):
        vector = jnp.asarray(x)
        if jnp.issubdtype(vector.dtype, jnp.integer):
            vector = jnp.arange(params["input"].shape[0]) == vector
        own = {"input": vector[:, None], bias: jnp.ones(())} | others(params, state, x)
        return {name: own[name].astype(params[name].dtype) if name in own else None for name in params}

    return Layer(rows, inputs, lambda params: params[bias])


def init_readout(key: jax.Array, hidden: int, outputs: int, dtype) -> Tree:
    """The initial parameters of a linear readout, drawn with `uniform`.

    Args:
        key: the PRNG key.
        hidden: the number of hidden units that it reads.
        outputs: the number of outputs.
        dtype: the dtype of the parameters.

    Returns:
        The weight and the bias.
    """
    weight_key, bias_key = jax.random.split(key)
    return {
        "weight": uniform(weight_key, (outputs, hidden), hidden, dtype),
        "bias": uniform(bias_key, (outputs,), hidden, dtype),
    }


def read_out(readout: Tree | None, hidden: jax.Array) -> jax.Array:
    """The output of a linear readout, W_o h + b_o.

    Args:
        readout: the weight and the bias; None for no readout (see `with_readout`).
        hidden: the vector h.

    Returns:
        The output; h itself without a readout.
    """
    return hidden if readout is None else readout["weight"] @ hidden + readout["bias"]


def dense_cell(
    init: Callable,
    transition: Callable,
    activation: Callable,
    sizes: tuple[int, int],
    units: int,
    dtype,
    output_units: tuple[int, ...] | None = None,
) -> Cell:
    """A cell whose state is one vector, fed by one dense layer, W_x x + W_s activation(s) + b.

    Args:
        init: makes the parameters: `input`, `recurrent`, `bias`, and others that do not reach the state.
        transition: one step, `transition(params, state, x, product)`. The default of `product` is `jax.numpy.matmul`.
        activation: the function of the state that the recurrent weights multiply.
        sizes: the number of inputs and of outputs.
        units: the number of units.
        dtype: the dtype of the state.
        output_units: the units that are the output (see `norewind.declare`); None if the output is a linear readout.

    Returns:
        The cell, with its declarations.
    """
    row = np.arange(units)
    fed = {"input": row, "recurrent": row[:, None], "bias": row}

    def rows(params):
        return {name: fed.get(name) for name in params}

    layer = affine_layer(rows, lambda params, state, x: {"recurrent": activation(state)})

    def mixing(product):
        return partial(transition, product=product)

    declared = declare(transition, units=rows, mixing=mixing, layer=layer, sizes=sizes, output_units=output_units)
    return Cell(init, lambda: jnp.zeros(units, dtype), declared, linear_readout=output_units is None)


def with_readout(cell: Cell, inputs: int, outputs: int, *, hidden: int = 64, symbols: bool = True) -> Cell:
    """A cell with a hidden layer between its state and the output:

        a = W h + E x + b                     o = W_o relu(norm(a)) + b_o

    The layer also reads the input (E x), so that the state need not remember it. norm is a layer
    norm with a learned scale and shift.

    h is the vector that the cell's own linear readout reads: a cell with `linear_readout`, like
    nearly all cells of norewind, gets that readout replaced; in a `stack`, this is the readout of
    the last cell. For any other cell, h is its output. The state and its declarations do not
    change.

    Args:
        cell: the cell that gets the readout.
        inputs: the number of symbols, or of entries in x.
        outputs: the number of outputs.
        hidden: the number of units of the hidden layer.
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

    def inside(params):
        own = params["cell"]
        return _in_last_cell(lambda last: {**last, "readout": None}, own) if cell.linear_readout else own

    def outside(params):
        return {"cell": _in_last_cell(_without_readout, params) if cell.linear_readout else params, "readout": None}

    def init(key):
        keys = jax.random.split(key, 4)
        params = outside(cell.init(keys[0]))
        x = jnp.zeros((), jnp.int32) if symbols else jnp.zeros(inputs)
        _, features = jax.eval_shape(cell.transition, inside(params), cell.initial_state(), x)
        if not hasattr(features, "shape") or len(features.shape) != 1:
            raise ValueError("with_readout: the cell's output must be one vector, for the hidden layer to read.")
        (width,), dtype = features.shape, features.dtype
        readout = {
            "hidden": init_readout(keys[1], width, hidden, dtype),
            "output": init_readout(keys[2], hidden, outputs, dtype),
            "skip": input_table(keys[3], inputs, hidden, symbols, dtype),
            "norm": {"scale": jnp.ones(hidden, dtype), "shift": jnp.zeros(hidden, dtype)},
        }
        return params | {"readout": readout}

    def around(inner):
        def transition(params, state, x):
            state, features = inner(inside(params), state, x)
            readout = params["readout"]
            drive = read_out(readout["hidden"], features) + read_input(readout["skip"], x)
            return state, read_out(readout["output"], jax.nn.relu(_layer_norm(readout["norm"], drive)))

        return transition

    # A readout does not influence the state.
    transition = wrap_declared(cell.transition, around, inside, outside, sizes=(inputs, outputs))
    return Cell(init, cell.initial_state, transition)


def _layer_norm(norm: Tree, values: jax.Array) -> jax.Array:
    centred = values - jnp.mean(values)
    return norm["scale"] * centred * jax.lax.rsqrt(jnp.mean(centred**2) + 1e-5) + norm["shift"]


def _in_last_cell(change: Callable[[dict], dict], params: Tree) -> Tree:
    """Change the parameters of the last cell of a stack, or those of a single cell."""
    return (*params[:-1], _in_last_cell(change, params[-1])) if type(params) is tuple else change(params)


def _without_readout(params: dict) -> dict:
    return {name: part for name, part in params.items() if name != "readout"}
