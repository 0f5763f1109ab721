"""One run of next-character prediction, from its setting to its record."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

import norewind
from norewind.cells import Cell
from norewind.checkpoint import checkpoints, load, save
from norewind.experiments.records import versions
from norewind.experiments.settings import TextSetting
from norewind.learner import Learner, NonFiniteError, Run
from norewind.losses import BIT
from norewind.trees import norm

SECONDS_BETWEEN_CHECKPOINTS = 30
RECENT = 100_000
"""The paper's table shows the mean loss of the last 10⁵ characters."""


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint is on disk."""


def start(setting: TextSetting) -> tuple[Learner, Run]:
    """The learner of a setting, and its run before the first character.

    The weights, the noise and the text all depend on the seed.
    """
    cell, learner = _cell_and_learner(replace(setting, seed=0))
    weights, noise = jax.random.split(jax.random.key(setting.seed))
    return learner, learner.init(cell.init(weights), cell.initial_state(), noise)


@lru_cache(maxsize=8)
def _cell_and_learner(setting: TextSetting) -> tuple[Cell, Learner]:
    """Built once for all seeds in a process, so that it is compiled once."""
    symbols = len(setting.text().alphabet)
    cell = getattr(norewind.cells, setting.cell)(symbols, setting.units, symbols)
    model = (cell.transition, norewind.losses.cross_entropy)
    if setting.memory > 1:
        model = norewind.window(*model)
    estimator = norewind.uoro(*model, rho=setting.rho) if setting.method == "uoro" else norewind.bptt(*model)
    return cell, norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(setting.rate, setting.alpha)))


def train(
    setting: TextSetting,
    *,
    checkpoint: Path | None = None,
    report: Callable[[int, float], None] = lambda characters, bpc: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train as a setting says and return the record. Goes on from the checkpoint, in a folder, where there is one.

    `report(characters, bpc)` is called after every chunk with the mean loss of that chunk.
    """
    began = time.perf_counter()
    learner, run = start(setting)
    chunk, total = setting.chunk, setting.characters // setting.chunk
    curve, influence, earlier = [], [], 0.0
    found = [] if checkpoint is None else checkpoints(checkpoint)
    if found:
        run, extra = load(found[-1], run)
        curve, influence, earlier = extra["curve"], extra["influence"], extra["seconds"]

    def seconds():
        return earlier + time.perf_counter() - began

    def keep():
        if checkpoint is not None:
            extra = {"curve": curve, "influence": influence, "seconds": seconds()}
            save(checkpoint, len(curve) * chunk, run, extra, keep=1)

    kept, failure = time.perf_counter(), None
    pairs = setting.text().pairs(setting.seed, chunk, start=len(curve) * chunk)
    while len(curve) < total:
        try:
            run, losses = learner.scan(run, *map(_windows(setting.memory), next(pairs)))
        except NonFiniteError as error:
            failure = error.step * setting.memory
            break
        curve.append(float(np.asarray(losses, np.float64).sum()) / BIT / chunk)
        if len(curve) % max(1, total // 100) == 0:
            influence.append(_influence(setting, run))
        report(len(curve) * chunk, curve[-1])
        stop = should_stop()
        if stop or time.perf_counter() - kept > SECONDS_BETWEEN_CHECKPOINTS:
            keep()
            kept = time.perf_counter()
        if stop:
            raise Interrupted

    return {
        "setting": setting.as_json(),
        **versions(),
        "seconds": round(seconds(), 1),
        **summary(setting, curve, failure),
        "chunk": chunk,
        "curve": [round(value, 5) for value in curve],
        "influence": [float(f"{value:.3g}") for value in influence],
    }


def summary(setting: TextSetting, curve: list[float], not_finite_at: int | None = None) -> dict[str, Any]:
    """The final numbers of a run, in bits per character.

    A run that became worse than halfway from the memoryless level to the mere
    frequencies of the characters has lost what it knew: it counts as diverged, and so
    does one with numbers that are not finite. `diverged_at` says when.
    """
    text = setting.text()
    recent = max(1, round(min(RECENT, setting.characters / 10) / setting.chunk))
    limit = (text.naive + text.unigram) / 2
    last = float(np.mean(curve[-recent:])) if curve else float("nan")
    diverged_at = not_finite_at
    if not_finite_at is None and last > limit:
        good = [i for i, value in enumerate(curve) if value < limit]
        diverged_at = (good[-1] + 1) * setting.chunk if good else 0
    return {
        "recent": round(last, 5) if np.isfinite(last) else None,
        "recent_characters": recent * setting.chunk,
        "cumulated": round(float(np.mean(curve)), 5) if curve else None,
        "finite": not_finite_at is None,
        "diverged_at": diverged_at,
    }


def _windows(memory: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda symbols: symbols if memory == 1 else symbols.reshape(-1, memory)


def _influence(setting: TextSetting, run: Run) -> float:
    """‖s̃‖ ‖θ̃‖, the size of the influence that UORO carries; 0 for truncated BPTT, which carries none."""
    if setting.method == "bptt":
        return 0.0
    return float(norm(run.carry.s_tilde) * norm(run.carry.theta_tilde))
