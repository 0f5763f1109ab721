"""What a cell is, a stack of cells, and the pieces that they share."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks, ranges
from norewind.estimator import Transition
from norewind.structure import Layer
from norewind.trees import Tree


class Cell(NamedTuple):
    """A recurrent model, as three functions.

    `init(key) -> params`, `initial_state() -> state` and
    `transition(params, state, x) -> (new_state, output)`.
    """

    init: Callable[[jax.Array], Tree]
    initial_state: Callable[[], Tree]
    transition: Transition


def stack(*cells: Cell) -> Cell:
    """Several cells as one: the output of each is the input of the next.

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

    return Cell(init, initial_state, transition)


def within(bound: float, key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
    """Uniform in ±bound."""
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def uniform(key: jax.Array, shape: tuple[int, ...], fan_in: int, dtype) -> jax.Array:
    """The authors' initialisation of linear maps and their biases: uniform in ±1/√fan_in."""
    checks.at_least_one("the size of a layer", fan_in)
    return within(fan_in**-0.5, key, shape, dtype)


def input_table(key: jax.Array, inputs: int, width: int, symbols: bool, dtype) -> jax.Array:
    """One row per input: an embedding drawn from N(0, 1) if the inputs are symbols, a linear map if vectors."""
    for size in (inputs, width):
        checks.at_least_one("the size of a layer", size)
    if symbols:
        return jax.random.normal(key, (inputs, width), dtype)
    return uniform(key, (inputs, width), inputs, dtype)


def read_input(table: jax.Array, x: jax.Array) -> jax.Array:
    """A row of the table if x is an integer symbol, a product with the table if x is a float vector."""
    x = jnp.asarray(x)
    inputs = table.shape[0]
    if jnp.issubdtype(x.dtype, jnp.integer) and x.shape == ():
        ranges.note(ranges.INPUT, x, inputs)
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
    """The layer of a cell with an input table and a bias; `others` are the inputs of its other weights."""

    def inputs(params, state, x):
        vector = jnp.asarray(x)
        if jnp.issubdtype(vector.dtype, jnp.integer):
            vector = jnp.arange(params["input"].shape[0]) == vector
        own = {"input": vector[:, None], bias: jnp.ones(())} | others(params, state, x)
        return {name: own[name].astype(params[name].dtype) if name in own else None for name in params}

    return Layer(rows, inputs, lambda params: params[bias])


def readout_init(key: jax.Array, hidden: int, outputs: int, dtype) -> Tree:
    weight_key, bias_key = jax.random.split(key)
    return {
        "weight": uniform(weight_key, (outputs, hidden), hidden, dtype),
        "bias": uniform(bias_key, (outputs,), hidden, dtype),
    }


def zero_readout(hidden: int, outputs: int, dtype) -> Tree:
    return {"weight": jnp.zeros((outputs, hidden), dtype), "bias": jnp.zeros(outputs, dtype)}


def read_out(readout: Tree | None, hidden: jax.Array) -> jax.Array:
    """W_o h + b_o; without a readout, h itself (see `with_readout`)."""
    return hidden if readout is None else readout["weight"] @ hidden + readout["bias"]


def layer_units(size: int) -> dict[str, np.ndarray]:
    """The units that the weights of one dense layer feed (see `norewind.declare`)."""
    row = np.arange(size)
    return {"input": row, "recurrent": row[:, None], "bias": row}
