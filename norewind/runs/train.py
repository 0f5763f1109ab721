"""One run, from its settings to its folder: started, interrupted, resumed."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from norewind.runs.build import Opened, build, open_stream, set_precision
from norewind.runs.fit import Fitted, Hooks, Intervals, fit
from norewind.runs.folder import PREDICTIONS, RunFolder, as_lines
from norewind.runs.progress import Progress
from norewind.runs.scores import ROW_UNITS, SymbolScore
from norewind.runs.settings import Settings, SettingsError


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
                intervals=Intervals(
                    settings.metrics_every,
                    settings.checkpoint_every,
                    settings.checkpoint_seconds or None,
                    settings.keep,
                    settings.flush,
                ),
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

        yield replace(hooks, metrics=on_metrics, chunk=on_chunk, predictions=_writer(settings, folder, opened))


def unit_of(settings: Settings) -> str:
    return ROW_UNITS[settings.loss] if settings.kind in ("csv", "jsonl") else SymbolScore.unit


def _writer(settings: Settings, folder: RunFolder, opened: Opened) -> Callable | None:
    if settings.predictions == "none":
        return None
    write = folder.log(PREDICTIONS).write if settings.predictions == "file" else print_lines
    return lambda *predicted: write(opened.score.predictions(*predicted))


def print_lines(entries: Iterable[dict[str, Any]]) -> None:
    """JSON lines on standard output, at once, in UTF-8 whatever the locale."""
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
