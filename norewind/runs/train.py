"""One run, from its settings to its folder: started, interrupted, resumed."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from norewind.runs.build import Built, Opened, build, open_stream
from norewind.runs.fit import Fitted, Hooks, Intervals, fit
from norewind.runs.folder import PREDICTIONS, RunFolder, as_lines
from norewind.runs.progress import Progress
from norewind.runs.scores import BITS, row_unit
from norewind.runs.settings import Settings, SettingsError


class Trained(NamedTuple):
    """A run that was trained: how `fit` ended, and the stream it came from."""

    fitted: Fitted
    opened: Opened


def train(
    settings: Settings,
    folder: RunFolder,
    *,
    continues: bool = False,
    progress: Progress | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008 (frozen)
) -> Trained:
    """Train in a run folder, from its newest checkpoint if it has one.

    Args:
        settings: what to train.
        folder: where, entered by the caller.
        continues: the source starts where the checkpoint was written, instead of at its beginning.
        progress: shows how far the run is.
        hooks: functions to call along the way, beside those that write what the settings ask for.
    """
    if folder.saved:
        folder.saved.check_settings(settings)
    opened = open_stream(settings, folder.position, continues=continues, stop=hooks.should_stop)
    with opened.stream:
        built = build(settings, opened.shape)
        # Not before the stream and the model are known to work: a mistake leaves no settings behind.
        folder.begin(settings)
        fitted = _fit(settings, folder, opened, built, progress or Progress(quiet=True), hooks)
    return Trained(fitted, opened)


def _fit(
    settings: Settings, folder: RunFolder, opened: Opened, built: Built, progress: Progress, hooks: Hooks
) -> Fitted:
    total = None if settings.samples is None else int(settings.samples)
    before, name = folder.entries.get("samples", 0), str(folder.path)
    events = Events(folder.path, before) if settings.tensorboard else None
    progress.begin(name, opened.score.unit, before, total)

    def on_metrics(line):
        hooks.metrics(line)
        if events:
            events.write(line)

    def on_chunk(samples, loss):
        hooks.chunk(samples, loss)
        progress.advance(name, samples, loss)

    try:
        return fit(
            opened.stream,
            built.learner,
            built.run,
            window=built.window,
            samples=total,
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
            hooks=Hooks(on_metrics, hooks.checkpoint, on_chunk, _writer(settings, folder, opened), hooks.should_stop),
        )
    finally:
        if events:
            events.close()


def unit_of(settings: Settings) -> str:
    """The unit of the losses of a run."""
    return row_unit(settings.loss == "gaussian") if settings.kind in ("csv", "jsonl") else BITS


def _writer(settings: Settings, folder: RunFolder, opened: Opened) -> Callable | None:
    """The function that writes predictions where the settings say."""
    if settings.predictions == "none":
        return None
    log = folder.log(PREDICTIONS) if settings.predictions == "file" else None

    def write(first, samples, outputs):
        entries = opened.score.predictions(first, samples, outputs)
        if log:
            log.write(entries)
        else:
            print_lines(entries)

    return write


def print_lines(entries: Iterable[dict[str, Any]]) -> None:
    """JSON lines on standard output, at once, in UTF-8 whatever the locale."""
    sys.stdout.flush()
    sys.stdout.buffer.write(as_lines(entries))
    sys.stdout.buffer.flush()


class Events:
    """Lines of metrics as TensorBoard events, continued after `samples`."""

    def __init__(self, folder: Path, samples: int):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise SettingsError(
                "tensorboard: the package tensorboardX is not installed: pip install 'norewind[tensorboard]'"
            ) from None
        # Events after the checkpoint come again: purge_step drops the first ones.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=samples + 1)

    def write(self, line: dict[str, Any]) -> None:
        """One event for every number in a line."""
        for name, value in line.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, line["samples"])
        self._writer.flush()

    def close(self) -> None:
        """Return when all events are written, which happens in the background."""
        self._writer.close()
