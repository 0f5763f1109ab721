"""Answers to samples that wait for their window to be full: who is in a hurry shall not wait for the others."""

from typing import Any

import jax
import numpy as np

from norewind.learner import Learner, Run
from norewind.streams.stream import Samples
from norewind.training.windows import Steps, count_of, first


class Early:
    """The parameters only change at the end of a window, so what the model says inside can be known before."""

    def __init__(self, learner: Learner, steps: Steps, answered: int = 0):
        """So many of the waiting samples were answered already."""
        self.learner, self.steps, self.answered = learner, steps, answered

    def answer(self, run: Run) -> tuple[Samples, Any] | None:
        """The waiting samples that were not answered yet, and their outputs."""
        waiting = self.steps.waiting
        count = 0 if waiting is None else count_of(waiting)
        if waiting is None or count == self.answered:
            return None
        window, _ = self.steps.windows(waiting, 1)
        _, outputs = self.learner.predict(run, jax.tree.map(lambda leaf: leaf[0], window))
        new = (
            first(waiting, None, self.answered),
            jax.tree.map(lambda leaf: np.asarray(leaf)[self.answered : count], outputs),
        )
        self.answered = count
        return new

    def rest(self, samples: Samples, outputs: Any) -> tuple[Samples, Any]:
        """What is left to answer of whole windows, which begin with the samples that waited."""
        answered, self.answered = self.answered, 0
        return first(samples, None, answered), jax.tree.map(lambda leaf: leaf[answered:], outputs)
