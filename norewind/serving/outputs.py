"""What a learner says about each of several rows that might come next, without moving on."""

from typing import Any

import jax
import numpy as np

from norewind.combinators import one_step_of
from norewind.learner import Learner
from norewind.learners.ahead import Ahead
from norewind.learners.several import Several

LADDER = (1, 4, 16, 64)
"""The numbers of rows that programs are compiled for; others are filled up to the next of these."""


class Outputs:
    """The outputs of a learner for rows of which each would be the next, like those of its `forward`.

    A network answers all of them in one call. Other learners answer one after the other.
    """

    def __init__(self, learner: Any):
        self.learner = learner
        inner: Any = learner.learner if isinstance(learner, Ahead) else learner
        self.members = [Outputs(member) for member in learner.members] if isinstance(learner, Several) else []
        self.at_once = isinstance(inner, Learner)
        if self.at_once:
            transition = one_step_of(inner.update.model.transition)
            self._answer = jax.jit(lambda params, state, xs: jax.vmap(lambda x: transition(params, state, x)[1])(xs))

    def __call__(self, run: Any, xs: np.ndarray) -> Any:
        """One output for each of `xs`; with a horizon, the forecasts made there and those made of the next row."""
        if self.members:
            return self.learner.joined([one(part, xs) for one, part in zip(self.members, run, strict=True)])
        if not self.at_once:
            answered = [self.learner.forward(run, xs[place : place + 1])[1] for place in range(len(xs))]
            return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *answered)
        if not isinstance(self.learner, Ahead):
            return self._at_once(run.params, run.state, xs)
        return self._at_once(run.run.params, run.run.ahead, xs), np.repeat(run.outputs[:1], len(xs), axis=0)

    def _at_once(self, params: Any, state: Any, xs: np.ndarray) -> np.ndarray:
        size = next(size for size in LADDER if size >= len(xs))
        padded = np.zeros((size, *xs.shape[1:]), xs.dtype)
        padded[: len(xs)] = xs
        return np.asarray(self._answer(params, state, padded))[: len(xs)]
