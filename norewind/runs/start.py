"""The run that training starts from."""

import jax

from norewind.cells import Cell
from norewind.learner import Learner, started
from norewind.programs import remembered
from norewind.run import Run, Update


def start(learner: Learner, cell: Cell, seed: int) -> Run:
    """A learner's run with initial parameters and a noise of this seed."""
    return remembered(_start, learner.update, cell, seed)


def _start(update: Update, cell: Cell, seed: int) -> Run:
    weights, noise = jax.random.split(jax.random.key(seed))
    return started(update, cell.init(weights), cell.initial_state(), noise)
