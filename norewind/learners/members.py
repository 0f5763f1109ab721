"""The members of a mixture: several learners that run on the same rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.learners.learner import Learner


class Member(NamedTuple):
    """A learner inside a mixture.

    Attributes:
        learner: a learner of the same steps and targets as the mixture.
        run: the run it starts from.
        forecasts: how many forecasts its outputs hold side by side. Each is an expert of the mixture.
    """

    learner: Learner
    run: Any
    forecasts: int = 1


def scan_all(
    learners: Sequence[Learner], runs: Sequence, xs: Any, targets: Any, count: int
) -> tuple[tuple, list[np.ndarray]]:
    """Let each learner learn from the same chunk.

    Args:
        learners: the learners.
        runs: their runs, in the same order; they must not be used afterwards.
        xs: inputs, one entry per step.
        targets: their targets.
        count: the number of steps to use.

    Returns:
        Their new runs, and the outputs of each.
    """
    new, outputs = [], []
    for learner, run in zip(learners, runs, strict=True):
        run, _, made = learner.scan(run, xs, targets, count=count, outputs=True)
        new.append(run)
        outputs.append(made)
    return tuple(new), outputs


def forward_all(
    learners: Sequence[Learner], runs: Sequence, xs: Any, count: int | None
) -> tuple[tuple, list[np.ndarray]]:
    """Let each learner predict the same chunk without learning.

    Args:
        learners: the learners.
        runs: their runs, in the same order, which stay unchanged.
        xs: inputs, one entry per sample.
        count: the number of samples to use; None for all of them.

    Returns:
        Their new runs, and the outputs of each.
    """
    new, outputs = [], []
    for learner, run in zip(learners, runs, strict=True):
        run, made = learner.forward(run, xs, count=count)
        new.append(run)
        outputs.append(made)
    return tuple(new), outputs


def reset_all(learners: Sequence[Learner], runs: Sequence) -> tuple:
    """Begin a new sequence for each learner.

    Args:
        learners: the learners.
        runs: their runs, in the same order; they must not be used afterwards.
    """
    return tuple(learner.reset(run) for learner, run in zip(learners, runs, strict=True))


def join_forecasts(outputs: Sequence, horizon: int, rows: int, width: int) -> np.ndarray:
    """Join the forecasts that all members made at the same rows.

    Args:
        outputs: the outputs of each member.
        horizon: the horizon; with one, outputs are `Forecasts`.
        rows: the number of rows.
        width: the number of values of one forecast.

    Returns:
        The forecasts (rows, forecasts, width).
    """
    if not outputs:
        return np.empty((rows, 0, width), np.float32)
    made = [np.asarray(part.made if horizon else part, np.float32).reshape(rows, -1, width) for part in outputs]
    return made[0] if len(made) == 1 else np.concatenate(made, axis=1)
