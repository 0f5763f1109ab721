"""One run, from its settings to its folder: started, interrupted, resumed; and, in a sweep, to its record."""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax

from norewind.checkpoint import glance
from norewind.checks import ModelError
from norewind.files import naming
from norewind.kernels import announcing
from norewind.run import NonFiniteError
from norewind.runs.answers import answering
from norewind.runs.build import Opened, build, open_stream, set_precision
from norewind.runs.entries import check_left
from norewind.runs.fit import Fitted, Hooks, Intervals, fit
from norewind.runs.folder import COLUMNS, METRICS, PREDICTIONS, RunFolder, as_lines, read_log
from norewind.runs.metrics import Diverged, digits
from norewind.runs.progress import Progress
from norewind.runs.record import Record
from norewind.runs.row_scores import ROW_UNITS
from norewind.runs.scores import SymbolScore
from norewind.runs.settings import SETTINGS, Settings, SettingsError, read_toml
from norewind.streams import RowStream, Source
from norewind.streams.kafka import SCHEME
from norewind.trees import Tree, is_key

# How progress names the simple forecasts besides the baseline.
BESIDE = {"persistence": "last value", "seasonal": "period ago"}


def train(
    settings: Settings,
    folder: RunFolder,
    *,
    continues: bool = False,
    source: Source | None = None,
    progress: Progress | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008 (frozen)
) -> tuple[Fitted, Opened]:
    """Train in a run folder, from its newest checkpoint if it has one. Also returns the stream, which is closed.

    Args:
        settings: what to train.
        folder: where, entered by the caller.
        continues: the source starts where the checkpoint was written, instead of at its beginning.
        source: where the rows come from, if not from what the settings name.
        progress: shows how far the run is.
        hooks: functions to call along the way, in addition to those that the settings require.
    """
    set_precision(settings)
    _check_source(settings, folder.path)
    progress = progress or Progress(quiet=True)
    reading = {"continues": continues, "source": source, "stop": hooks.should_stop, "report": progress.warn}
    answering_to = answering(settings, folder, continues=continues, stop=hooks.should_stop)
    with announcing(progress.say), answering_to as answers:
        if folder.saved:
            folder.saved.check_settings(settings)
        opened = open_stream(settings, folder.entries.get("position", {}).get("stream"), **reading)
        with opened.stream:
            built = build(settings, opened.shape)
            if folder.saved:
                check_left(folder.saved.path, folder.entries["position"]["left"], built.window, opened.shape.inputs)
            # Only now that the stream and the model are known to work: a mistake leaves no settings behind.
            folder.begin(settings)
            if isinstance(opened.stream, RowStream) and folder.new:
                folder.note(COLUMNS, columns_of(opened.stream))
                progress.say(column_words(opened.stream))
            with _hooks(settings, folder, opened, progress, hooks, answers) as all_hooks:
                fitted = fit(
                    opened.stream,
                    **built._asdict(),
                    samples=None if settings.samples is None else int(settings.samples),
                    folder=folder,
                    intervals=_intervals(settings),
                    score=opened.score,
                    watch=settings.watch,
                    hooks=all_hooks,
                )
        return fitted, opened


def _intervals(settings: Settings) -> Intervals:
    intervals = Intervals(**{field.name: getattr(settings, field.name) for field in fields(Intervals)})
    # Rows may arrive slowly and without end: a full chunk may never come.
    comes_slowly = settings.source.startswith(SCHEME) or (settings.source == "-" and settings.kind in ("csv", "jsonl"))
    return replace(intervals, flush=1.0) if intervals.flush is None and comes_slowly else intervals


def _check_source(settings: Settings, folder: Path) -> None:
    """Reject a source that the run itself writes: it would never end."""
    source, logs = Path(settings.source), (folder / METRICS, folder / PREDICTIONS)
    if settings.kind != "task" and source.is_file() and any(log.exists() and source.samefile(log) for log in logs):
        raise SettingsError(f"{source} is written by this run, which would never reach its end. Copy it first.")


