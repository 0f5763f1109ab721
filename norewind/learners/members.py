"""Learners side by side on the same samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def scan_all(learners: Sequence[Any], runs: Sequence, xs: Any, targets: Sequence, count: Any) -> tuple:
    """Each learner learns from the same chunk, with targets of its own: `(runs, losses, outputs)`, one of each."""
    done = [
        learner.scan(run, xs, own, count=count, outputs=True)
        for learner, run, own in zip(learners, runs, targets, strict=True)
    ]
    return tuple(run for run, _ in done), [losses for _, (losses, _) in done], [made for _, (_, made) in done]


def forward_all(learners: Sequence[Any], runs: Sequence, xs: Any, count: Any) -> tuple[tuple, list]:
    """Each learner answers the same chunk without learning: `(runs, outputs)`."""
    done = [learner.forward(run, xs, count=count) for learner, run in zip(learners, runs, strict=True)]
    return tuple(run for run, _ in done), [made for _, made in done]


def reset_all(learners: Sequence[Any], runs: Sequence) -> tuple:
    return tuple(learner.reset(run) for learner, run in zip(learners, runs, strict=True))


def carry_all(learners: Sequence[Any], runs: Sequence) -> tuple:
    return tuple(learner.carry(run) for learner, run in zip(learners, runs, strict=True))


def beside(seen: Sequence, horizon: int, shape: tuple[int, int]) -> np.ndarray:
    """The forecasts made at rows, from what learners have shown: (rows, forecasts, outputs), for outputs of `shape`."""
    made = [np.asarray(part[0] if horizon else part, np.float32).reshape(shape[0], -1, shape[1]) for part in seen]
    return np.concatenate(made, axis=1) if made else np.empty((shape[0], 0, shape[1]), np.float32)
