"""What a caller of `fit` may choose: how often it reports and saves, and functions that it calls along the way."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norewind import checks
from norewind.streams.stream import Samples


@dataclass(frozen=True)
class Intervals:
    """How often `fit` reports and saves.

    Args:
        metrics_every: samples between lines of metrics; None for about 200 lines, however long the stream is.
        checkpoint_every: samples between checkpoints; None to write only the last one.
        checkpoint_seconds: also save when the last checkpoint is this many seconds old; None or 0 turns this off.
        keep: the number of checkpoints to keep; fewer if they exceed 100 MB together.
        flush: learn and predict at most this many seconds after a sample arrives; None to wait for full chunks.
    """

    metrics_every: int | None = None
    checkpoint_every: int | None = 100_000
    checkpoint_seconds: float | None = None
    keep: int = 3
    flush: float | None = None

    def __post_init__(self):
        for name in ("metrics_every", "checkpoint_every", "keep"):
            if getattr(self, name) is not None:
                checks.at_least_one(f"fit: {name}", getattr(self, name))


@dataclass(frozen=True)
class Hooks:
    """Functions that `fit` calls along the way.

    Args:
        metrics: called with every line of metrics.
        checkpoint: called with the path of every checkpoint, in the thread that writes it.
        begin: called once before the first chunk, with the `Training`, whose `run` is always the newest run.
        chunk: called after every chunk with the samples so far and the chunk's mean loss.
        predictions: called with the number of the first sample, the samples, and outputs made before learning.
        lines: called by `train` with the entries of predictions, whether or not they are written to a file.
        should_stop: asked before every chunk; True ends the training early.
        settles: wait until each checkpoint is written and its hook has returned, and predict nothing early.
        live: in a notebook, draw the learning curve while it grows, at most once a second.
    """

    metrics: Callable[[dict[str, Any]], None] = lambda line: None
    checkpoint: Callable[[Path], None] = lambda path: None
    begin: Callable[[Any], None] = lambda training: None
    chunk: Callable[[int, float], None] = lambda samples, loss: None
    predictions: Callable[[int, Samples, Any], None] | None = None
    lines: Callable[[list[dict[str, Any]]], None] | None = None
    should_stop: Callable[[], bool] = lambda: False
    settles: bool = False
    live: bool = True
