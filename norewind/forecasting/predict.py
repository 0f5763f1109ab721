"""Applying a trained run: predictions on a stream, and generated text. (Forecasts are in forecasts.py.)"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from norewind.scoring.text_score import LineScore
from norewind.streams import afresh
from norewind.training.build import build, set_precision
from norewind.training.folder import Saved
from norewind.training.opening import Opened, open_stream
from norewind.training.settings import Settings, SettingsError
from norewind.training.training_loop import Training
from norewind.training.windows import WindowedStream, count_of


def predictions(
    settings: Settings,
    saved: Saved,
    source: str | None = None,
    *,
    learn: bool = False,
    fresh: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[dict[str, Any]]]:
    """Predict every sample of a stream, and report its surprise. The run folder is not changed.

    Args:
        settings: the settings of the run; `samples` limits the number of samples, and `flush` the seconds until a
            sample is predicted.
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
        raise SettingsError(
            "a run with keys only predicts while it learns: train it with --predictions file, or use norewind resume."
        )
    position, settings = saved.entries["position"]["stream"], replace(settings, final=True)
    if source is not None:
        position, settings = afresh(position), replace(settings, source=source)
    limit = None if settings.samples is None else int(settings.samples)
    opened = open_stream(settings, position, stop=should_stop)
    with opened.stream:
        training = restored_training(settings, saved, opened)
        if isinstance(opened.score, LineScore) and source is not None:
            # The typical surprise of a line is known from training; only the run's own stream continues a line.
            opened.score.state |= {"begun": False, "line": 1, "symbols": [], "bits": []}
        learner = training.learner
        if fresh:
            training.run = learner.reset(training.run)
        window = training.window if learn else 1
        windowed = WindowedStream(opened.stream, window)
        windowed.partial_window = training.windowed.partial_window if source is None else None
        chunk = max(1, learner.chunk_size(training.run) // window)

        def outputs_of(xs, targets, count):
            if learn:
                training.run, _, outputs = learner.scan(training.run, xs, targets, count=count, outputs=True)
            else:
                training.run, outputs = learner.forward(training.run, xs, count=count)
            return outputs

        done = 0
        while not should_stop():
            left = chunk if limit is None else min(chunk, (limit - done) // window)
            taken = windowed.take(left, settings.flush) if left else None
            if taken is not None and (count := count_of(taken)):
                outputs = windowed.by_sample(outputs_of(*windowed.as_windows(taken, chunk), count // window), count)
                yield list(opened.score.prediction_entries(*windowed.not_predicted_early(taken, outputs)))
                done += count
            # Without learning there are no windows to wait for.
            at_once = learn and left and (taken is None or settings.flush is not None)
            if at_once and (new := windowed.predict_partial_window(training.outputs_of)):
                yield list(opened.score.prediction_entries(*new))
            if taken is None:
                return


def restored_training(settings: Settings, saved: Saved, opened: Opened) -> Training:
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


def training_at_end(settings: Settings, saved: Saved) -> Training:
    """Return the training of a run folder where it stopped, with an empty source.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
    """
    return restored_training(settings, saved, open_at_end(settings, saved))


def open_at_end(settings: Settings, saved: Saved) -> Opened:
    """Open the stream of a run folder where the run stopped, with an empty source.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
    """
    # A task generates its samples from its position, so it keeps its source.
    source = settings.source if settings.kind == "task" else os.devnull
    return open_stream(replace(settings, source=source), saved.entries["position"]["stream"], continues=True)


def generate_text(
    settings: Settings, saved: Saved, length: int, *, prompt: str = "", temperature: float = 1.0, seed: int = 0
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
    """
    if settings.has_rows:
        raise SettingsError("this run forecasts numbers; only a run on bytes or text can generate text.")
    training, random, written = training_at_end(settings, saved), np.random.default_rng(seed), []
    with training.windowed.stream as stream:
        if prompt:
            xs = stream.encode(prompt)
        elif settings.kind == "task":
            xs = stream.take(1).xs
        else:
            # The model has not yet read the last symbol of the stream, nor those that wait for their window.
            waiting = training.windowed.partial_window
            xs = np.array([*([] if waiting is None else waiting.xs), stream.position()["previous"] or 0], np.int32)
        run = training.run
        for _ in range(length):
            run, outputs = training.learner.forward(run, xs)
            logits = np.asarray(outputs[-1], np.float64)
            chances = np.where(training.score.state["seen"], logits / temperature, -np.inf)
            chances = np.exp(chances - chances.max())
            written.append(random.choice(len(chances), p=chances / chances.sum()))
            xs = np.array(written[-1:], np.int32)
        return stream.decode(np.array(written, np.int32))
