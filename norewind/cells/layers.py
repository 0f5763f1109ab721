"""Stacks of cells, and cells with sparse recurrent weights."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell
from norewind.core.checks import ModelError
from norewind.core.estimator import Transition
from norewind.core.products import cut_product
from norewind.core.structure import Product, checked_units, declare, structure_of
from norewind.core.trees import Tree
from norewind.core.units import for_each_leaf


def stack(*cells: Cell) -> Cell:
    """Several cells as one: the output of each is the input of the next.

    If every cell declares its units, so does the stack, and `norewind.estimators.snap1` keeps the traces of
    each layer, which are exact within an elementwise layer. It drops how the weights of a layer act on the layers
    above through the *past* states of those; within a step (or a window), the gradient passes through all layers.
    `norewind.unbiased` estimates what is dropped.

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

    first, last = (structure_of(cell.transition).sizes for cell in (cells[0], cells[-1]))
    sizes = (first[0], last[1]) if first and last else None
    transition = _in_layers([cell.transition for cell in cells])
    if all(_declares_units(cell.transition) for cell in cells):
        declared = _declare_layers(cells, transition, sizes)
    else:
        declared = declare(transition, sizes=sizes)
    return Cell(init, initial_state, declared, cells[-1].linear_readout)


def sparse(cell: Cell, reads: np.ndarray) -> Cell:
    """A cell whose units read only some of the others: all other recurrent weights are zero, and stay zero.

    With few reads, `norewind.estimators.snapn` computes more of the influence than `snap1`, at a cost far below that
    of RTRL.

    Args:
        cell: a cell that declares how its units mix, such as `rnn`, `elman`, `gru` or `lstm(..., embedding=False)`.
        reads: a boolean matrix that is true in row i and column j if unit i reads unit j.

    Returns:
        The cell, with the same parameters.

    Raises:
        ModelError: the cell does not declare how its units mix.

    >>> import jax, jax.numpy as jnp, norewind
    >>> pairs = jnp.kron(jnp.eye(3), jnp.ones((2, 2)))  # three pairs of units that read each other
    >>> cell = sparse(norewind.cells.elman(inputs=3, hidden=6, outputs=3), pairs)
    >>> jac = jax.jacobian(lambda state: cell.transition(cell.init(jax.random.key(0)), state, 0)[0])(jnp.zeros(6))
    >>> int(jnp.count_nonzero(jac))
    12
    """
    declared, matrix = structure_of(cell.transition), np.asarray(reads, bool)
    if declared.mixing is None:
        raise ModelError("sparse needs a cell that declares mixing, such as cells.elman or cells.gru.")
    mixing = declared.mixing

    def masked(product):
        def of_reads(weight, vector):
            return product(jnp.where(np.tile(matrix, (len(weight) // len(matrix), 1)), weight, 0), vector)

        return mixing(of_reads)

    # Where a gate reaches other units within the step, units read further ones than the matrix says.
    known = (lambda state: matrix) if declared.units else None
    structure = declared._replace(mixing=masked, reads=known, layer=None)
    return cell._replace(transition=declare(masked(jnp.matmul), **structure._asdict()))


def _in_layers(layers: Sequence[Transition], between: Callable = lambda x: x) -> Transition:
    """Several transitions as one: the output of each, after `between`, is the input of the next."""

    def transition(params, state, x):
        new_state = []
        for layer, p, s in zip(layers, params, state, strict=True):
            s, x = layer(p, s, between(x) if new_state else x)
            new_state.append(s)
        return tuple(new_state), x

    return transition


def _declares_units(transition: Transition) -> bool:
    declared = structure_of(transition)
    alone = declared.mixing(jnp.matmul) if declared.mixing else transition
    return bool((declared.mixing or declared.elementwise) and (structure_of(alone).units or declared.units))


def _declare_layers(cells: Sequence[Cell], transition: Transition, sizes: tuple[int, int] | None) -> Transition:
    """Declare how the units of a stack mix. Those of each layer are counted after those of the layers below."""
    layers = [structure_of(cell.transition) for cell in cells]
    states = [jax.eval_shape(cell.initial_state) for cell in cells]
    own = [
        layer.entries(state) if layer.entries else _one_entry_per_unit(state)
        for layer, state in zip(layers, states, strict=True)
    ]
    counts = [1 + max(int(np.max(leaf)) for leaf in jax.tree.leaves(entries)) for entries in own]
    starts = np.cumsum([0, *counts[:-1]])
    shifted = tuple(jax.tree.map(lambda leaf, a=a: np.asarray(leaf) + a, e) for e, a in zip(own, starts, strict=True))

    def mixing(product):
        if product is cut_product:
            raise ModelError("rflo: in a stack it would also cut what one layer passes to the next. Use snap1.")
        mixed = [_with_own_product(cell.transition, product) for cell in cells]

        def units(params):
            own: list[Any] = [structure_of(layer).units for layer in mixed]
            below = [_units_in_stack(of(p), p, start) for of, p, start in zip(own[:-1], params, starts, strict=False)]
            return (*below, jax.tree.map(lambda leaf: np.asarray(leaf) + starts[-1], own[-1](params[-1])))

        return declare(_in_layers(mixed, partial(_pass_through, product)), units=units)

    return declare(transition, mixing=mixing, entries=lambda state: shifted, sizes=sizes)


def _with_own_product(transition: Transition, product: Product) -> Transition:
    """One layer with another product between its units, declared with its units, which it checks when it is traced."""
    declared = structure_of(transition)
    layer = declared.mixing(product) if declared.mixing else transition
    layer = declare(layer, units=structure_of(layer).units or declared.units)

    def checked(params, state, x):
        checked_units("a stack", layer, params, state, x)
        return layer(params, state, x)

    return declare(checked, units=structure_of(layer).units)


def _units_in_stack(units: Tree, params: Tree, start: int) -> Tree:
    """The units of a lower layer, counted from `start`.

    Weights without a unit, such as a readout, reach the layers above within a step: they get an empty list of units.
    """

    def one_leaf(own, leaf):
        return np.zeros((0, *(1,) * np.ndim(leaf)), int) if own is None else np.asarray(own) + start

    return for_each_leaf(one_leaf, units, params)


def _one_entry_per_unit(state: Tree) -> Tree:
    """The entries of a state in whose floating leaves every unit has one entry."""

    def entries(leaf):
        return np.arange(leaf.size).reshape(leaf.shape) if jnp.issubdtype(leaf.dtype, jnp.inexact) else None

    return jax.tree.map(entries, state)


def _pass_through(product: Callable, vector: jax.Array) -> jax.Array:
    """The vector itself, as a product whose matrix has a diagonal of zeros: no unit reads its own entry through it."""
    n = vector.size
    matrix = jnp.zeros((2 * n, 2 * n), vector.dtype).at[n:, :n].set(jnp.eye(n, dtype=vector.dtype))
    return product(matrix, jnp.concatenate([vector, jnp.zeros_like(vector)]))[n:]
