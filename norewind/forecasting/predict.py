"""Applying a trained run: predictions on a stream, forecasts of the rows after its end, and generated text."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from norewind.core.trees import copied
from norewind.learners.steps import nearest_steps
from norewind.scoring.class_score import ClassScore
from norewind.scoring.metrics import seven_digits
from norewind.scoring.row_score import RowScore
from norewind.scoring.score import log_probabilities
from norewind.scoring.text_score import LineScore
from norewind.streams import afresh
from norewind.training.build import build, set_precision
from norewind.training.checkpoint_schema import check_waiting
from norewind.training.folder import Saved
from norewind.training.opening import Opened, open_stream
from norewind.training.settings import Settings, SettingsError
from norewind.training.training_loop import Training
from norewind.training.windows import Steps, count_of


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
        SettingsError: if the run has keys.
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
        training = restored(settings, saved, opened)
        if isinstance(opened.score, LineScore) and source is not None:
            # The typical surprise of a line is known from training; only the run's own stream continues a line.
            opened.score.state |= {"begun": False, "line": 1, "symbols": [], "bits": []}
        learner, run = training.learner, training.learner.reset(training.run) if fresh else training.run
        window = training.window if learn else 1
        steps = Steps(opened.stream, window)
        steps.waiting = training.steps.waiting if source is None else None
        chunk = max(1, learner.chunk_size(run) // window)

        def answer(run, xs, targets, count):
            if not learn:
                return learner.forward(run, xs, count=count)
            run, _, outputs = learner.scan(run, xs, targets, count=count, outputs=True)
            return run, outputs

        def outputs_of(waiting):
            return answer(copied(run), *steps.windows(waiting, chunk), 1)[1]

        done = 0
        while not should_stop():
            left = chunk if limit is None else min(chunk, (limit - done) // window)
            taken = steps.take(left, settings.flush) if left else None
            if taken is not None and (count := count_of(taken)):
                run, outputs = answer(run, *steps.windows(taken, chunk), count // window)
                yield list(
                    opened.score.prediction_entries(*steps.not_predicted_early(taken, steps.by_sample(outputs, count)))
                )
                done += count
            at_once = left and (taken is None or settings.flush is not None)
            if at_once and (new := steps.predict_waiting(outputs_of)):
                yield list(opened.score.prediction_entries(*new))
            if taken is None:
                return


def restored(settings: Settings, saved: Saved, opened: Opened) -> Training:
    """Return the training of a run folder at a checkpoint, without the folder.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        opened: its stream and score.

    Raises:
        CheckpointError: if the checkpoint does not fit the settings.
    """
    set_precision(settings)
    learner, run, window = build(settings, opened.shape)
    check_waiting(saved.path, saved.entries, window, opened.shape.inputs)
    return Training(Steps(opened.stream, window, saved), learner, run, saved, score=opened.score)


def at_the_end(settings: Settings, saved: Saved) -> Training:
    """Return the training of a run folder where it stopped, with an empty source.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
    """
    return restored(settings, saved, opened_at_the_end(settings, saved))


def opened_at_the_end(settings: Settings, saved: Saved) -> Opened:
    """Open the stream of a run folder where the run stopped, with an empty source.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
    """
    # A task generates its samples from its position, so it keeps its source.
    source = settings.source if settings.kind == "task" else os.devnull
    return open_stream(replace(settings, source=source), saved.entries["position"]["stream"], continues=True)


class Forecast(NamedTuple):
    """Forecasts of the rows after row `last`.

    Attributes:
        columns: the names of the targets.
        last: the number of the newest row.
        means: forecasts, by row (from `last` + 1 on) and target. A target with too few values, or with a constant
            value, is forecast to keep its last value.
        deviations: standard deviations of the same shape; NaN where they are not known yet.
        recent: the newest rows: values, earlier forecasts of them, and the deviations of those, by row and target.
        direct: how many rows ahead the model was trained to forecast; later rows are forecast from forecasts.
        times: when the rows are due, if the times of the table are regular.
    """

    columns: list[str]
    last: int
    means: np.ndarray
    deviations: np.ndarray
    recent: np.ndarray
    direct: int
    times: list[Any] | None = None

    def entries(self) -> list[dict[str, Any]]:
        """One entry per row, ready to be written as JSON."""
        named = [
            [dict(zip(self.columns, map(seven_digits, row), strict=True)) for row in part.tolist()]
            for part in (self.means, self.deviations)
        ]
        places = _places(self.last, len(self.means), self.times)
        rows = zip(places, *named, strict=True)
        return [place | {"forecast": mean, "deviation": deviation} for place, mean, deviation in rows]


def _places(last: int, steps: int, times: list[Any] | None) -> list[dict[str, Any]]:
    """The numbers of the forecast rows, with their times if these are regular."""
    when = [{}] * steps if times is None else [{"time": time} for time in times]
    return [{"for": last + step, **when[step - 1], "step": step} for step in range(1, steps + 1)]


def forecast(settings: Settings, saved: Saved, steps: int | None = None) -> Forecast:
    """Forecast the next rows. The source is not needed, and the run is not changed.

    Rows up to the horizon are forecast directly. For later ones, the model is given its own
    forecasts in place of rows, while inputs that it does not forecast keep their values and
    times move on. Deviations are those that the model forecasts (`--loss gaussian`), or its
    errors over the newest rows; beyond the horizon the variances add up, to at most that of
    the column.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        steps: the number of rows; by default the horizon, or 24 if that is 1.
    """
    check_ahead(settings, steps)
    training = at_the_end(settings, saved)
    with training.steps.stream:
        return rows_to_come(settings, training, steps)


def rows_to_come(settings: Settings, training: Training, steps: int | None) -> Forecast:
    """Forecast the next rows of an open stream: directly up to the horizon, then from the forecasts.

    Args:
        settings: the settings of the run.
        training: the run.
        steps: the number of rows; by default the horizon, or 24 if that is 1.

    Returns:
        The forecasts with their standard deviations.
    """
    training.add_up()
    stream, score, learner, run = training.steps.stream, training.score, training.learner, training.run_so_far()
    assert isinstance(score, RowScore)
    horizon, width = score.horizon, len(score.columns)
    steps = steps or (horizon if horizon > 1 else 24)
    # Each row is forecast with the nearest step that reaches it, made `late` rows before the newest one.
    late, reached = nearest_steps(score.steps)
    made_at = -1 - late
    # Mean and deviation of every target after each of the last rows; NaN until there are enough rows.
    scales = stream.scales_ahead(horizon)
    scales = np.pad(scales, ((horizon - len(scales), 0), (0, 0), (0, 0)), constant_values=np.nan)
    center, scale = scales[..., 0], scales[..., 1]
    means, own = score.means_and_deviations(learner.pending(run))
    means, own = center[made_at] + scale[made_at] * means, scale[made_at] * own
    errors = (own if score.gaussian else score.recent_errors()[reached])[:steps]
    means, spreads = list(means[:steps]), list(errors)
    for step in range(1, steps - horizon + 1):
        x = stream.imagined(means[step - 1], step)
        run, (outputs, _) = learner.forward(run, x[None])
        made, own = (part[0, -width:] for part in score.means_and_deviations(np.asarray(outputs)))
        means.append(center[-1] + scale[-1] * made)
        new = scale[-1] * own if score.gaussian else errors[horizon - 1]
        added = np.sqrt(new**2 + spreads[-horizon] ** 2)
        spreads.append(np.minimum(added, np.fmax(new, scale[-1] if settings.standardise else np.inf)))
    found = np.array(means)
    # Until there are enough values to scale by, forecast the last one, as the predictions do.
    found = np.where(np.isnan(found), stream.newest_targets(), found)
    newest, times = score.state["recent"], stream.times_ahead(steps)
    return Forecast(score.columns, training.received, found, np.array(spreads), newest, horizon, times)


def forecast_class(settings: Settings, saved: Saved, steps: int | None = None) -> list[dict[str, Any]]:
    """Forecast the classes of the next rows, one entry per row.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        steps: the number of rows, at most the horizon, which is the default.

    Returns:
        The most likely class of each row, with its probability.

    Raises:
        SettingsError: if the run cannot forecast this many rows.
    """
    check_ahead(settings, steps)
    training = at_the_end(settings, saved)
    assert isinstance(training.score, ClassScore)
    with training.steps.stream as stream:
        names, shares = training.score.likeliest(
            log_probabilities(training.learner.pending(training.run_so_far())[:steps])
        )
        places = _places(training.received, len(names), stream.times_ahead(len(names)))
        classes = zip(places, names, shares, strict=True)
        return [place | {"forecast": name, "probability": share} for place, name, share in classes]


def check_ahead(settings: Settings, steps: int | None) -> None:
    """Check that a run can forecast this many rows ahead.

    Args:
        settings: the settings of the run.
        steps: the number of rows; None for the default.

    Raises:
        SettingsError: if the run predicts symbols, if its horizon is 0, or if it forecasts classes and its horizon
            is less than `steps`.
    """
    if not settings.has_rows:
        raise SettingsError("this run predicts symbols: use norewind sample to generate text.")
    horizon = settings.horizon
    if not horizon:
        raise SettingsError("this run has a horizon of 0: it predicts targets of the same row, not of later rows.")
    if settings.loss == "classes" and (steps or 1) > horizon:
        rows = "one row" if horizon == 1 else f"{horizon} rows"
        raise SettingsError(f"this run forecasts classes {rows} ahead: to go further, train with --horizon {steps}.")


def sampled(
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
        SettingsError: if the run is one on rows.
    """
    if settings.has_rows:
        raise SettingsError("this run forecasts numbers; only a run on bytes or text can generate text.")
    training, random, written = at_the_end(settings, saved), np.random.default_rng(seed), []
    with training.steps.stream as stream:
        if prompt:
            xs = stream.encode(prompt)
        elif settings.kind == "task":
            xs = stream.take(1).xs
        else:
            # The model has not yet read the last symbol of the stream, nor those that wait for their window.
            waiting = training.steps.waiting
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
