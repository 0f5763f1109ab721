"""Training in a folder, in shards or on the partitions of a topic, for the commands. (Imports JAX.)"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from norewind.cli.common import until_stopped
from norewind.scoring.class_score import ClassScore
from norewind.scoring.metrics import mean_of_last_part
from norewind.scoring.number_score import KeyedScore
from norewind.scoring.row_score import RowScore
from norewind.scoring.score import Score
from norewind.streams import KeyedStream
from norewind.sweeps.partitions import train_partitions
from norewind.sweeps.shards import shard_summary, train_shards
from norewind.sweeps.workers import SweepError
from norewind.training.fit import FitResult
from norewind.training.folder import BY_STEP, CURVE, RECENT_FIGURE, RunFolder, read_settings
from norewind.training.hooks import Hooks
from norewind.training.log import METRICS, read_log
from norewind.training.open_stream import OpenedStream, loss_description
from norewind.training.progress import Progress
from norewind.training.settings import Settings, SettingsError
from norewind.training.train_folder import train_folder
from norewind.wording import counted, listed


def run_in_folder(
    command: str, path: Path, settings: Settings, *, quiet: bool, continues: bool = False, **hold: Any
) -> None:
    """Train in a folder, and end the process.

    Args:
        command: the name of the command.
        path: the run folder.
        settings: the settings of the run.
        quiet: print nothing unless something is wrong.
        continues: the source starts at the checkpoint, not at its beginning.
        hold: options of `RunFolder`.
    """
    with until_stopped(command, path) as stop:
        hooks = Hooks(should_stop=stop)
        with Progress(quiet=quiet) as progress, RunFolder(path, say=progress.say, **hold) as folder:
            fitted, opened = train_folder(settings, folder, continues=continues, progress=progress, hooks=hooks)
        draw_curves(path)
        summary = run_summary(path, fitted, opened)
        if not quiet:
            print(summary, file=sys.stderr)
            if stop():
                print(f"Stopped; nothing is lost. To continue: norewind resume {path}", file=sys.stderr)


def run_shards(command: str, path: Path, settings: Settings, *, quiet: bool, **workers: Any) -> None:
    """Train a fleet in shards, and end the process.

    Args:
        command: the name of the command, "train" or "resume".
        path: the run folder of the fleet.
        settings: its settings.
        quiet: print nothing unless something is wrong.
        workers: options of `train_shards`.
    """
    with until_stopped(command) as stop:
        try:
            with Progress(max(2, settings.shards), quiet=quiet) as progress:
                train_shards(settings, path, progress, new=command == "train", stop=stop, **workers)
        except SweepError as error:
            raise SweepError(f"{error}\nTo continue: norewind resume {path}") from None
        if stop():
            print(f"Stopped; nothing is lost. To continue: norewind resume {path}", file=sys.stderr)
        elif not quiet:
            print(shard_summary(path, settings.shards, KeyedStream.key_name), file=sys.stderr)


def run_partitions(path: Path, settings: Settings, *, quiet: bool) -> None:
    """Train the partitions of a topic that a group assigns to this process, and end the process.

    Args:
        path: the folder of the run folders.
        settings: the settings of the runs.
        quiet: print nothing unless something is wrong.
    """
    with until_stopped("train") as stop, Progress(None, quiet=quiet) as progress:
        train_partitions(settings, path, progress, stop)
        progress.say("Stopped; nothing is lost. To continue: run the same command again.")


def draw_curves(*paths: Path, out: Path | None = None) -> None:
    """Draw the learning curves of runs in one figure.

    Args:
        paths: the run folders.
        out: the file of the figure; by default curve.png in the first folder.

    Raises:
        SettingsError: the losses of the runs have different units.
    """
    from norewind.plotting import figures  # imports matplotlib

    losses = [loss_description(read_settings(path)) for path in paths]
    units = {loss.unit for loss in losses}
    if len(units) > 1:
        raise SettingsError(f"these runs are measured in {' and '.join(sorted(units))}: draw them separately.")
    curves = [(str(path), read_log(path / METRICS)) for path in paths]
    figures.save(figures.curves_figure(curves, *losses[0]), out or paths[0] / CURVE)


def _last_tenth(lines: list[dict[str, Any]], score: Score) -> str:
    """Describe the loss in the last tenth of a run, compared with simple ones. (For one series, a table follows.)"""
    ends = np.array([line["samples"] for line in lines])

    def mean(entry: str) -> tuple[int, float]:
        return mean_of_last_part(ends, np.array([line.get(entry) for line in lines], float), 0.1)

    latest, loss = mean("loss")
    simple = ("baseline", "persistence") if isinstance(score, KeyedScore) else ("baseline",)
    known = [f"{score.simple_forecasts[entry]}: {value:.4f}" for entry in simple if (value := mean(entry)[1]) == value]
    text = f", {loss:.4f} {score.unit} over the last {latest:,}" + (f" ({', '.join(known)})" if known else "")
    return text if loss == loss else ""


def run_summary(path: Path, fitted: FitResult, opened: OpenedStream) -> str:
    """Draw the figures that the learning curve does not cover, and return a summary of the run.

    Args:
        path: the run folder.
        fitted: the result of training.
        opened: the stream, which is closed.
    """
    score, stream = opened.score, opened.stream
    lines = read_log(path / METRICS)
    text = counted(fitted.samples, "sample")
    text += _last_tenth(lines, score) if lines else ""
    for reason, count in stream.counts.items():
        text += f", {count:,} {reason} skipped"
    if stream.unfinished:
        text += (
            f". The incomplete line at the end ({counted(stream.unfinished, 'byte')}) will be read when the file grows "
            f"(if the file is complete: norewind resume {path} --final)"
        )
    closing = score.closing_text(lines, path)
    figures = [path / CURVE, *_draw_details(path, score, fitted.samples, lines)]
    return "\n".join([f"{text}.", *([closing] if closing else []), f"See {listed(figures)}."])


def _draw_details(path: Path, score: Score, samples: int, lines: list[dict[str, Any]]) -> list[Path]:
    """Draw the latest rows, and the errors by step, if they were scored."""
    from norewind.plotting import figures

    drawn = {}
    if isinstance(score, ClassScore) and not np.isnan(score.state.recent).all():
        drawn[RECENT_FIGURE] = figures.classes_figure(score.state.recent, score.name, samples)
    if isinstance(score, RowScore):
        if len(score.state.recent):
            times = score.state.recent_times
            recent = figures.rows_figure(score.state.recent, score.columns, samples, recent_times=times, lines=lines)
            drawn[RECENT_FIGURE] = recent
        if (result := score.summary(lines)) and result.by_step:
            drawn[BY_STEP] = figures.by_step_figure(result.by_step, result.steps)
    return [figures.save(figure, path / name) for name, figure in drawn.items()]
