"""A run in training: what it learns from samples, reports in its metrics, and saves in its checkpoints."""

import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import jax
import numpy as np
from msgspec.structs import asdict

from norewind.core.trees import Tree, align_arrays, concatenate_trees, copy_arrays, floats_norm
from norewind.errors import Diverged
from norewind.learners.learner import BaseLearner, Forecasts, Learner
from norewind.scoring.divergence import DETECTION_SAMPLES, DivergenceDetector
from norewind.scoring.drift import MemberWeights
from norewind.scoring.metrics import next_line
from norewind.scoring.score import Outputs, Score
from norewind.scoring.tally import Tally
from norewind.storage.checkpoint import arrays_of
from norewind.streams.position import fingerprint
from norewind.streams.stream import Samples, StreamError
from norewind.training.folder import RunFolder, SavedRun
from norewind.training.hooks import Hooks, Intervals
from norewind.training.log import METRICS
from norewind.training.windows import WindowedStream, sample_count
from norewind.wording import digits

# Metrics of single rows are computed for this many rows at once, unless they are read earlier. Row by row, they would
# take as long as learning.
SCORED_TOGETHER = 200


class Training:
    """A run in training: its learner, stream and metrics, and what a checkpoint saves of them.

    `fit` trains it on its stream, in chunks (`train_until`). The forecasting models give it single rows (`learn_row`).

    Args:
        windowed: the stream in windows, at the position of `saved`.
        learner: predicts and learns, step by step.
        run: a new run of the learner.
        saved: the checkpoint to continue from; None for a new run.
        score: how predictions are scored.
        intervals: how often to report and save.
        stop_if_diverged: stop when the loss or the carry explodes.
        hooks: functions to call along the way.
        folder: an entered run folder to write to; None to write nothing.

    Attributes:
        run: always the latest run of the learner.
        tally: the sums of losses.
        divergence: the state of the detection of divergence.

    Raises:
        CheckpointError: the checkpoint does not fit the learner or the score.
        ValueError: the learner does not fit the stream.
    """

    def __init__(
        self,
        windowed: WindowedStream,
        learner: BaseLearner,
        run: Any,
        saved: SavedRun | None = None,
        *,
        score: Score,
        intervals: Intervals = Intervals(),  # noqa: B008 (frozen)
        stop_if_diverged: bool = True,
        hooks: Hooks = Hooks(),  # noqa: B008 (frozen)
        folder: RunFolder | None = None,
    ):
        self.learner = learner
        self.windowed = windowed
        self.window = windowed.window
        self.score = score
        self.hooks = hooks
        self.intervals = intervals
        self.stop_if_diverged = stop_if_diverged
        self.folder = folder
        entries = saved.entries if saved else {}
        # A copy, since some learners modify the run in place.
        self.run = align_arrays(saved.restore(run) if saved else copy_arrays(run))
        self.tally = Tally(**entries.get("tally", {}))
        self.divergence = DivergenceDetector(**entries.get("divergence", {}))
        self.weights = MemberWeights(**entries.get("weights", {}))
        # A fleet stores its keys in the folder itself, in their state at each checkpoint.
        if folder:
            learner.keep_in(folder, self.tally.samples)
        self._check_fits()
        if saved:
            saved.restore_score(score)
        # A line reports the carry at that sample; a learner without a carry need not stop there.
        # Lines at a given interval, and those with a carry, are written before anything later can go wrong.
        self.cut_at_lines = intervals.metrics_every is not None or bool(jax.tree.leaves(learner.carry(run)))
        self.chunk_size = max(1, learner.chunk_size(run) // self.window)
        self.log = folder.log(METRICS) if folder else None
        self._predicts = hooks.outputs is not None or hooks.predictions is not None
        self._seconds: float = entries.get("seconds", 0.0)
        self._began: float | None = None
        self._saved_position = fingerprint(entries.get("position"))
        self._saved_time = time.perf_counter()
        # Single samples that are not in the metrics yet, and the state of the run at the lines that are due among them.
        self._unscored: list[tuple[Samples, np.ndarray, Outputs | None]] = []
        # How many of the latest of these are not among the usual values of the score yet.
        self._unnoted = 0
        self._states: dict[int, dict[str, Any]] = {}
        self._next_line = self._end_of_line()

    def _check_fits(self) -> None:
        """Reject a learner made for other steps or windows than those of the stream."""
        learner, steps = self.learner, self.windowed.stream.steps
        if learner.steps != steps:
            ahead = "norewind.learners.AheadLearner"
            needed = f"{ahead}(learner, loss, steps=stream.steps)" if steps else f"one without {ahead}"
            differ = f"the learner forecasts the steps {learner.steps}, but those of the stream are {steps}"
            raise ValueError(f"fit: {differ}: use {needed}.")
        if learner.window not in (0, self.window):
            raise ValueError(f"fit: window is {self.window}, but the learner takes windows of {learner.window}.")

    @property
    def samples(self) -> int:
        """The number of samples learned from."""
        return self.tally.samples + len(self._unscored)

    @property
    def received(self) -> int:
        """The number of samples learned from, and those that wait for their window."""
        return self.samples + sample_count(self.windowed.partial_window)

    def train_until(self, samples: int | None = None) -> bool:
        """Train until the stream ends, a total number of samples is reached, or a stop is requested.

        Args:
            samples: the total number of samples; None for no limit.

        Returns:
            Whether the stream has ended.
        """
        self._began = time.perf_counter() - self._seconds
        self.hooks.begin(self)
        ended = False
        while not ended and not self.hooks.should_stop():
            wanted = self._steps_to_take(samples)
            if wanted < 1:
                break
            try:
                taken = self.windowed.take(wanted, self.intervals.flush)
            except StreamError:
                # Everything before the bad input has been learned from, and is worth keeping.
                if self.samples:
                    self.save()
                raise
            if taken is None:
                ended = True
            elif sample_count(taken):
                self.learn(taken)
            elif self._is_late() and self.is_healthy():
                self.save()  # while the stream is silent
            if not ended:
                self._predict_early()
        # Samples waiting for their window count too: a stream that continues does not send them again.
        self.save()
        if self.folder:
            self.folder.writer.wait()
        return ended

    def _steps_to_take(self, samples: int | None) -> int:
        """Return the number of steps in the next chunk.

        It ends no later than the next checkpoint and, with a carry, the next line of metrics.
        """
        steps = self.chunk_size
        if samples is not None:
            steps = min(steps, (samples - self.samples) // self.window)
        if self.cut_at_lines:
            steps = min(steps, self._steps_to_line())
        every = self.intervals.checkpoint_every
        if every is not None:
            steps = min(steps, -(-(every - self.samples % every) // self.window))
        return steps

    def _end_of_line(self) -> int:
        """Return the number of samples at the next line of metrics."""
        return next_line(self.samples, self.intervals.metrics_every, self.window)

    def _steps_to_line(self) -> int:
        return -(-(self._end_of_line() - self.samples) // self.window)

    def learn(self, taken: Samples) -> None:
        """Learn from samples, report, and save if it is time.

        Args:
            taken: the samples, in whole windows.
        """
        before = self.samples
        count = sample_count(taken)
        steps = count // self.window
        xs, targets = self.windowed.as_windows(taken, self.chunk_size)
        needs_outputs = self._predicts or self.score.needs_outputs
        self.run, losses, outputs = self.learner.scan(self.run, xs, targets, count=steps, outputs=needs_outputs)
        losses = np.asarray(losses, np.float64)[:steps]
        if not np.isfinite(losses).all():
            # Most learners raise this error themselves.
            raise Diverged(f"the loss after sample {before} is not a finite number.", before)
        outputs = self.windowed.by_sample(outputs, count)
        self._report_predictions(*self.windowed.not_predicted_early(taken, outputs))
        self._unscored.append((taken, losses, outputs))
        self.update_metrics()
        self.hooks.chunk(self.samples, float((losses * self.score.scale).sum()) / count)

        every = self.intervals.checkpoint_every
        is_due = self._is_late() or (every is not None and self.samples // every > before // every)
        if is_due and (self.is_healthy() or self.intervals.wait_for_checkpoints):
            self.save()

    def learn_row(self, row: dict[str, Any]) -> None:
        """Learn from a row that is not in the stream. It is added to the metrics later, together with others.

        Args:
            row: its values by column.

        Raises:
            StreamError: the row is bad. Nothing changes.
        """
        sample = self.windowed.rows.take_row(row)
        if not len(sample.xs):
            return
        self.run, losses, outputs = self.learner.scan(self.run, sample.xs, sample.targets, outputs=True)
        self._unscored.append((sample, losses, outputs))
        self._unnoted += 1
        if self.samples >= self._next_line:
            self._states[self.samples] = self._state()
            self._next_line = self._end_of_line()
        if len(self._unscored) >= SCORED_TOGETHER:
            self.update_metrics()

    def update_metrics(self) -> None:
        """Add the samples learned from to the metrics, and publish the lines that are due."""
        if not self._unscored:
            return
        unscored, self._unscored = self._unscored, []
        taken, losses, outputs = concatenate_trees(unscored)
        self._note_rows(taken, outputs)
        losses = np.asarray(losses, np.float64) * self.score.scale
        start = 0
        while start < len(losses):
            left = self._steps_to_line()
            steps = slice(start, min(start + left, len(losses)))
            rows = slice(steps.start * self.window, steps.stop * self.window)
            part, seen = jax.tree.map(lambda leaf, rows=rows: leaf[rows], (taken, outputs))
            self.tally.add(losses[steps], rows.stop - rows.start, self.score.add(part, seen))
            if isinstance(seen, Forecasts) and seen.weights is not None:
                self.weights.add(seen.weights)
            start = steps.stop
            if steps.stop - steps.start == left:
                line = self._line()
                self.publish(line)
                if self.stop_if_diverged:
                    self.divergence.check(line, DETECTION_SAMPLES if self.intervals.metrics_every is None else 0)

    def _note_rows(self, taken: Samples, outputs: Outputs | None) -> None:
        """Add the latest rows of `learn_row` to the usual values: together, which is faster than one by one.

        Args:
            taken: samples that end with these rows.
            outputs: their outputs.
        """
        if self._unnoted:
            latest = slice(-self._unnoted, None)
            self._unnoted = 0
            self.score.note_usual(*jax.tree.map(lambda leaf: leaf[latest], (taken, outputs)))

    def _line(self) -> dict[str, Any]:
        """Return the line of metrics that ends here, and start a new interval."""
        state = self._states.pop(self.tally.samples, None) or self._state()
        line = {**self.tally.end_interval(), **self.score.end_interval(), **state}
        self.weights.add_line(line, self.learner.member_names)
        return line

    def _state(self) -> dict[str, Any]:
        """Return the entries of a line of metrics that describe the run."""
        state: dict[str, Any] = {"carry": digits(floats_norm(self.learner.carry(self.run)))}
        state |= {name: digits(value) for name, value in self.learner.report(self.run).items()}
        state["seconds"] = self._seconds_so_far()
        if skipped := self.windowed.stream.counts:
            state["skipped"] = dict(skipped)
        return state

    def unfinished_line(self) -> dict[str, Any] | None:
        """Return the line of metrics of the current interval, which continues; None if it is empty."""
        self.update_metrics()
        if not self.tally.interval[0]:
            return None
        before = deepcopy((self.tally, self.score.state, self.weights))
        line = self._line()
        self.tally, self.score.state, self.weights = before
        return line

    def publish(self, line: dict[str, Any]) -> None:
        """Write a line of metrics.

        Args:
            line: its entries by name, as in metrics.jsonl.
        """
        if self.log:
            self.log.write([line])
        self.hooks.metrics(line)

    def _predict_early(self) -> None:
        """With `flush`, predict all samples that have arrived, including those that wait for their window."""
        waits = self.intervals.flush is None or self.intervals.wait_for_checkpoints
        if self._predicts and not waits and (new := self.windowed.predict_partial_window(self.outputs_of)):
            self._report_predictions(*new)

    def _report_predictions(self, first: int, samples: Samples, outputs: Outputs | None) -> None:
        """Pass predictions to the hooks. Every sample comes here once, in order, early or when it is learned from."""
        if outputs is None:
            return
        entries = list(self.score.prediction_entries(first, samples, outputs)) if self.hooks.predictions else []
        self.score.note_usual(samples, outputs)
        if self.hooks.outputs is not None:
            self.hooks.outputs(first, samples, outputs)
        if self.hooks.predictions is not None:
            self.hooks.predictions(entries)

    def usual_so_far(self) -> np.ndarray | None:
        """Return what `RowScore.anomaly_entries` compares the next row with, after those that wait for their window."""
        if self._unnoted:
            self._note_rows(*concatenate_trees([(taken, made) for taken, _, made in self._unscored[-self._unnoted :]]))
        waiting, noted = self.windowed.partial_window, self.windowed.predicted_early
        usual, count = self.score.usual_after(None, None), sample_count(waiting)
        if usual is None or waiting is None or count == noted:
            return usual
        outputs = self.windowed.by_sample(self.outputs_of(waiting), count)
        return self.score.usual_after(*jax.tree.map(lambda leaf: leaf[noted:], (waiting, outputs)))

    def outputs_of(self, waiting: Samples) -> Tree:
        """Return the outputs for samples in an incomplete window. Nothing is learned: a copy of the run is used.

        Args:
            waiting: the samples.
        """
        windows = self.windowed.as_windows(waiting, self.chunk_size)
        return self.learner.scan(copy_arrays(self.run), *windows, count=1, outputs=True)[2]

    def run_so_far(self) -> Any:
        """Return the run after all samples, including those that wait for their window, for `Learner.forward`."""
        waiting = self.windowed.partial_window
        if waiting is None:
            return self.run
        # Padded to a window, so that the function is compiled only once.
        xs = jax.tree.map(lambda leaf: leaf[0], self.windowed.as_windows(waiting, 1)[0])
        assert isinstance(self.learner, Learner)
        return self.learner.forward(self.run, xs, count=sample_count(waiting))[0]

    def _seconds_so_far(self) -> float:
        """Return the time spent in `train_until`, also before the checkpoint that the training continued from."""
        return self._seconds if self._began is None else round(time.perf_counter() - self._began, 3)

    def _is_late(self) -> bool:
        oldest = self.intervals.checkpoint_seconds
        return bool(oldest) and time.perf_counter() - self._saved_time > oldest

    def is_healthy(self) -> bool:
        """Return whether the run shows no sign of divergence. Otherwise, it must not replace the good checkpoints."""
        return self.divergence.healthy or not self.stop_if_diverged

    def entries(self) -> dict[str, Any]:
        """Return everything that a checkpoint saves besides the run."""
        self.update_metrics()
        return {
            "seconds": self._seconds_so_far(),
            "position": self.windowed.position(),
            "predicted_early": self.windowed.predicted_early,
            "tally": asdict(self.tally),
            "score": deepcopy(asdict(self.score.state)),
            "divergence": asdict(self.divergence),
            "weights": asdict(self.weights),
        }

    def snapshot(self) -> SavedRun:
        """Return the training as a checkpoint in memory, from which another one can continue."""
        return SavedRun(Path("memory"), arrays_of(self.run), self.entries())

    def save(self) -> None:
        """Write a checkpoint, if there is a folder and the stream has advanced since the last one."""
        if not self.folder or (position := fingerprint(self.windowed.position())) == self._saved_position:
            return
        entries, self._saved_position = self.entries(), position
        # A checkpoint with signs of divergence is kept in addition to the good ones.
        self.folder.save(self.samples, self.run, entries, after=self.hooks.checkpoint, replaces=self.is_healthy())
        if self.intervals.wait_for_checkpoints:
            self.folder.writer.wait()
        self._saved_time = time.perf_counter()  # after saving, so that slow saving leaves time to learn
