"""Learners side by side on the same rows: the members of a mixture."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from norewind.learners.protocol import Learner


def scan_all(learners: Sequence[Learner], runs: tuple, xs: Any, targets: Any, count: int) -> tuple[tuple, list]:
    """Each learner learns from the same chunk: their runs, and what each has predicted."""
    done = [
        learner.scan(run, xs, targets, count=count, outputs=True) for learner, run in zip(learners, runs, strict=True)
    ]
    return tuple(run for run, _ in done), [seen for _, (_, seen) in done]


def forward_all(learners: Sequence[Learner], runs: tuple, xs: Any, count: int) -> tuple[tuple, list]:
    """Each learner answers the same chunk without learning: their runs, and what each has predicted."""
    done = [learner.forward(run, xs, count=count) for learner, run in zip(learners, runs, strict=True)]
    return tuple(run for run, _ in done), [seen for _, seen in done]


def reset_all(learners: Sequence[Learner], runs: tuple) -> tuple:
    """Each learner begins a new sequence."""
    return tuple(learner.reset(run) for learner, run in zip(learners, runs, strict=True))


def forecasts_of(seen: Sequence, horizon: int, rows: int, outputs: int) -> np.ndarray:
    """The forecasts made at rows, from what members have predicted: (rows, forecasts, outputs)."""
    made = [np.asarray(part[0] if horizon else part, np.float32).reshape(rows, -1, outputs) for part in seen]
    return np.concatenate(made, axis=1) if made else np.empty((rows, 0, outputs), np.float32)
