"""Helpers to run several learners, the members of a mixture, on the same rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from norewind.learners.learner import Learner


def scan_all(learners: Sequence[Learner], runs: tuple, xs: Any, targets: Any, count: int) -> tuple[tuple, list]:
    """Let each learner learn from the same chunk.

    Args:
        learners: the learners.
        runs: their runs.
        xs: the inputs.
        targets: the targets.
        count: the number of steps to use.

    Returns:
        Their new runs, and the outputs of each.
    """
    done = [
        learner.scan(run, xs, targets, count=count, outputs=True) for learner, run in zip(learners, runs, strict=True)
    ]
    return tuple(run for run, _, _ in done), [seen for _, _, seen in done]


def forward_all(learners: Sequence[Learner], runs: tuple, xs: Any, count: int) -> tuple[tuple, list]:
    """Let each learner predict the same chunk without learning.

    Args:
        learners: the learners.
        runs: their runs.
        xs: the inputs.
        count: the number of samples to use.

    Returns:
        Their new runs, and the outputs of each.
    """
    done = [learner.forward(run, xs, count=count) for learner, run in zip(learners, runs, strict=True)]
    return tuple(run for run, _ in done), [seen for _, seen in done]


def reset_all(learners: Sequence[Learner], runs: tuple) -> tuple:
    """Begin a new sequence for each learner.

    Args:
        learners: the learners.
        runs: their runs.
    """
    return tuple(learner.reset(run) for learner, run in zip(learners, runs, strict=True))


def forecasts_of(seen: Sequence, horizon: int, rows: int, outputs: int) -> np.ndarray:
    """Collect the forecasts made at rows by all members.

    Args:
        seen: the outputs of each member.
        horizon: the horizon; with one, outputs are pairs.
        rows: the number of rows.
        outputs: the number of outputs of one forecast.

    Returns:
        The forecasts (rows, forecasts, outputs).
    """
    made = [np.asarray(part[0] if horizon else part, np.float32).reshape(rows, -1, outputs) for part in seen]
    return np.concatenate(made, axis=1) if made else np.empty((rows, 0, outputs), np.float32)
