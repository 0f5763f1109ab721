"""A run in its folder: begun, interrupted, resumed."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from norewind.checkpoint import CheckpointError, DamagedError, checkpoints, read
from norewind.files import write_atomically
from norewind.training.figure import draw_curves
from norewind.training.fit import Fitted, fit
from norewind.training.lock import locked
from norewind.training.logs import Log, as_lines, read_log
from norewind.training.model import Trained, build
from norewind.training.opening import Opened, open_stream
from norewind.training.progress import ProgressLine
from norewind.training.scores import SymbolScore, row_unit
from norewind.training.settings import CHANGEABLE, Settings, SettingsError, read_toml, write_toml

SETTINGS, METRICS, PREDICTIONS, CURVE = "settings.toml", "metrics.jsonl", "predictions.jsonl", "curve.png"


class Newest(NamedTuple):
    """The newest checkpoint of a run: its file, its arrays, and what is written beside them. All empty without one."""

    path: Path | None
    arrays: dict[str, np.ndarray]
    extra: dict[str, Any]


def refuse_another_run(folder: Path) -> None:
    """A new run may begin where none has got to its first checkpoint."""
    if checkpoints(folder / "checkpoints"):
        raise SettingsError(
            f"{folder} already holds a run. Go on with it (norewind resume {folder}), or choose another --out."
        )


def settings_of(folder: Path) -> Settings:
    """The settings of the run in a folder."""
    if not (folder / SETTINGS).exists():
        raise SettingsError(f"{folder} holds no run: there is no {SETTINGS} in it. Begin one with norewind train.")
    return read_toml(folder / SETTINGS)


def newest_checkpoint(
    folder: Path, damaged: Literal["fail", "skip"] = "fail", say: Callable[[str], None] = lambda line: None
) -> Newest:
    """The newest checkpoint of a run. A damaged one is an error, or is put aside in favour of the one before."""
    aside = []
    for path in reversed(checkpoints(folder / "checkpoints")):
        try:
            newest = Newest(path, *read(path))
        except DamagedError as error:
            if damaged == "fail":
                raise CheckpointError(
                    f"{error} To go on from the checkpoint before it: norewind resume {folder} --damaged skip"
                ) from None
            say(f"{error} Going on from the one before.")
            aside.append(path)
        except CheckpointError:
            if path.exists():
                raise
            # A run that goes on meanwhile has dropped it for a newer one.
            return newest_checkpoint(folder, damaged, say)
        else:
            for other in aside:
                other.rename(other.with_suffix(".damaged"))
            return newest
    if aside:
        raise CheckpointError(f"{folder}: all its checkpoints are damaged. Start a new run in another folder.")
    return Newest(None, {}, {})


def check_same(folder: Path, settings: Settings, extra: dict[str, Any]) -> None:
    """A checkpoint goes on only under the settings that it was made with."""
    made_with, now = extra.get("settings", {}), json.loads(json.dumps(settings.as_json()))
    for name in sorted((made_with.keys() | now.keys()) - CHANGEABLE):
        if made_with.get(name) != now.get(name):
            raise SettingsError(
                f"{folder / SETTINGS} says {name} = {now.get(name)!r}, but the checkpoint was made with "
                f"{made_with.get(name)!r}. Put it back, or start a new run."
            )


def run_training(
    folder: Path,
    settings: Settings,
    *,
    new: bool = False,
    quiet: bool = False,
    continues: bool = False,
    damaged: Literal["fail", "skip"] = "fail",
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Fitted, Opened]:
    """Train in a folder, from its newest checkpoint if it has one, and draw the learning curve."""
    # Held from here on: what is read of it here must still hold when training begins.
    with locked(folder):
        if new:
            refuse_another_run(folder)
        extra = newest_checkpoint(folder, damaged, ProgressLine("", 0, None, quiet).say).extra
        if extra:
            check_same(folder, settings, extra)
        position = extra.get("position") or {}
        opened = open_stream(
            settings, position.get("stream"), extra.get("score"), continues=continues, stop=should_stop
        )
        trained = build(settings, opened.shape)
        if new:
            # Not before the stream and the model are known to be possible: a mistake leaves nothing behind.
            write_atomically(folder / SETTINGS, write_toml(settings).encode())
        fitted = _fit(folder, settings, opened, trained, extra, quiet, should_stop)
        draw_curves([(str(folder), read_log(folder / METRICS))], opened.score.unit, folder / CURVE)
    return fitted, opened


def _fit(
    folder: Path,
    settings: Settings,
    opened: Opened,
    trained: Trained,
    extra: dict[str, Any],
    quiet: bool,
    should_stop: Callable[[], bool],
) -> Fitted:
    total = None if settings.samples is None else int(settings.samples)
    progress = ProgressLine(opened.score.unit, extra.get("samples", 0), total, quiet)
    logs = []
    if settings.predictions == "file":
        logs.append(Log(folder / PREDICTIONS, extra.get("logs", {}).get(PREDICTIONS, 0)))
    events = Events(folder, extra.get("samples", 0)) if settings.tensorboard else None
    try:
        return fit(
            lambda _: opened.stream,
            trained.learner,
            trained.run,
            memory=trained.memory,
            samples=total,
            folder=folder,
            metrics_every=settings.metrics_every,
            checkpoint_every=settings.checkpoint_every,
            checkpoint_seconds=settings.checkpoint_seconds or None,
            keep=settings.keep,
            on_metrics=events.write if events else lambda line: None,
            on_chunk=progress.chunk,
            on_predictions=_predictions(settings, opened, logs),
            should_stop=should_stop,
            patience=settings.flush,
            score=opened.score,
            watch=settings.watch,
            logs=logs,
            about={"settings": settings.as_json()},
        )
    finally:
        progress.close()
        if events:
            events.close()


def unit_of(settings: Settings) -> str:
    """What the losses of a run are measured in."""
    if settings.kind in ("csv", "jsonl"):
        return row_unit(settings.loss == "gaussian")
    return SymbolScore.unit


def _predictions(settings: Settings, opened: Opened, logs: list[Log]) -> Callable | None:
    """Where predictions go, if anywhere."""
    if settings.predictions == "none":
        return None

    def write(first, samples, outputs):
        entries = opened.score.predictions(first, samples, outputs)
        if logs:
            logs[0].write(entries)
        else:
            print_lines(entries)

    return write


def print_lines(entries: Iterable[dict[str, Any]]) -> None:
    """JSON lines on the standard output, at once; UTF-8 whatever the terminal speaks."""
    sys.stdout.flush()
    sys.stdout.buffer.write(as_lines(entries))
    sys.stdout.buffer.flush()


class Events:
    """Lines of metrics as events for TensorBoard."""

    def __init__(self, folder: Path, samples: int):
        """Go on after so many samples."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise SettingsError(
                "tensorboard: the package tensorboardX is not installed: pip install 'norewind[tensorboard]'"
            ) from None
        # Events after the checkpoint come again: TensorBoard is told to forget the first ones.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=samples + 1)

    def write(self, line: dict[str, Any]) -> None:
        """One event for every number in a line."""
        for name, value in line.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, line["samples"])
        self._writer.flush()

    def close(self) -> None:
        """Wait until all are written: that happens in the background."""
        self._writer.close()
