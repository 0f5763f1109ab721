"""A run in its folder: begun, interrupted, resumed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from norewind.checkpoint import CheckpointError, checkpoints, read
from norewind.files import write_atomically
from norewind.training.figure import draw_curves
from norewind.training.fit import Fitted, fit
from norewind.training.logs import Log, read_log
from norewind.training.model import build
from norewind.training.opening import Opened, open_stream
from norewind.training.progress import ProgressLine
from norewind.training.scores import SymbolScore, row_unit
from norewind.training.settings import CHANGEABLE, Settings, SettingsError, read_toml, write_toml

SETTINGS, METRICS, PREDICTIONS, CURVE = "settings.toml", "metrics.jsonl", "predictions.jsonl", "curve.png"


def begin(folder: Path, settings: Settings) -> None:
    """Make the folder of a new run, with its settings. One where nothing was learned yet may begin again."""
    if read_log(folder / METRICS) or checkpoints(folder / "checkpoints"):
        raise SettingsError(
            f"{folder} already holds a run. Go on with it (norewind resume {folder}), or choose another --out."
        )
    write_atomically(folder / SETTINGS, write_toml(settings).encode())


def settings_of(folder: Path) -> Settings:
    """The settings of the run in a folder."""
    if not (folder / SETTINGS).exists():
        raise SettingsError(f"{folder} holds no run: there is no {SETTINGS} in it. Begin one with norewind train.")
    return read_toml(folder / SETTINGS)


def newest_checkpoint(
    folder: Path, damaged: Literal["fail", "skip"] = "fail", say: Callable[[str], None] = lambda line: None
) -> tuple[Path | None, dict[str, Any]]:
    """The newest checkpoint of a run and what is written beside it; (None, {}) if there is none yet.

    A damaged one is an error, or is put aside in favour of the one before.
    """
    for path in reversed(checkpoints(folder / "checkpoints")):
        try:
            return path, read(path)[1]
        except CheckpointError as error:
            if damaged == "fail":
                raise CheckpointError(
                    f"{error} To go on from the checkpoint before it: norewind resume {folder} --damaged skip"
                ) from None
            say(f"{error} Going on from the one before.")
            path.rename(path.with_suffix(".damaged"))
    return None, {}


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
    quiet: bool = False,
    continues: bool = False,
    damaged: Literal["fail", "skip"] = "fail",
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Fitted, Opened]:
    """Train in a folder, from its newest checkpoint if it has one, and draw the learning curve."""
    progress = ProgressLine("", 0, None, quiet)
    _, extra = newest_checkpoint(folder, damaged, progress.say)
    if extra:
        check_same(folder, settings, extra)
    position = extra.get("position") or {}
    opened = open_stream(settings, position.get("stream"), extra.get("score"), continues=continues, stop=should_stop)
    trained = build(settings, opened.shape)
    total = None if settings.samples is None else int(settings.samples)
    progress = ProgressLine(opened.score.unit, extra.get("samples", 0), total, quiet)
    logs = []
    if settings.predictions == "file":
        logs.append(Log(folder / PREDICTIONS, extra.get("logs", {}).get(PREDICTIONS, 0)))
    events = _events(folder, extra.get("samples", 0)) if settings.tensorboard else None
    try:
        fitted = fit(
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
            on_metrics=events or (lambda line: None),
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
    draw_curves([(str(folder), read_log(folder / METRICS))], opened.score.unit, folder / CURVE)
    return fitted, opened


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
            sys.stdout.write("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))
            sys.stdout.flush()

    return write


def _events(folder: Path, samples: int) -> Callable[[dict[str, Any]], None]:
    """A function that writes lines of metrics as events for TensorBoard."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise SettingsError(
            "tensorboard: the package tensorboardX is not installed: pip install 'norewind[tensorboard]'"
        ) from None
    # Events after the checkpoint come again: TensorBoard is told to forget the first ones.
    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=samples + 1)

    def write(line):
        for name, value in line.items():
            if isinstance(value, float):
                writer.add_scalar(name, value, line["samples"])
        writer.flush()

    return write
