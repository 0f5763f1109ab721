"""The run that training starts from."""

import jax
import jax.numpy as jnp

from norewind.cells import Cell
from norewind.learner import Online, started
from norewind.run import Run


def start(learner: Online, cell: Cell, seed: int, members: int | None = None) -> Run:
    """A learner's run with initial parameters and a noise of this seed.

    Args:
        learner: the learner.
        cell: its cell.
        seed: of the parameters and the noise.
        members: of an ensemble, the number of its members, which start alike.
    """

    def several(tree):
        return tree if members is None else jax.tree.map(lambda leaf: jnp.stack([leaf] * members), tree)

    # Compiled as one program: operation by operation, each would be one of its own.
    @jax.jit
    def begin():
        weights, noise = jax.random.split(jax.random.key(seed))
        return started(learner.update, several(cell.init(weights)), several(cell.initial_state()), noise)

    return begin()
