"""Training on a stream, with metrics, checkpoints and a way to stop."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from norewind.core.trees import Tree
from norewind.learners.learner import BaseLearner
from norewind.scoring.score import Score
from norewind.training.folder import RunFolder
from norewind.training.notebook import live_plot
from norewind.training.training_loop import Hooks, Intervals, Training
from norewind.training.windows import StreamLike, WindowedStream, as_stream, check_arguments


class Fitted(NamedTuple):
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
    folder: Any = None,
    intervals: Intervals = Intervals(),  # noqa: B008 (frozen)
    score: Score | None = None,
    stop_if_diverged: bool = True,
    hooks: Hooks = Hooks(),  # noqa: B008 (frozen)
) -> Fitted:
    """Train on a stream until it ends, or up to a total number of samples, with checkpoints in a folder.

    At intervals (see `Intervals`), `fit` reports a line of metrics: `samples`, the mean
    `loss` since the last line and the `mean` from the start, the norm of the `carry`, and
    `seconds`. With a folder, lines are appended to metrics.jsonl there, and checkpoints are
    written along the way and at the end. Called again with the same folder, `fit` continues
    from the newest checkpoint: bit for bit as if it had never been interrupted.

    Args:
        stream: an iterable of (x, target) pairs, which must start from the beginning again when training continues
            from a checkpoint; or one of `norewind.streams`, at the position of the checkpoint; or a function that
            opens such a stream at a position (None for the start).
        learner: the learner, e.g. from `norewind.online`, or `norewind.learners.Ahead` to forecast later rows.
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
    check_arguments(stream, learner, run, window, samples)
    score = score or Score()
    with ExitStack() as stack:
        if isinstance(folder, str | Path):
            folder = stack.enter_context(RunFolder(folder, keep=intervals.keep))
        saved = folder.saved if folder else None
        hooks = stack.enter_context(live_plot(hooks, score.unit, intervals.plot_seconds))
        stream = as_stream(stream, window, saved.entries["position"]["stream"] if saved else None)
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
        ended = training.until(samples)
        # After the checkpoint: a run that is continued later removes this line and completes the interval.
        if not hooks.should_stop() and (line := training.unfinished_line()):
            training.publish(line)
        return Fitted(training.run, training.samples, ended, learner.carry(training.run))
