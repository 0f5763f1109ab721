"""Counts and networks together: the mixture predicts and learns as every learner does."""

import jax
import numpy as np

import norewind
from norewind.learners.text_learner import TextLearner
from norewind.testing import check_learner


def test_with_a_network_it_conforms():
    cell = norewind.cells.gru(inputs=3, hidden=4, outputs=3, symbols=True)
    network = norewind.online(norewind.uoro(cell.transition, norewind.losses.cross_entropy), norewind.adam(1e-2))
    start = network.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    learner = TextLearner([(network, start)], 3, megabytes=0.2)
    text = np.random.default_rng(0).integers(0, 3, 61).astype(np.int32)
    # How a stream is divided changes the rounding of a network.
    check_learner(learner, learner.init(), text[:-1], text[1:], tolerance=1e-5)
