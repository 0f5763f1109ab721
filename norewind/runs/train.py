"""One run, from its settings to its folder: started, interrupted, resumed; and, in a sweep, to its record."""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax

from norewind.checks import ModelError
from norewind.files import naming
from norewind.learner import NonFiniteError
from norewind.runs.build import Opened, build, open_stream, set_precision
from norewind.runs.fit import Fitted, Hooks, Intervals, fit
from norewind.runs.folder import METRICS, PREDICTIONS, RunFolder, as_lines, read_log
from norewind.runs.metrics import Diverged, digits
from norewind.runs.progress import Progress
from norewind.runs.record import Record
from norewind.runs.scores import ROW_UNITS, SymbolScore
from norewind.runs.settings import SETTINGS, Settings, SettingsError, read_toml
from norewind.trees import Tree, is_key


def train(
    settings: Settings,
    folder: RunFolder,
    *,
    continues: bool = False,
    progress: Progress | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008 (frozen)
) -> tuple[Fitted, Opened]:
    """Train in a run folder, from its newest checkpoint if it has one. Also returns the stream, which is closed.

    Args:
        settings: what to train.
        folder: where, entered by the caller.
        continues: the source starts where the checkpoint was written, instead of at its beginning.
        progress: shows how far the run is.
        hooks: functions to call along the way, beside those that write what the settings ask for.
    """
    set_precision(settings)
    if folder.saved:
        folder.saved.check_settings(settings)
    position = folder.entries.get("position", {}).get("stream")
    opened = open_stream(settings, position, continues=continues, stop=hooks.should_stop)
    with opened.stream:
        built = build(settings, opened.shape)
        # Not before the stream and the model are known to work: a mistake leaves no settings behind.
        folder.begin(settings)
        with _hooks(settings, folder, opened, progress or Progress(quiet=True), hooks) as all_hooks:
            fitted = fit(
                opened.stream,
                built.learner,
                built.run,
                window=built.window,
                samples=None if settings.samples is None else int(settings.samples),
                folder=folder,
                intervals=Intervals(**{field.name: getattr(settings, field.name) for field in fields(Intervals)}),
                score=opened.score,
                watch=settings.watch,
                hooks=all_hooks,
            )
    return fitted, opened


@contextmanager
def _hooks(settings: Settings, folder: RunFolder, opened: Opened, progress: Progress, hooks: Hooks) -> Iterator[Hooks]:
    """The given hooks, with progress and what the settings ask for."""
    total = None if settings.samples is None else int(settings.samples)
    before, name = folder.entries.get("samples", 0), str(folder.path)
    with _events(folder.path, before) if settings.tensorboard else nullcontext() as events:
        progress.begin(name, opened.score.unit, before, total)

        def on_metrics(line):
            hooks.metrics(line)
            if events:
                for entry, value in line.items():
                    if isinstance(value, float):
                        events.add_scalar(entry, value, line["samples"])
                events.flush()

        def on_chunk(samples, loss):
            hooks.chunk(samples, loss)
            progress.advance(name, samples, loss)

        def on_predictions(*predicted):
            write(opened.score.predictions(*predicted))

        write = folder.log(PREDICTIONS).write if settings.predictions == "file" else print_lines
        predictions = None if settings.predictions == "none" else on_predictions
        yield replace(hooks, metrics=on_metrics, chunk=on_chunk, predictions=predictions)


def unit_of(settings: Settings) -> str:
    return ROW_UNITS[settings.loss] if settings.kind in ("csv", "jsonl") else SymbolScore.unit


def print_lines(entries: Iterable[dict[str, Any]]) -> None:
    """JSON lines on standard output, at once, in UTF-8 whatever the locale."""
    with naming("standard output"):
        sys.stdout.flush()
        sys.stdout.buffer.write(as_lines(entries))
        sys.stdout.buffer.flush()


def _events(folder: Path, samples: int) -> Any:
    """What writes lines of metrics as TensorBoard events, continued after `samples`."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise SettingsError(
            "tensorboard: the package tensorboardX is not installed: pip install 'norewind[tensorboard]'"
        ) from None
    # Events after the checkpoint come again: purge_step drops the first ones.
    return SummaryWriter(str(folder / "tensorboard"), purge_step=samples + 1)


class Clock:
    """CPU time per sample: the best of all chunks, since other processes only ever add to it."""

    best: float | None = None
    _last: tuple[float, int] | None = None

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
    if (path / SETTINGS).exists() and read_toml(path / SETTINGS) != settings:
        shutil.rmtree(path)  # left by another plan that used the same name
    problem, diverged_at, carried = None, None, None
    with RunFolder(path) as folder:
        resumed = folder.saved is not None
        folder.new = not resumed
        try:
            fitted, _ = train(settings, folder, hooks=hooks)
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
        "every": settings.metrics_every,
        "curve": [digits(line["loss"]) for line in lines],
        "baseline": [digits(line.get("baseline")) for line in lines],
        **({"persistence": [digits(line["persistence"]) for line in lines]} if "persistence" in last else {}),
        "carry": [digits(line["carry"]) for line in lines],
    }


def carried_bytes(carry: Tree) -> int:
    leaves = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(carry))
    return sum(leaf.nbytes for leaf in leaves)
