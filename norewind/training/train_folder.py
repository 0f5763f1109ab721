"""One run, from its settings to its folder: started, interrupted and resumed."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from norewind.engines.kernels import announce_compilation
from norewind.storage.checkpoint import read_metadata
from norewind.storage.files import name_in_errors
from norewind.streams import RowStream
from norewind.streams.base_source import BaseSource, SourceStream
from norewind.streams.kafka.client import SCHEME
from norewind.streams.stream import Stream
from norewind.training.build import build, set_precision
from norewind.training.fit import FitResult, fit
from norewind.training.folder import RunFolder
from norewind.training.hooks import Hooks, Intervals
from norewind.training.kafka_answers import Answers, answering
from norewind.training.log import METRICS, PREDICTIONS, as_lines
from norewind.training.open_stream import OpenedStream, open_stream
from norewind.training.progress import Progress
from norewind.training.settings import Settings, SettingsError, check_scopes
from norewind.wording import first_few, missing_package

# Samples between checkpoints. With keys, a checkpoint writes all changed keys, which may be as many as the samples, so
# checkpoints are written by time only.
CHECKPOINT_EVERY = 100_000


def train_folder(
    settings: Settings,
    folder: RunFolder,
    *,
    continues: bool = False,
    source: BaseSource | None = None,
    progress: Progress | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008 (frozen)
) -> tuple[FitResult, OpenedStream]:
    """Train in a run folder, from its latest checkpoint if it has one.

    Args:
        settings: the stream, the model, and where predictions go. They must fit the latest checkpoint.
        folder: the run folder, entered by the caller.
        continues: the source starts where the checkpoint was written, instead of at its beginning.
        source: a source to use instead of the one that the settings name.
        progress: shows the progress of the run.
        hooks: functions to call along the way, in addition to those that the settings require.

    Returns:
        The result of training, and the stream, which is closed.

    Raises:
        SettingsError: the settings cannot be used.
        StreamError: the stream cannot be read.
        NonFiniteError, Diverged: the run diverged. Its last good checkpoint is kept.
    """
    if folder.is_new:
        check_scopes(settings)
    set_precision(settings)
    _check_source(settings, folder.path)
    progress = progress or Progress(quiet=True)
    stop = hooks.should_stop
    total = None if settings.samples is None else int(settings.samples)
    with ExitStack() as stack:
        stack.enter_context(announce_compilation(progress.say))
        answers = stack.enter_context(answering(settings, folder, continues=continues, stop=stop))
        if folder.saved:
            folder.saved.check_settings(settings)
        position = folder.entries.get("position", {}).get("stream")
        opened = open_stream(settings, position, source=source, continues=continues, stop=stop, report=progress.warn)
        stream = stack.enter_context(opened.stream)
        built = build(settings, opened.shape)
        # Only now that the stream and the model are known to work: a mistake leaves no settings behind.
        is_table = isinstance(stream, RowStream)
        folder.begin(settings, columns_of(stream) if is_table else None)
        if is_table and folder.is_new:
            progress.say(describe_columns(stream))
            if stream.warning:
                progress.warn(f"Warning: {stream.warning}")
        before = folder.entries.get("samples", 0)
        progress.begin(str(folder.path), opened.score.unit, before, total, opened.score.simple_forecasts)
        hooks = _with_outputs(settings, folder, stream, progress, hooks, answers)
        if settings.tensorboard:
            hooks = hooks.adding(metrics=stack.enter_context(_events(folder.path, before)))
        fitted = fit(
            stream,
            **built._asdict(),
            samples=total,
            folder=folder,
            intervals=_intervals(settings, wait_for_checkpoints=answers is not None),
            score=opened.score,
            stop_if_diverged=settings.stop_if_diverged,
            hooks=hooks,
        )
    return fitted, opened


def _intervals(settings: Settings, *, wait_for_checkpoints: bool) -> Intervals:
    # Rows may arrive slowly and without end, so a chunk may never be full.
    arrives_slowly = settings.source.startswith(SCHEME) or (settings.source == "-" and settings.has_rows)
    return Intervals(
        metrics_every=settings.metrics_every,
        checkpoint_every=settings.checkpoint_every or (CHECKPOINT_EVERY if settings.key is None else None),
        checkpoint_seconds=settings.checkpoint_seconds,
        keep=settings.keep,
        flush=1.0 if settings.flush is None and arrives_slowly else settings.flush,
        wait_for_checkpoints=wait_for_checkpoints,
    )


def _check_source(settings: Settings, folder: Path) -> None:
    """Reject a source that the run itself writes, since it would never end."""
    source, logs = Path(settings.source), (folder / METRICS, folder / PREDICTIONS)
    if settings.kind != "task" and source.is_file() and any(log.exists() and source.samefile(log) for log in logs):
        raise SettingsError(f"{source} is one of this run's own logs, so training would never end. Copy it first.")


def _with_outputs(
    settings: Settings, folder: RunFolder, stream: Stream, progress: Progress, hooks: Hooks, answers: Answers | None
) -> Hooks:
    """Return the given hooks, extended by progress and by the predictions and offsets that the settings require."""
    name = str(folder.path)
    hooks = hooks.adding(
        metrics=lambda line: progress.runs[name].average(line),
        chunk=lambda samples, loss: progress.advance(name, samples),
    )
    if answers:
        return hooks.adding(predictions=answers.write, checkpoint=answers.commit)
    if isinstance(stream, SourceStream) and settings.source.startswith(SCHEME):
        hooks = hooks.adding(checkpoint=lambda path: stream.commit(read_metadata(path)["position"]["stream"]))
    if settings.predictions == "file":
        return hooks.adding(predictions=folder.log(PREDICTIONS).write)
    if settings.predictions == "stdout":
        return hooks.adding(predictions=print_lines)
    # The most surprising lines are collected even if no predictions are written.
    return hooks.adding(predictions=lambda entries: None) if settings.top else hooks


def columns_of(stream: RowStream) -> dict[str, Any]:
    """Return the columns of a table that a run uses, and those that it ignores, with the reasons."""
    return {name: getattr(stream, name) for name in ("inputs", "targets", "steps", "ignored")}


def describe_columns(stream: RowStream) -> str:
    """Describe the columns that a run uses, and those that it ignores with the reasons."""
    same = "the same" if stream.targets == stream.inputs and len(stream.inputs) > 1 else first_few(stream.targets)
    when = describe_steps(stream.steps)
    read = {"category": " (text: as categories)", "time": " (time)"}
    inputs = [name + read.get(stream.kinds[name], "") for name in stream.inputs]
    lines = [f"inputs:  {first_few(inputs)}", f"targets: {same}, {when}"]
    if stream.ignored:
        lines.append(f"ignored: {first_few([f'{name} ({why})' for name, why in stream.ignored.items()])}")
    return "\n".join(lines)


def describe_steps(steps: Sequence[int]) -> str:
    """Describe how far ahead targets are forecast.

    >>> describe_steps((1,)), describe_steps((1, 2, 3)), describe_steps((1, 6, 24)), describe_steps((0,))
    ('1 row ahead', '1 to 3 rows ahead', '1, 6, 24 rows ahead', 'of the same row')
    """
    if steps[-1] == 0:
        return "of the same row"
    if len(steps) > 2 and len(steps) == steps[-1]:
        return f"1 to {steps[-1]} rows ahead"
    return f"{', '.join(map(str, steps))} row{'s' if steps[-1] > 1 else ''} ahead"


def print_lines(entries: Iterable[dict[str, Any]]) -> None:
    """Print JSON lines on standard output immediately, in UTF-8 whatever the locale."""
    with name_in_errors("standard output"):
        sys.stdout.flush()
        sys.stdout.buffer.write(as_lines(entries))
        sys.stdout.buffer.flush()


@contextmanager
def _events(folder: Path, samples: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Provide a function that writes a line of metrics as TensorBoard events, continued after `samples`."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise SettingsError(f"tensorboard: {missing_package('tensorboardX', 'tensorboard')}.") from None
    # Events after the checkpoint are written again; purge_step drops the earlier ones.
    with SummaryWriter(str(folder / "tensorboard"), purge_step=samples + 1) as events:

        def write(line: dict[str, Any]) -> None:
            for entry, value in line.items():
                if isinstance(value, float):
                    events.add_scalar(entry, value, line["samples"])
            events.flush()

        yield write
