"""Training on a stream, with metrics, checkpoints and a way to stop."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from norewind.core import checks
from norewind.core.checks import ModelError
from norewind.core.trees import Tree
from norewind.learners.learner import BaseLearner
from norewind.scoring.score import Score
from norewind.streams.position import damaged_position_error, fingerprint
from norewind.streams.stream import Position, Samples, Stream
from norewind.training.folder import RunFolder
from norewind.training.hooks import Hooks, Intervals
from norewind.training.notebook import live_plot
from norewind.training.training_loop import Training
from norewind.training.windows import WindowedStream

StreamLike = Stream | Iterable[tuple[Any, Any]] | Callable[[Position | None], Stream]


class FitResult(NamedTuple):
    """The result of `fit`.

    Attributes:
        run: the trained run, to predict with or to train further.
        samples: the number of samples it has seen in total.
        ended: whether the stream has ended.
        carry: the carry of its estimator.
    """

    run: Any
    samples: int
    ended: bool
    carry: Tree


def fit(
    stream: StreamLike,
    learner: BaseLearner,
    run: Any,
    *,
    window: int = 1,
    samples: int | None = None,
    folder: RunFolder | Path | str | None = None,
    intervals: Intervals = Intervals(),  # noqa: B008 (frozen)
    score: Score | None = None,
    stop_if_diverged: bool = True,
    hooks: Hooks = Hooks(),  # noqa: B008 (frozen)
) -> FitResult:
    """Train on a stream until it ends, or up to a total number of samples, with checkpoints in a folder.

    At intervals (see `Intervals`), `fit` reports a line of metrics: `samples`, the mean
    `loss` since the last line and the `mean` from the start, the norm of the `carry`, and
    `seconds`. With a folder, lines are appended to metrics.jsonl there, and checkpoints are
    written along the way and at the end. Called again with the same folder, `fit` continues
    from the latest checkpoint: bit for bit as if it had never been interrupted.

    Args:
        stream: an iterable of (x, target) pairs, which must start from the beginning again when training continues
            from a checkpoint; or one of `norewind.streams`, at the position of the checkpoint; or a function that
            opens such a stream at a position (None for the start).
        learner: the learner, e.g. from `norewind.online`, or `norewind.learners.AheadLearner` to forecast later rows.
        run: the run to start from, e.g. from `learner.init`.
        window: the number of samples that the learner learns from at once.
        samples: stop after this many samples in total; by default at the end of the stream.
        folder: the path of the run folder, or an entered `RunFolder`; by default nothing is written.
        intervals: when to report and save.
        score: how losses are expressed, for streams of symbols or rows; by default they are reported as they are.
        stop_if_diverged: stop when the loss or the carry explodes. Non-finite numbers always stop the run.
        hooks: functions to call along the way.

    Returns:
        The trained run, with its number of samples, whether the stream has ended, and the carry.

    Raises:
        NonFiniteError: a sample gave non-finite numbers. The last good checkpoint is kept.
        Diverged: the loss or the carry exploded. The last good checkpoint is kept.
        ModelError: an argument cannot be used.

    >>> import jax, norewind, optax
    >>> cell = norewind.cells.gru(inputs=3, hidden=8, outputs=3)
    >>> estimator = norewind.uoro(cell.transition, norewind.losses.cross_entropy)
    >>> learner = norewind.online(estimator, optax.adam(1e-2))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> pairs = ((i % 3, (i + 1) % 3) for i in range(4_000))
    >>> lines = []
    >>> fitted = fit(pairs, learner, run, intervals=Intervals(metrics_every=1_000), hooks=Hooks(metrics=lines.append))
    >>> fitted.samples, len(lines), lines[-1]["loss"] < lines[0]["loss"]
    (4000, 4, True)
    """
    _check_arguments(stream, learner, run, window, samples)
    score = score or Score()
    with ExitStack() as stack:
        if isinstance(folder, str | Path):
            folder = stack.enter_context(RunFolder(folder, keep=intervals.keep))
        saved = folder.saved if folder else None
        hooks = stack.enter_context(live_plot(hooks, score.unit, intervals.plot_seconds))
        stream = _as_stream(stream, window, saved.entries["position"]["stream"] if saved else None)
        windowed = WindowedStream(stream, window, saved)
        training = Training(
            windowed,
            learner,
            run,
            saved,
            score=score,
            intervals=intervals,
            stop_if_diverged=stop_if_diverged,
            hooks=hooks,
            folder=folder,
        )
        ended = training.train_until(samples)
        # After the checkpoint: a run that is continued later removes this line and completes the interval.
        if not hooks.should_stop() and (line := training.unfinished_line()):
            training.publish(line)
        return FitResult(training.run, training.samples, ended, learner.carry(training.run))


def _check_arguments(stream: object, learner: object, run: object, window: int, samples: int | None) -> None:
    """Reject arguments that `fit` cannot use with an explanation, before anything is computed.

    Args:
        stream: a stream, a function that opens one, or an iterable of pairs.
        learner: an object that should be a `BaseLearner`.
        run: the run to start from.
        window: the number of samples that are learned from at once.
        samples: the total number of samples, if it is limited.

    Raises:
        ModelError: one of them cannot be used.
    """
    if not isinstance(learner, BaseLearner):
        raise ModelError(f"fit: the learner is a {type(learner).__name__}. Call fit(stream, learner, run).")
    if not isinstance(stream, Stream | Iterable) and not callable(stream):
        raise ModelError(f"fit: the stream is a {type(stream).__name__}, not an iterable of pairs (x, target).")
    if hasattr(run, "unpack"):
        raise ModelError("fit: the run is packed, for single calls. Call its unpack().")
    checks.check_at_least_one("fit: window", window)
    if samples is not None and (not hasattr(samples, "__index__") or samples < 0):
        raise ModelError(f"fit: samples must be a whole number, 0 or more, not {samples!r}.")


def _as_stream(stream: StreamLike, window: int, position: Position | None) -> Stream:
    """Return a stream at a position.

    Args:
        stream: a stream at the position, a function that opens one at a position, or an iterable of pairs.
        window: the number of samples in a window, for an iterable.
        position: a position returned by `Stream.position`; None for the start.

    Raises:
        ValueError: the stream is not at the position.
    """
    if callable(stream):
        stream = stream(position)
    if not isinstance(stream, Stream):
        return IteratedStream(stream, window, position)
    if position is not None and fingerprint(stream.position()) != fingerprint(position):
        raise ValueError(
            "fit: the folder holds a checkpoint, but the stream is not at its position. Pass a function that opens the "
            "stream at a position, e.g. lambda position: ByteStream(Source(path), position=position)."
        )
    return stream


class IteratedStream(Stream):
    """Samples from an iterable of (x, target) pairs, each a number, an array, or a pytree of them.

    Args:
        pairs: the iterable.
        window: the number of samples in a window. Samples at the end that do not fill a window are dropped.
        position: the position to resume at. The pairs before it are read again and dropped.
    """

    def __init__(self, pairs: Iterable[tuple[Any, Any]], window: int = 1, position: Position | None = None):
        self._window = window
        items = position.get("items") if position else 0
        if type(items) is not int or not 0 <= items < 2**63 or (position and len(position) != 1):
            raise damaged_position_error(f"it is {position!r}, but should be a number of items")
        self._items = items
        self._pairs = islice(iter(pairs), items, None)

    def take(self, count: int, timeout: float | None = None) -> Samples | None:
        pairs = list(islice(self._pairs, count))
        pairs = pairs[: len(pairs) // self._window * self._window]
        if not pairs:
            return None
        try:
            xs, targets = zip(*pairs, strict=True)
            samples = Samples(_stacked(xs), _stacked(targets))
        except (TypeError, ValueError) as error:
            raise self._odd_one(pairs, error) from None
        self._items += len(pairs)
        return samples

    def _odd_one(self, pairs: list, error: Exception) -> ValueError:
        shapes = None
        for number, pair in enumerate(pairs, self._items + 1):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                kind = type(pair).__name__
                return ValueError(f"fit: item {number} of the stream is not a pair (x, target), but a {kind}.")
            before, shapes = shapes, jax.tree.map(np.shape, tuple(pair))
            if before not in (None, shapes):
                differ = f"item {number} of the stream has the shapes {shapes}, but the previous one has {before}"
                return ValueError(f"fit: {differ}. All pairs must have the same structure and shapes.")
        return ValueError(f"fit: the pairs after item {self._items} of the stream cannot be stacked: {error}")

    def position(self) -> Position:
        return {"items": self._items}


def _stacked(entries: tuple) -> Tree:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *entries)
