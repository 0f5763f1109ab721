"""The definition of a cell, stacks of cells, and the parts that cells share."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.core import checks
from norewind.core.estimator import Transition
from norewind.core.structure import Layer, sized, structure_of
from norewind.core.trees import Tree


class Cell(NamedTuple):
    """A recurrent model, as three functions.

    Args:
        init: makes the parameters, `init(key) -> params`.
        initial_state: returns the state before the first step, `initial_state() -> state`.
        transition: one step, `transition(params, state, x) -> (new_state, output)`.
    """

    init: Callable[[jax.Array], Tree]
    initial_state: Callable[[], Tree]
    transition: Transition


def stack(*cells: Cell) -> Cell:
    """Several cells as one: the output of each is the input of the next.

    Args:
        *cells: the cells, from the first to the last.

    Returns:
        A cell whose parameters and state are tuples with one entry per cell.

    Raises:
        ValueError: no cell was given.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = stack(norewind.cells.gru(3, 8, 8), norewind.cells.lstm(8, 8, 3, symbols=False))
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> output.shape
    (3,)
    """
    if not cells:
        raise ValueError("stack needs at least one cell.")

    def init(key):
        return tuple(cell.init(k) for cell, k in zip(cells, jax.random.split(key, len(cells)), strict=True))

    def initial_state():
        return tuple(cell.initial_state() for cell in cells)

    def transition(params, state, x):
        new_state = []
        for cell, p, s in zip(cells, params, state, strict=True):
            s, x = cell.transition(p, s, x)
            new_state.append(s)
        return tuple(new_state), x

    sizes = [structure_of(cell.transition).sizes for cell in cells]
    if sizes[0] and sizes[-1]:
        return Cell(init, initial_state, sized(transition, sizes[0][0], sizes[-1][1]))
    return Cell(init, initial_state, transition)


def within(bound: float, key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
    """Draw weights uniformly in ±bound.

    Args:
        bound: the largest absolute value.
        key: the PRNG key.
        shape: the shape of the array.
        dtype: its dtype.

    Returns:
        The array.
    """
    return jax.random.uniform(key, shape, dtype, -bound, bound)


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
    checks.at_least_one("the size of a layer", fan_in)
    return within(fan_in**-0.5, key, shape, dtype)


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
        checks.at_least_one("the size of a layer", size)
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
        checks.in_range(checks.INPUT, x, inputs)
        return table[x]
    if jnp.issubdtype(x.dtype, jnp.floating) and x.shape == (inputs,):
        return x.astype(table.dtype) @ table
    raise ValueError(
        f"the cell has {inputs} inputs: x must be one integer symbol below {inputs} or a float vector of shape "
        f"({inputs},), but it has dtype {x.dtype} and shape {x.shape}. For a sequence of inputs use window or scan, "
        "for several streams use parallel."
    )


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


def readout_init(key: jax.Array, hidden: int, outputs: int, dtype) -> Tree:
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


def zero_readout(hidden: int, outputs: int, dtype) -> Tree:
    """A linear readout that starts at zero.

    Args:
        hidden: the number of hidden units that it reads.
        outputs: the number of outputs.
        dtype: the dtype of the parameters.

    Returns:
        The weight and the bias.
    """
    return {"weight": jnp.zeros((outputs, hidden), dtype), "bias": jnp.zeros(outputs, dtype)}


def read_out(readout: Tree | None, hidden: jax.Array) -> jax.Array:
    """The output of a linear readout, W_o h + b_o.

    Args:
        readout: the weight and the bias; None for no readout (see `with_readout`).
        hidden: the vector h.

    Returns:
        The output; h itself without a readout.
    """
    return hidden if readout is None else readout["weight"] @ hidden + readout["bias"]


def layer_units(size: int) -> dict[str, np.ndarray]:
    """The units that the weights of one dense layer of this size feed (see `norewind.declare`)."""
    row = np.arange(size)
    return {"input": row, "recurrent": row[:, None], "bias": row}
