"""One run of a sweep: trained to its end in its own folder, and summarized in a record."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import jax

from norewind.core.checks import ModelError
from norewind.core.run import NonFiniteError
from norewind.core.trees import Tree, is_key
from norewind.scoring.metrics import Diverged, digits
from norewind.sweeps.record import Record
from norewind.training.fit import Hooks
from norewind.training.folder import METRICS, RunFolder
from norewind.training.log import read_log
from norewind.training.settings import SETTINGS, Settings, SettingsError, read_toml
from norewind.training.train import train, unit_of

# The minimum number of samples in a chunk whose CPU time counts.
LONG_ENOUGH = 256


class Clock:
    """CPU time per sample: the best of all chunks, since other processes can only increase it."""

    best: float | None = None
    _last: tuple[float, int] | None = None

    def chunk(self, samples: int, loss: float) -> None:
        """Note the time after a chunk. This is a hook of `fit`.

        Args:
            samples: the total number of samples.
            loss: ignored.
        """
        now = time.process_time()
        # The first chunk includes compilation, and the time of a short one is mostly overhead.
        if self._last is not None and samples - self._last[1] >= LONG_ENOUGH:
            spent = (now - self._last[0]) / (samples - self._last[1])
            self.best = spent if self.best is None else min(self.best, spent)
        self._last = time.process_time(), samples


def trial(settings: Settings, path: Path, hooks: Hooks, clock: Clock) -> Record | None:
    """Train a run to its end.

    If a method rejects the model or a run diverges, there is a record too: its `problem`
    says what happened.

    Args:
        settings: the settings of the run.
        path: its run folder.
        hooks: functions to call along the way.
        clock: the clock that `hooks` drive.

    Returns:
        The record of the run, without versions; None if it was interrupted.
    """
    # Curves can be compared only if their points are at the same samples.
    trained = settings if settings.metrics_every else replace(settings, metrics_every=10_000)
    if (path / SETTINGS).exists() and read_toml(path / SETTINGS) != trained:
        shutil.rmtree(path)  # left by another plan that used the same name
    problem, diverged_at, carried = None, None, None
    with RunFolder(path) as folder:
        resumed = folder.saved is not None
        folder.new = not resumed
        try:
            fitted, _ = train(trained, folder, hooks=hooks)
            carried = carried_bytes(fitted.carry)
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
    last = lines[-1] if lines else {}
    return {
        "settings": settings.as_json(),
        "seconds": last.get("seconds", 0.0),
        "cpu_seconds": None if resumed else round(time.process_time(), 1),
        "microseconds": None if clock.best is None else digits(1e6 * clock.best),
        "carried_bytes": carried,
        "samples": last.get("samples", 0),
        "problem": problem,
        "diverged_at": diverged_at,
        "unit": unit_of(settings),
        "mean": digits(last.get("mean")),
        "every": settings.metrics_every or 10_000,
        "curve": [digits(line["loss"]) for line in lines],
        "baseline": [digits(line.get("baseline")) for line in lines],
        **({"persistence": [digits(line["persistence"]) for line in lines]} if "persistence" in last else {}),
        "carry": [digits(line["carry"]) for line in lines],
    }


def carried_bytes(carry: Tree) -> int:
    leaves = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(carry))
    return sum(leaf.nbytes for leaf in leaves)
