"""One run of a sweep: trained in its folder, and summed up in a record."""

import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from norewind.checks import ModelError
from norewind.learner import NonFiniteError
from norewind.runs.build import set_precision
from norewind.runs.fit import Hooks
from norewind.runs.folder import METRICS, RunFolder, read_log
from norewind.runs.metrics import Diverged
from norewind.runs.record import Record
from norewind.runs.settings import SETTINGS, Settings, SettingsError, read_toml
from norewind.runs.train import train, unit_of
from norewind.trees import Tree, is_key


class Clock:
    """CPU time per sample: the best of all chunks, since other processes only ever add to it."""

    def __init__(self):
        self.best: float | None = None
        self._last: tuple[float, int] | None = None

    def chunk(self, samples: int, loss: float) -> None:
        now = time.process_time()
        # The first chunk compiles.
        if self._last is not None:
            spent = (now - self._last[0]) / (samples - self._last[1])
            self.best = spent if self.best is None else min(self.best, spent)
        self._last = time.process_time(), samples


def trial(settings: Settings, path: Path, hooks: Hooks, clock: Clock) -> Record | None:
    """Train a run to its end, and return its record without versions; None if it was interrupted.

    A method that refuses the model and a run that diverges have a record too: its
    `problem` says what happened.
    """
    set_precision(settings)
    if (path / SETTINGS).exists() and read_toml(path / SETTINGS) != settings:
        shutil.rmtree(path)  # left by another plan that used the same name
    problem, diverged_at, carried, resumed = None, None, None, False
    with RunFolder(path, keep=1) as folder:
        resumed = folder.saved is not None
        folder.new = not resumed
        try:
            carried = carried_bytes(train(settings, folder, hooks=hooks).fitted.run.carry)
        except (ModelError, SettingsError) as error:
            problem = f"refused: {error}"
        except NonFiniteError as error:
            diverged_at, carried = int(error.run.samples) + 1, carried_bytes(error.run.carry)
            problem = f"diverged: sample {diverged_at} gave numbers that are not finite"
        except Diverged as error:
            diverged_at, problem = error.samples, f"diverged: {error}"
    if hooks.should_stop():
        return None
    lines = read_log(path / METRICS)
    return {
        "settings": settings.as_json(),
        "seconds": lines[-1]["seconds"] if lines else 0.0,
        "cpu_seconds": None if resumed else round(time.process_time(), 1),
        "microseconds": None if clock.best is None else _digits(1e6 * clock.best),
        "carried_bytes": carried,
        "samples": lines[-1]["samples"] if lines else 0,
        "problem": problem,
        "diverged_at": diverged_at,
        "unit": unit_of(settings),
        "mean": _digits(lines[-1]["mean"]) if lines else None,
        "every": settings.metrics_every,
        "curve": [_digits(line["loss"]) for line in lines],
        "baseline": [_digits(line.get("baseline")) for line in lines],
        **({"persistence": [_digits(line["persistence"]) for line in lines]} if _has(lines, "persistence") else {}),
        "carry": [_digits(line["carry"]) for line in lines],
    }


def carried_bytes(carry: Tree) -> int:
    """The bytes that a method carries from step to step in place of the past."""
    leaves = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(carry))
    return sum(leaf.nbytes for leaf in leaves)


def _has(lines: list[dict[str, Any]], name: str) -> bool:
    return bool(lines) and name in lines[0]


def _digits(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")
