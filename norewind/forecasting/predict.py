"""Applying a trained run: predictions on a stream, and generated text. (Forecasts are in forecasts.py.)"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from norewind.learners.learner import Learner
from norewind.scoring.score import log_probabilities
from norewind.scoring.text_score import LineScore, SymbolScore
from norewind.storage.checkpoint import CheckpointError
from norewind.streams import ByteStream, CharacterStream, StreamError, TaskStream, restart_position
from norewind.training.build import build, set_precision
from norewind.training.folder import SavedRun
from norewind.training.open_stream import OpenedStream, open_stream
from norewind.training.settings import Settings, SettingsError
from norewind.training.training_loop import Training
from norewind.training.windows import WindowedStream, sample_count


def predictions(
    settings: Settings,
    saved: SavedRun,
    source: str | None = None,
    *,
    learn: bool = False,
    fresh: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[dict[str, Any]]]:
    """Predict every sample of a stream, and report its surprise. The run folder is not changed.

    Args:
        settings: the settings of the run, in which `samples` and `flush` limit the samples and the seconds to wait.
        saved: its checkpoint.
        source: the source to read; by default the run's own stream, from where the run stopped.
        learn: keep learning along the way.
        fresh: begin with the initial state.
        should_stop: called before every chunk; True ends the predictions.

    Returns:
        An iterator over chunks, each a list of one entry per sample.

    Raises:
        SettingsError: the run has keys.
    """
    if settings.key is not None:
        raise SettingsError('a run with keys only predicts while it learns: train it with predictions="file".')
    position, settings = saved.entries["position"]["stream"], replace(settings, final=True)
    if source is not None:
        position, settings = restart_position(position), replace(settings, source=source)
    opened = open_stream(settings, position, stop=should_stop)
    with opened.stream:
        training = restored_training(settings, saved, opened)
        if isinstance(opened.score, LineScore) and source is not None:
            # The typical surprise of a line is known from training; only the run's own stream continues a line.
            opened.score.start_text()
        learner = training.learner
        assert isinstance(learner, Learner)
        if fresh:
            training.run = learner.reset(training.run)
        window = training.window if learn else 1
        windowed = WindowedStream(opened.stream, window)
        windowed.partial_window = training.windowed.partial_window if source is None else None
        chunk = max(1, learner.chunk_size(training.run) // window)

        def outputs_of(xs, targets, count):
            if learn:
                training.run, _, outputs = learner.scan(training.run, xs, targets, count=count, outputs=True)
                return outputs
            training.run, outputs = learner.forward(training.run, xs, count=count)
            return outputs

        # These samples are in the run's statistics already, also those of its partial window.
        noted = windowed.predicted + (training.windowed.predicted_early if source is None else 0)

        def report(first, samples, outputs):
            entries = list(opened.score.prediction_entries(first, samples, outputs))
            new = max(0, noted + 1 - first)
            opened.score.note_usual(*jax.tree.map(lambda leaf: leaf[new:], (samples, outputs)))
            return entries

        done = 0
        while not should_stop():
            left = chunk if settings.samples is None else min(chunk, (int(settings.samples) - done) // window)
            taken = windowed.take(left, settings.flush) if left else None
            if taken is not None and (count := sample_count(taken)):
                outputs = windowed.by_sample(outputs_of(*windowed.as_windows(taken, chunk), count // window), count)
                yield report(*windowed.not_predicted_early(taken, outputs))
                done += count
            # Without learning there are no windows to wait for.
            at_once = learn and left and (taken is None or settings.flush is not None)
            if at_once and (new := windowed.predict_partial_window(training.outputs_of)):
                yield report(*new)
            if taken is None:
                return


def restored_training(settings: Settings, saved: SavedRun, opened: OpenedStream) -> Training:
    """Return the training of a run folder at a checkpoint, without the folder.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        opened: its stream and score.

    Raises:
        CheckpointError: the checkpoint does not fit the settings.
    """
    set_precision(settings)
    learner, run, window = build(settings, opened.shape)
    return Training(WindowedStream(opened.stream, window, saved), learner, run, saved, score=opened.score)


def training_at_end(settings: Settings, saved: SavedRun) -> Training:
    """Return the training of a run folder where it stopped, with an empty source.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
    """
    return restored_training(settings, saved, open_at_end(settings, saved))


def open_at_end(settings: Settings, saved: SavedRun) -> OpenedStream:
    """Open the stream of a run folder where the run stopped, with an empty source.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.

    Raises:
        CheckpointError: the run has not learned from anything yet.
    """
    # A task generates its samples from its position, so it keeps its source.
    source = settings.source if settings.kind == "task" else os.devnull
    try:
        return open_stream(replace(settings, source=source), saved.entries["position"]["stream"], continues=True)
    except StreamError:
        if saved.entries["samples"]:
            raise
        raise _untrained_error(saved) from None


def _untrained_error(saved: SavedRun) -> CheckpointError:
    folder = saved.path.parent.parent
    return CheckpointError(f"{folder} has learned from nothing yet. Train it first: norewind resume {folder}")


def generate_text(
    settings: Settings, saved: SavedRun, length: int, *, prompt: str = "", temperature: float = 1.0, seed: int = 0
) -> bytes:
    """Generate text with the model of a run. Only symbols that the run has seen are generated.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        length: the number of symbols to generate.
        prompt: the text to read first; by default, the text continues the run's own stream.
        temperature: divides the logits; below 1, likely symbols become more likely.
        seed: the seed of the random choices.

    Returns:
        The generated text, without the prompt.

    Raises:
        SettingsError: the run was trained on rows.
        CheckpointError: the run has not learned from anything yet.
    """
    if settings.has_rows:
        raise SettingsError("this run forecasts numbers; only a run on bytes or text can generate text.")
    training, random = training_at_end(settings, saved), np.random.default_rng(seed)
    score, learner = training.score, training.learner
    assert isinstance(score, SymbolScore)
    assert isinstance(learner, Learner)
    written: list[int] = []
    with training.windowed.stream as stream:
        if not any(score.state.seen):
            raise _untrained_error(saved)
        assert isinstance(stream, ByteStream | CharacterStream | TaskStream)
        if prompt:
            xs = stream.encode(prompt)
        elif isinstance(stream, TaskStream):
            xs = stream.take(1).xs
        else:
            # The model has not yet read the last symbol of the stream, nor those that wait for their window.
            waiting = training.windowed.partial_window
            xs = np.array([*([] if waiting is None else waiting.xs), stream.position()["previous"] or 0], np.int32)
        run = training.run
        for _ in range(length):
            run, outputs = learner.forward(run, xs)
            logits = np.where(score.state.seen, np.asarray(outputs[-1], np.float64) / temperature, -np.inf)
            written.append(random.choice(len(logits), p=np.exp(log_probabilities(logits))))
            xs = np.array(written[-1:], np.int32)
        return stream.decode(np.array(written, np.int32))
