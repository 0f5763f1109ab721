"""Several cells, each feeding the next."""

import jax

from norewind.cells.cell import Cell


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
