"""The training loop: from a stream through a learner, with metrics, checkpoints and a way to stop."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np

from norewind.core import checks
from norewind.core.trees import Tree, copied, floating, norm
from norewind.learners.learner import Learner
from norewind.scoring.metrics import SEEN_AT_ONCE, Diverged, Tally, Watch, digits, next_line
from norewind.scoring.score import Score
from norewind.streams.stream import Samples, StreamError
from norewind.training.checkpoint_schema import check_score
from norewind.training.folder import METRICS, RunFolder
from norewind.training.notebook import live_plot
from norewind.training.windows import StreamLike, as_steps, check_arguments, check_fits, count_of, fingerprint


@dataclass(frozen=True)
class Intervals:
    """How often `fit` reports and saves.

    Args:
        metrics_every: samples between lines of metrics; None for about 200 lines, however long the stream is.
        checkpoint_every: samples between checkpoints; None to write only the last one.
        checkpoint_seconds: also save this many seconds after the last checkpoint; None or 0 turns this off.
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
        should_stop: called before every chunk; True ends the training early.
        settles: wait until each checkpoint is written and its hook has returned, and predict nothing early.
        live: in a notebook, draw the learning curve while it grows, at most once a second.
    """

    metrics: Callable[[dict[str, Any]], None] = lambda line: None
    checkpoint: Callable[[Path], None] = lambda path: None
    begin: Callable[["Training"], None] = lambda training: None
    chunk: Callable[[int, float], None] = lambda samples, loss: None
    predictions: Callable[[int, Samples, Any], None] | None = None
    lines: Callable[[list[dict[str, Any]]], None] | None = None
    should_stop: Callable[[], bool] = lambda: False
    settles: bool = False
    live: bool = True


class Fitted(NamedTuple):
    """The result of `fit`.

    Attributes:
        run: the run.
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
    learner: Learner,
    run: Any,
    *,
    window: int = 1,
    samples: int | None = None,
    folder: Any = None,
    intervals: Intervals = Intervals(),  # noqa: B008 (frozen)
    score: Score | None = None,
    watch: bool = True,
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
        window: the number of samples in one step of the learner.
        samples: stop after this many samples in total; by default at the end of the stream.
        folder: the path of the run folder, or an entered `RunFolder`; by default nothing is written.
        intervals: how often to report and save.
        score: how losses are expressed, for streams of symbols or rows; by default they are reported as they are.
        watch: stop when the loss or the carry explodes. Non-finite numbers always stop the run.
        hooks: functions to call along the way.

    Returns:
        The run and its number of samples.

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
    with ExitStack() as stack:
        if isinstance(folder, str | Path):
            folder = stack.enter_context(RunFolder(folder, keep=intervals.keep))
        score = score or Score()
        hooks = stack.enter_context(live_plot(hooks, score.unit))
        training = Training(stream, learner, run, window, folder, intervals, score, watch, hooks)
        hooks.begin(training)
        return training.until(samples)


