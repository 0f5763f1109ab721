"""The run that training starts from."""

import jax

from norewind.cells import Cell
from norewind.learner import Online, started
from norewind.run import Run


def start(learner: Online, cell: Cell, seed: int) -> Run:
    """A learner's run with initial parameters and a noise of this seed."""

    # Compiled as one program: operation by operation, each would be one of its own.
    @jax.jit
    def begin():
        weights, noise = jax.random.split(jax.random.key(seed))
        return started(learner.update, cell.init(weights), cell.initial_state(), noise)

    return begin()
