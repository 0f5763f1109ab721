"""Training in a folder, in shards or on the partitions of a topic, as commands do it. (Imports JAX.)"""

import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from norewind.cli.running import StopOnSignal, friendly, leave
from norewind.runs.build import Opened
from norewind.runs.fit import Fitted, Hooks
from norewind.runs.fleet_scores import FleetScore, worst_in
from norewind.runs.folder import BY_STEP, CURVE, METRICS, STRETCH, RunFolder, read_log, settings_of
from norewind.runs.metrics import at_the_end, counted, listed
from norewind.runs.partitions import train_partitions
from norewind.runs.progress import Progress
from norewind.runs.row_scores import RowScore, steps_shown
from norewind.runs.scores import ClassScore, LineScore, class_words, top_words
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.shards import shard_words, train_shards
from norewind.runs.summary import summary, table
from norewind.runs.train import train, unit_of
from norewind.runs.workers import SweepError
from norewind.streams import KeyedStream


def run_in(command: str, path: Path, settings: Settings, *, quiet: bool, continues: bool = False, **hold: Any) -> None:
    """Train in a folder, and end the process. `hold` are options of the folder."""
    with StopOnSignal() as stop, friendly(command, path, stop):
        hooks = Hooks(should_stop=stop)
        with Progress(quiet=quiet) as progress, RunFolder(path, say=progress.say, **hold) as folder:
            fitted, opened = train(settings, folder, continues=continues, progress=progress, hooks=hooks)
        draw(path)
        words = summed_up(path, fitted, opened)
    if not quiet:
        print(words, file=sys.stderr)
        if stop():
            print(f"Stopped; nothing is lost. To continue: norewind resume {path}", file=sys.stderr)
    raise SystemExit(stop.exit_code)


def run_shards(command: str, path: Path, settings: Settings, *, quiet: bool, new: bool, **workers: Any) -> NoReturn:
    """Train a fleet in parts, and end the process."""
    with friendly(command):
        try:
            with Progress(max(2, settings.shards), quiet=quiet) as progress:
                train_shards(settings, path, progress, new=new, **workers)
        except SweepError as error:
            raise SweepError(f"{error}\nTo continue: norewind resume {path}") from None
        except KeyboardInterrupt:
            leave(f"Stopped; nothing is lost. To continue: norewind resume {path}", 128 + signal.SIGINT)
        if not quiet:
            print(shard_words(path, settings.shards, KeyedStream.key_name), file=sys.stderr)
    raise SystemExit(0)


def run_partitions(command: str, path: Path, settings: Settings, *, quiet: bool) -> NoReturn:
    """Train the partitions of a topic that a group hands out, and end the process."""
    with StopOnSignal() as stop, friendly(command, None, stop), Progress(None, quiet=quiet) as progress:
        train_partitions(settings, path, progress, stop)
        progress.say("Stopped; nothing is lost. To continue: the same command.")
    raise SystemExit(stop.exit_code)


def draw(*paths: Path, out: Path | None = None) -> None:
    """Draw the learning curves of runs in one figure; by default curve.png in the folder of the first."""
    from norewind.instruments.figures import draw_curves  # imports matplotlib

    all_settings = [settings_of(path) for path in paths]
    units = {unit_of(settings) for settings in all_settings}
    if len(units) > 1:
        raise SettingsError(f"these runs are measured in {' and '.join(sorted(units))}: draw them separately.")
    curves = [(str(path), read_log(path / METRICS)) for path in paths]
    first = all_settings[0]
    rows = "class frequencies so far" if first.loss == "classes" else "the mean so far"
    trivial = rows if first.kind in ("csv", "jsonl") else "order-0 entropy"
    draw_curves(curves, units.pop(), out or paths[0] / CURVE, trivial)


def _last_tenth(lines: list[dict[str, Any]], unit: str, trivial: str, *, fleet: bool) -> str:
    """The loss in the last tenth of a run beside simple ones. (For rows without keys, a table of these follows.)"""
    ends = np.array([line["samples"] for line in lines])

    def mean(entry: str) -> tuple[int, float]:
        return at_the_end(ends, np.array([line.get(entry) for line in lines], float), 0.1)

    newest, loss = mean("loss")
    simple = {trivial: "baseline", **({"last value": "persistence"} if fleet else {})}
    known = [f"{name}: {value:.4f}" for name, entry in simple.items() if (value := mean(entry)[1]) == value]
    words = f", {loss:.4f} {unit} over the last {newest:,}" + (f" ({', '.join(known)})" if known else "")
    return words if loss == loss else ""


def summed_up(path: Path, fitted: Fitted, opened: Opened) -> str:
    """Draw what the learning curve does not show, and return a summary of the run."""
    from norewind.instruments import row_figures

    score, stream, lines, figures = opened.score, opened.stream, read_log(path / METRICS), [path / CURVE]
    words = counted(fitted.samples, "sample")
    words += _last_tenth(lines, score.unit, score.trivial, fleet=isinstance(score, FleetScore)) if lines else ""
    for reason, count in stream.counts.items():
        words += f", {count:,} {reason} skipped"
    if stream.unfinished:
        words += (
            f". The end is incomplete ({counted(stream.unfinished, 'byte')}), and waits for the file to grow "
            f"(if the file is complete: norewind resume {path} --final)"
        )
    if isinstance(score, FleetScore):
        words += f".\n{worst_in(path, score.name).removesuffix('.')}"
    if isinstance(score, ClassScore):
        words += f".\n{class_words(lines)}"
        if score.was_scored:
            row_figures.draw_classes(score.state["stretch"], score.name, fitted.samples, path / STRETCH)
            figures.append(path / STRETCH)
    elif isinstance(score, RowScore):
        if len(score.state["recent"]):
            row_figures.draw_stretch(score.state["recent"], score.columns, fitted.samples, path / STRETCH)
            figures.append(path / STRETCH)
        result = summary(lines, score.steps, squared=not score.gaussian)
        words += f".\n{table(result)}" if result else "."
        if result and result.by_step:
            row_figures.draw_by_step(result.by_step, steps_shown(score.steps), path / BY_STEP)
            figures.append(path / BY_STEP)
    else:
        top = top_words(score.state) if isinstance(score, LineScore) else ""
        return f"{words}. See {path / CURVE}." + (f"\n{top}" if top else "")
    return f"{words}\nSee {listed(figures)}."