class Training:
    """The loop of `fit` and its state, which is passed to `hooks.begin`.

    Attributes:
        run: always the newest run of the learner.
        learner: the learner.
        score: how its predictions are scored.
        steps: the stream, with the samples that wait for their window.
        window: the number of samples in one step of the learner.
    """

    def __init__(self, stream, learner, run, window, folder, intervals, score, watch, hooks):
        self.learner, self.window, self.folder, self.score, self.hooks = learner, window, folder, score, hooks
        self.intervals, self.watches = intervals, watch
        # A line reports the carry at that sample; a learner without a carry need not stop there.
        # Lines at a given interval, and those with a carry, are written before anything later can go wrong.
        self.cut_at_lines = intervals.metrics_every is not None or bool(jax.tree.leaves(learner.carry(run)))
        entries = folder.entries if folder else {}
        # A copy, since some learners modify the run in place.
        self.run = folder.saved.restore(run) if entries else copied(run)
        # A fleet stores its keys in the folder itself, in their state at each checkpoint.
        if folder:
            learner.keep_in(folder, entries.get("samples", 0))
        self.tally, self.watch = Tally(**entries.get("tally", {})), Watch(**entries.get("watch", {}))
        answered = entries.get("answered", 0)
        self.steps = as_steps(stream, window, entries.get("position"), self.tally.samples, answered)
        check_fits(learner, self.steps.stream.horizon, window)
        if folder and folder.saved:
            check_score(folder.saved.path, entries["score"], score.state)
            score.state = deepcopy(entries["score"])
        self.chunk = max(1, learner.chunk(run) // window)
        self.log = folder.log(METRICS) if folder else None
        self.began = time.perf_counter() - entries.get("seconds", 0.0)
        self.saved_at, self.saved_when = fingerprint(entries.get("position")), time.perf_counter()

    def until(self, samples: int | None) -> Fitted:
        """Train until the stream ends, a total number of samples is reached, or a stop is requested.

        Args:
            samples: the total number of samples; None for no limit.
        """
        ended = False
        while not ended and not self.hooks.should_stop():
            wanted = self.steps_to_take(samples)
            if wanted < 1:
                break
            try:
                taken = self.steps.take(wanted, self.intervals.flush)
            except StreamError:
                # Everything before the bad input has been learned from, and is worth keeping.
                if self.tally.samples and self.is_unsaved():
                    self.save()
                raise
            if taken is None:
                ended = True
            elif count_of(taken):
                self.learn(taken)
            elif self.is_late() and self.is_healthy() and self.is_unsaved():
                self.save()  # while the stream is silent
            if not ended:
                self.answer_early()
        # Samples waiting for their window count too: a stream that continues does not send them again.
        if self.is_unsaved():
            self.save()
        if self.folder:
            self.folder.wait()
        # After the checkpoint: a run that is continued later removes this line and completes the interval.
        if not self.hooks.should_stop() and self.tally.interval[0]:
            self.report()
        return Fitted(self.run, self.tally.samples, ended, self.learner.carry(self.run))

    def steps_to_take(self, samples: int | None) -> int:
        """Return the number of steps in the next chunk.

        It ends no later than the next checkpoint and, with a carry, the next line of metrics.

        Args:
            samples: the total number of samples after which to stop; None for no limit.
        """
        done, saves = self.tally.samples, self.intervals.checkpoint_every
        left = self.chunk if samples is None else (samples - done) // self.window
        line = self.steps_to_line() if self.cut_at_lines else self.chunk
        checkpoint = self.chunk if saves is None else -(-(saves - done % saves) // self.window)
        return min(self.chunk, left, line, checkpoint)

    def steps_to_line(self) -> int:
        """Return the number of steps to the next line of metrics."""
        done = self.tally.samples
        line = next_line(done, self.intervals.metrics_every, self.window)
        return -(-(line - done) // self.window)

    def learn(self, taken: Samples) -> None:
        """Learn from samples, report, and save if it is time.

        Args:
            taken: the samples, in whole windows.
        """
        before, count = self.tally.samples, count_of(taken)
        predicts = self.hooks.predictions is not None or self.score.needs_outputs
        self.run, seen = self.learner.scan(
            self.run, *self.steps.windows(taken, self.chunk), count=count // self.window, outputs=predicts
        )
        losses = seen[0] if predicts else seen
        losses = np.asarray(losses, np.float64)[: count // self.window] * self.score.scale
        if not np.isfinite(losses).all():
            # Most learners raise this error themselves.
            raise Diverged(f"the loss after sample {before} is not a finite number.", before)
        outputs = self.steps.flat(seen[1], count) if predicts else None
        if self.hooks.predictions is not None:
            self.hooks.predictions(*self.steps.rest(taken, outputs))
        self.note(taken, losses, outputs)
        self.hooks.chunk(self.tally.samples, float(losses.sum()) / count)

        saves = self.intervals.checkpoint_every
        is_due = self.is_late() or (saves is not None and self.tally.samples // saves > before // saves)
        if is_due and (self.is_healthy() or self.hooks.settles):
            self.save()

    def note(self, taken: Samples, losses: np.ndarray, outputs: Any) -> None:
        """Add samples to the metrics, from line to line.

        Args:
            taken: the samples that were learned from.
            losses: the loss of every step.
            outputs: the outputs that were made before learning, if they are needed.
        """
        start = 0
        while start < len(losses):
            left = self.steps_to_line()
            steps = slice(start, min(start + left, len(losses)))
            rows = slice(steps.start * self.window, steps.stop * self.window)
            part, seen = jax.tree.map(lambda leaf, rows=rows: leaf[rows], (taken, outputs))
            self.tally.add(losses[steps], rows.stop - rows.start, self.score.add(part, seen))
            start = steps.stop
            if steps.stop - steps.start == left:
                line = self.report()
                if self.watches:
                    self.watch.see(line, SEEN_AT_ONCE if self.intervals.metrics_every is None else 0)

    def answer_early(self) -> None:
        """With `flush`, predict all samples that have arrived, including those that wait for their window."""
        predict, later = self.hooks.predictions, self.intervals.flush is None or self.hooks.settles
        if predict and not later and (new := self.steps.early(self.outputs_of)):
            predict(*new)

    def outputs_of(self, waiting: Samples) -> Any:
        """Return the outputs for samples in an incomplete window. Nothing is learned: a copy of the run is used.

        Args:
            waiting: the samples.
        """
        windows = self.steps.windows(waiting, self.chunk)
        return self.learner.scan(copied(self.run), *windows, count=1, outputs=True)[1][1]

    def report(self) -> dict[str, Any]:
        """Write and return a line of metrics."""
        carry = digits(carry_norm(self.learner.carry(self.run)))
        line = {**self.tally.take(), **self.score.take(), "carry": carry, "seconds": self.seconds()}
        if self.steps.stream.counts:
            line["skipped"] = dict(self.steps.stream.counts)
        if self.log:
            self.log.write([line])
        self.hooks.metrics(line)
        return line

    def seconds(self) -> float:
        return round(time.perf_counter() - self.began, 3)

    def is_late(self) -> bool:
        oldest = self.intervals.checkpoint_seconds
        return bool(oldest) and time.perf_counter() - self.saved_when > oldest

    def is_unsaved(self) -> bool:
        return fingerprint(self.steps.position()) != self.saved_at

    def is_healthy(self) -> bool:
        """Return whether the run shows no sign of divergence. Otherwise, it must not replace the good checkpoints."""
        return self.watch.healthy or not self.watches

    def save(self) -> None:
        """Write a checkpoint. It holds everything that `__init__` reads."""
        position = self.steps.position()
        self.saved_at = fingerprint(position)
        if self.folder:
            entries = {
                "seconds": self.seconds(),
                "position": position,
                "answered": self.steps.answered,
                "tally": msgspec.structs.asdict(self.tally),
                "score": deepcopy(self.score.state),
                "watch": msgspec.structs.asdict(self.watch),
            }
            self.learner.settle(self.tally.samples)
            # A checkpoint with signs of divergence is kept in addition to the good ones.
            self.folder.save(self.tally.samples, self.run, entries, self.hooks.checkpoint, replaces=self.is_healthy())
            if self.hooks.settles:
                self.folder.wait()
        self.saved_when = time.perf_counter()  # after saving, so that slow saving leaves time to learn


def carry_norm(carry: Tree) -> float:
    """Return the Euclidean norm of a carry; 0 if there is none."""
    return float(_norm(carry)) if jax.tree.leaves(carry) else 0.0


_norm = jax.jit(lambda carry: norm(floating(carry)))
