"""What the training loop calls along the way, and when it reports and saves."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from norewind.core import checks
from norewind.scoring.score import Outputs
from norewind.streams.stream import Samples

if TYPE_CHECKING:
    from norewind.training.training_loop import Training


@dataclass(frozen=True)
class Intervals:
    """When `fit` reports and saves.

    Args:
        metrics_every: samples between lines of metrics; None for about 200 lines, however long the stream is.
        checkpoint_every: samples between checkpoints; None to write only the last one.
        checkpoint_seconds: also save this many seconds after the last checkpoint; None or 0 turns this off.
        keep: the number of checkpoints to keep; fewer if they exceed 100 MB together.
        flush: learn and predict at most this many seconds after a sample arrives; None to wait for full chunks.
        wait_for_checkpoints: wait until each checkpoint is written and its hook returns, and predict nothing early.
        plot_seconds: seconds between drawings of the learning curve in a notebook; None to draw nothing.
    """

    metrics_every: int | None = None
    checkpoint_every: int | None = 100_000
    checkpoint_seconds: float | None = None
    keep: int = 3
    flush: float | None = None
    wait_for_checkpoints: bool = False
    plot_seconds: float | None = 1.0

    def __post_init__(self):
        for name in ("metrics_every", "checkpoint_every", "keep"):
            if getattr(self, name) is not None:
                checks.check_at_least_one(f"fit: {name}", getattr(self, name))


@dataclass(frozen=True)
class Hooks:
    """Functions that `fit` calls along the way.

    Args:
        metrics: called with every line of metrics.
        checkpoint: called with the path of every checkpoint, in the thread that writes it.
        begin: called once before the first chunk, with the `Training`.
        chunk: called after every chunk with the samples so far and the chunk's mean loss.
        outputs: called with the number of the first sample, the samples, and outputs made before learning.
        predictions: called with the same outputs as entries of predictions.jsonl (see `Score.prediction_entries`).
        should_stop: called before every chunk; True ends the training early.
    """

    metrics: Callable[[dict[str, Any]], None] = lambda line: None
    checkpoint: Callable[[Path], None] = lambda path: None
    begin: Callable[["Training"], None] = lambda training: None
    chunk: Callable[[int, float], None] = lambda samples, loss: None
    outputs: Callable[[int, Samples, Outputs], None] | None = None
    predictions: Callable[[list[dict[str, Any]]], None] | None = None
    should_stop: Callable[[], bool] = lambda: False

    def adding(self, **more: Callable[..., None]) -> "Hooks":
        """Return hooks that also call other functions, after their own.

        Args:
            more: the functions, by the names of the hooks.
        """

        def both(own: Callable[..., None] | None, other: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any) -> None:
                if own is not None:
                    own(*arguments)
                other(*arguments)

            return call

        return replace(self, **{name: both(getattr(self, name), function) for name, function in more.items()})
