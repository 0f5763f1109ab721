"""Random Fourier features: a linear learner on cosines of random directions approximates one with a Gaussian kernel."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from norewind.core.trees import Tree
from norewind.engines.kernels import kernel
from norewind.learners.learner import Forecasts, RowLearner

# The widths of the kernels, in mean squared distances of two standardised rows.
WIDTHS = (0.25, 1.0)


class RandomFeatures(RowLearner):
    """Passes random Fourier features of the inputs (Rahimi & Recht, 2007) to another learner of rows.

    The features are √2 cos(wᵀx + b), with b uniform and w normal. Half of them approximate a Gaussian kernel whose
    width is half the usual distance between two rows; for the other half, the width is that distance.

    Args:
        learner: a learner of rows with `features` inputs.
        inputs: the number of inputs that are used; any further ones are ignored.
        features: the number of features.
    """

    def __init__(self, learner: Any, inputs: int, features: int):
        self.learner = learner
        self.steps: Sequence[int] = learner.steps  # pyright: ignore[reportIncompatibleVariableOverride]
        noise, widths = np.random.default_rng(0), np.resize(WIDTHS, features)
        directions = noise.normal(size=(inputs, features)) / np.sqrt(widths * 2 * inputs)
        self._directions = directions.astype(np.float32)
        self._shifts = noise.uniform(0, 2 * np.pi, features).astype(np.float32)

    def init(self) -> Tree:
        """Start a run of the other learner."""
        return self.learner.init()

    def features_of(self, xs: np.ndarray) -> np.ndarray:
        """Return the features of rows.

        Args:
            xs: inputs (rows, inputs).
        """
        features = np.empty((len(xs), len(self._shifts)), np.float32)
        _write_features(np.ascontiguousarray(xs, np.float32), self._directions, self._shifts, features)
        return features

    def scan(
        self, run: Tree, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[Tree, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`."""
        return self.learner.scan(run, self.features_of(xs), targets, count=count, outputs=outputs)

    def forward(self, run: Tree, xs: np.ndarray, *, count: int | None = None) -> tuple[Tree, Forecasts]:
        return self.learner.forward(run, self.features_of(xs), count=count)

    def upcoming(self, run: Tree) -> np.ndarray:
        return self.learner.upcoming(run)

    def reset(self, run: Tree) -> Tree:
        return self.learner.reset(run)


@kernel
def _write_features(xs, directions, shifts, features):
    """Write the features of each row. Row by row, since a product of matrices would round by the size of a chunk."""
    for t in range(len(xs)):
        features[t] = shifts
        for i in range(len(directions)):
            for j in range(len(shifts)):
                features[t, j] += xs[t, i] * directions[i, j]
        for j in range(len(shifts)):
            features[t, j] = np.sqrt(2.0) * np.cos(features[t, j])
