"""A learner and its functions for single rows, built once for all models that are alike."""

from functools import lru_cache
from typing import Any

import jax
import numpy as np

from norewind.packing import Single
from norewind.runs.build import Built, Shape, build
from norewind.runs.settings import Settings


class Plain:
    """What `Single` is, for learners that take windows of rows. Nothing is packed."""

    def __init__(self, learner: Any):
        self.learner = learner

    def pack(self, run: Any) -> Any:
        return run

    unpacked = pack

    def answer(self, run: Any, x: np.ndarray) -> tuple[Any, Any]:
        run, outputs = self.learner.forward(run, x[None], count=1)
        return run, jax.tree.map(lambda leaf: leaf[0], outputs)


@lru_cache(maxsize=16)
def built_once(settings: Settings, shape: Shape) -> tuple[Built, Any]:
    """A learner and its compiled functions, shared by all models with the same settings and columns."""
    built = build(settings, shape)
    return built, Single(built.learner, built.run) if built.window == 1 else Plain(built.learner)
