"""Learners side by side on the same samples."""

from collections.abc import Sequence
from typing import Any

from norewind.learners.ahead import one_answer, one_step


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


def one_all(learners: Sequence[Any], runs: Sequence, x: Any, target: Any, horizon: int) -> tuple[tuple, list]:
    """Each learner learns from one row inside a compiled function: `(runs, outputs)`, those made at this row."""
    if horizon:
        done = [learner.one(run, x, target) for learner, run in zip(learners, runs, strict=True)]
    else:
        done = [one_step(learner, run, x, target) for learner, run in zip(learners, runs, strict=True)]
    return tuple(run for run, _, _ in done), [made[0] if horizon else made for _, _, made in done]


def answer_all(learners: Sequence[Any], runs: Sequence, x: Any, horizon: int) -> tuple[tuple, list]:
    """Each learner answers one row inside a compiled function: `(runs, outputs)`."""
    if horizon:
        done = [learner.answer(run, x) for learner, run in zip(learners, runs, strict=True)]
    else:
        done = [one_answer(learner, run, x) for learner, run in zip(learners, runs, strict=True)]
    return tuple(run for run, _ in done), [made[0] if horizon else made for _, made in done]


def reset_all(learners: Sequence[Any], runs: Sequence) -> tuple:
    return tuple(learner.reset(run) for learner, run in zip(learners, runs, strict=True))


def carry_all(learners: Sequence[Any], runs: Sequence) -> tuple:
    return tuple(learner.carry(run) for learner, run in zip(learners, runs, strict=True))