@contextmanager
def _hooks(
    settings: Settings, folder: RunFolder, opened: Opened, progress: Progress, hooks: Hooks, answers: Any
) -> Iterator[Hooks]:
    """The given hooks, with progress and the outputs that the settings require."""
    total = None if settings.samples is None else int(settings.samples)
    before, name = folder.entries.get("samples", 0), str(folder.path)
    with _events(folder.path, before) if settings.tensorboard else nullcontext() as events:
        progress.begin(name, opened.score.unit, before, total)

        def on_metrics(line):
            hooks.metrics(line)
            beside = {**BESIDE, "baseline": opened.score.trivial}
            progress.compare(name, {words: line.get(entry) for entry, words in beside.items()})
            if events:
                for entry, value in line.items():
                    if isinstance(value, float):
                        events.add_scalar(entry, value, line["samples"])
                events.flush()

        def on_chunk(samples, loss):
            hooks.chunk(samples, loss)
            progress.advance(name, samples, loss)

        def on_predictions(*predicted):
            entries = list(opened.score.predictions(*predicted))
            if settings.predictions != "none":
                write(entries)
            if hooks.lines:
                hooks.lines(entries)

        def on_checkpoint(path):
            hooks.checkpoint(path)
            if answers:
                answers.commit(path)
            elif settings.source.startswith(SCHEME):
                opened.stream.show(glance(path)["position"]["stream"])

        if answers:
            write = answers.write
        else:
            write = folder.log(PREDICTIONS).write if settings.predictions == "file" else print_lines
        # The most surprising lines are collected whether or not predictions are written.
        if settings.predictions != "none" or settings.top or hooks.lines:
            hooks = replace(hooks, predictions=on_predictions)
        yield replace(hooks, metrics=on_metrics, chunk=on_chunk, checkpoint=on_checkpoint, settles=answers is not None)


def columns_of(stream: RowStream) -> dict[str, Any]:
    """What a run uses of a table, and what it does not use and why."""
    return {name: getattr(stream, name) for name in ("inputs", "targets", "steps", "ignored")}


def column_words(stream: RowStream) -> str:
    def some(words: list[str]) -> str:
        return ", ".join(words[:12]) + (f" and {len(words) - 12} more" if len(words) > 12 else "")

    same = "the same" if stream.targets == stream.inputs and len(stream.inputs) > 1 else some(stream.targets)
    when = steps_in_words(stream.steps)
    read = {"category": " (text: as categories)", "time": " (time)"}
    inputs = [name + read.get(stream.kinds[name], "") for name in stream.inputs]
    lines = [f"inputs:  {some(inputs)}", f"targets: {same}, {when}"]
    if stream.ignored:
        lines.append(f"ignored: {some([f'{name} ({why})' for name, why in stream.ignored.items()])}")
    return "\n".join(lines)


def steps_in_words(steps: Sequence[int]) -> str:
    """How far ahead targets are forecast, in words.

    >>> steps_in_words((1,)), steps_in_words((1, 2, 3)), steps_in_words((1, 6, 24)), steps_in_words((0,))
    ('1 row ahead', '1 to 3 rows ahead', '1, 6, 24 rows ahead', 'of the same row')
    """
    if steps[-1] == 0:
        return "of the same row"
    if len(steps) > 2 and len(steps) == steps[-1]:
        return f"1 to {steps[-1]} rows ahead"
    return f"{', '.join(map(str, steps))} row{'s' if steps[-1] > 1 else ''} ahead"


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


# The samples in a chunk whose CPU time counts.
LONG_ENOUGH = 256


class Clock:
    """CPU time per sample: the best of all chunks, since other processes only ever add to it."""

    best: float | None = None
    _last: tuple[float, int] | None = None

    def chunk(self, samples: int, loss: float) -> None:
        now = time.process_time()
        # The first chunk compiles, and a short one costs mostly its call.
        if self._last is not None and samples - self._last[1] >= LONG_ENOUGH:
            spent = (now - self._last[0]) / (samples - self._last[1])
            self.best = spent if self.best is None else min(self.best, spent)
        self._last = time.process_time(), samples


def trial(settings: Settings, path: Path, hooks: Hooks, clock: Clock) -> Record | None:
    """Train a run to its end, and return its record without versions; None if it was interrupted.

    A method that refuses the model and a run that diverges have a record too: its
    `problem` says what happened.
    """
    # Curves that are compared have their points at the same places.
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
