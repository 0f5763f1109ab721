"""Applying a trained run: predictions on a stream, forecasts of the rows after its end, and generated text."""

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from norewind import names
from norewind.learners.protocol import Learner
from norewind.learners.steps import nearest_steps
from norewind.runs.build import Built, Opened, Shape, build, open_stream, set_precision
from norewind.runs.entries import check_left, check_score
from norewind.runs.folder import Saved
from norewind.runs.metrics import seven_digits
from norewind.runs.row_scores import RowScore
from norewind.runs.scores import LineScore, log_shares
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.windows import as_steps, count_of
from norewind.streams import ByteStream, afresh
from norewind.streams.symbols import check_symbols, decode, encode


def predictions(
    settings: Settings,
    saved: Saved,
    source: str | None = None,
    *,
    learn: bool = False,
    fresh: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[dict[str, Any]]]:
    """Predictions and surprise for every sample of a stream, as they come. The run folder is not changed.

    Reads the run's own stream from where the run stopped, or another source, up to
    `settings.samples` and within `settings.flush` seconds. `learn`: keep learning along the
    way. `fresh`: begin with the initial state. Ends when `should_stop()` returns True.
    """
    if settings.key is not None:
        raise SettingsError(
            "a run with keys only predicts while it learns: train it with --predictions file, or use norewind resume."
        )
    position, settings = saved.entries["position"], replace(settings, final=True)
    if source is not None:
        position = {"stream": afresh(position["stream"]), "left": None}
        settings = replace(settings, source=source)
    limit = None if settings.samples is None else int(settings.samples)
    opened = open_stream(settings, position["stream"], stop=should_stop)
    with opened.stream:
        if isinstance(opened.score, LineScore):
            # What is usual is known; the line that was cut off goes on only in the run's own stream.
            begins = {} if source is None else {"begun": False, "line": 1, "symbols": [], "bits": []}
            check_score(saved.path, saved.entries["score"], opened.score.state)
            opened.score.state = {**deepcopy(saved.entries["score"]), **begins}
        built = restored(settings, saved, opened.shape)
        learner, run = built.learner, built.learner.reset(built.run) if fresh else built.run
        window = built.window if learn else 1
        steps = as_steps(opened.stream, window, position)
        chunk = max(1, learner.chunk(run) // window)

        def answer(run, xs, targets, count):
            if not learn:
                return learner.forward(run, xs, count=count)
            run, (_, outputs) = learner.scan(run, xs, targets, count=count, outputs=True)
            return run, outputs

        def outputs_of(waiting):
            return answer(run, *steps.windows(waiting, chunk), 1)[1]

        done = 0
        while not should_stop():
            left = chunk if limit is None else min(chunk, (limit - done) // window)
            taken = steps.take(left, settings.flush) if left else None
            if taken is not None and (count := count_of(taken)):
                run, outputs = answer(run, *steps.windows(taken, chunk), count // window)
                yield list(opened.score.predictions(*steps.rest(taken, steps.flat(outputs, count))))
                done += count
            at_once = left and (taken is None or settings.flush is not None)
            if at_once and (new := steps.early(outputs_of)):
                yield list(opened.score.predictions(*new))
            if taken is None:
                return


def restored(settings: Settings, saved: Saved, shape: Shape) -> Built:
    set_precision(settings)
    built = build(settings, shape)
    check_left(saved.path, saved.entries["position"]["left"], built.window, shape.inputs)
    return built._replace(run=saved.restore(built.run))


class Forecast(NamedTuple):
    """Forecasts of the rows after row `last`: the first of `means` and `deviations` is that of row `last` + 1.

    Both have the shape (steps, targets); NaN where nothing is known yet. A target that has had
    too few values, or always the same one, is forecast to keep it. `recent` holds the newest
    rows: values, what had been forecast of them, and its deviation. `direct` is how
    many rows ahead the model was trained to forecast; later rows are forecast from forecasts.
    `times` are those of the rows to come, if the times of the table are regular.
    """

    columns: list[str]
    last: int
    means: np.ndarray
    deviations: np.ndarray
    recent: np.ndarray
    direct: int
    times: list[Any] | None = None

    def entries(self) -> list[dict[str, Any]]:
        """One entry per row, as JSON."""
        named = [
            [dict(zip(self.columns, map(seven_digits, row), strict=True)) for row in part.tolist()]
            for part in (self.means, self.deviations)
        ]
        places = _places(self.last, len(self.means), self.times)
        rows = zip(places, *named, strict=True)
        return [place | {"forecast": mean, "deviation": deviation} for place, mean, deviation in rows]


def _places(last: int, steps: int, times: list[Any] | None) -> list[dict[str, Any]]:
    """The numbers of the forecast rows, and their times if times are regular."""
    when = [{}] * steps if times is None else [{"time": time} for time in times]
    return [{"for": last + step, **when[step - 1], "step": step} for step in range(1, steps + 1)]


def forecast(settings: Settings, saved: Saved, steps: int | None = None) -> Forecast:
    """Forecast the rows that come next. The source is not needed, and the run is not changed.

    Rows up to the horizon are forecast directly. For later ones, the model is given its own
    forecasts in place of rows, while inputs that it does not forecast keep their values and
    times move on. Deviations are those that the model forecasts (`--loss gaussian`), or its
    errors over the newest rows; beyond the horizon the variances add up, to at most that of
    the column.
    """
    check_ahead(settings, steps)
    opened, learner, run, last = _at_the_end(settings, saved)
    with opened.stream:
        return rows_to_come(settings, opened, learner, run, steps, last)


def rows_to_come(
    settings: Settings, opened: Opened, learner: Learner, run: Any, steps: int | None, last: int
) -> Forecast:
    """Forecast the rows after row `last`: directly up to the horizon, then from the forecasts."""
    stream, score = opened.stream, opened.score
    assert isinstance(score, RowScore)
    horizon, width = score.horizon, len(score.columns)
    steps = steps or (horizon if horizon > 1 else 24)
    # Each row by the nearest step that reaches it, made so many rows before the newest one.
    late, reached = nearest_steps(score.steps)
    made_at = -1 - late
    # Mean and deviation of every target after each of the last rows; NaN until there are enough rows.
    scales = stream.scales_ahead(horizon)
    scales = np.pad(scales, ((horizon - len(scales), 0), (0, 0), (0, 0)), constant_values=np.nan)
    center, scale = scales[..., 0], scales[..., 1]
    means, own = score.forecasts(learner.pending(run))
    means, own = center[made_at] + scale[made_at] * means, scale[made_at] * own
    errors = (own if score.gaussian else score.recent_errors()[reached])[:steps]
    means, spreads = list(means[:steps]), list(errors)
    for step in range(1, steps - horizon + 1):
        x = stream.imagined(means[step - 1], step)
        run, (outputs, _) = learner.forward(run, x[None])
        made, own = (part[0, -width:] for part in score.forecasts(np.asarray(outputs)))
        means.append(center[-1] + scale[-1] * made)
        new = scale[-1] * own if score.gaussian else errors[horizon - 1]
        added = np.sqrt(new**2 + spreads[-horizon] ** 2)
        spreads.append(np.minimum(added, np.fmax(new, scale[-1] if settings.standardise else np.inf)))
    found = np.array(means)
    # Before there are enough values to scale by, the last one, as in the predictions.
    found = np.where(np.isnan(found), stream.newest_targets(), found)
    newest, times = score.state["recent"], stream.times_ahead(steps)
    return Forecast(score.columns, last, found, np.array(spreads), newest, horizon, times)


def forecast_class(settings: Settings, saved: Saved, steps: int | None = None) -> list[dict[str, Any]]:
    """The classes of future rows, as many as the model was trained to forecast ahead, one entry per row."""
    check_ahead(settings, steps)
    opened, learner, run, last = _at_the_end(settings, saved)
    with opened.stream as stream:
        probabilities = np.exp(log_shares(learner.pending(run)[:steps]))
        places = _places(last, len(probabilities), stream.times_ahead(len(probabilities)))
        return [
            {**place, "forecast": stream.class_name(int(row.argmax())), "probability": round(float(row.max()), 6)}
            for place, row in zip(places, probabilities, strict=True)
        ]


def check_ahead(settings: Settings, steps: int | None) -> None:
    """Refuse a run that cannot forecast this far ahead."""
    if settings.kind not in ("csv", "jsonl"):
        raise SettingsError("this run predicts symbols: use norewind sample to generate text.")
    horizon = settings.horizon
    if not horizon:
        raise SettingsError("this run has a horizon of 0: it predicts targets of the same row, and nothing ahead.")
    if settings.loss == "classes" and (steps or 1) > horizon:
        rows = "one row" if horizon == 1 else f"{horizon} rows"
        raise SettingsError(f"this run forecasts classes {rows} ahead: to go further, train with --horizon {steps}.")


def _at_the_end(settings: Settings, saved: Saved) -> tuple[Opened, Any, Any, int]:
    """The stream of a run at its end, without its source; the learner, its run, and how many rows it has seen."""
    position = saved.entries["position"]
    opened = open_stream(replace(settings, source=os.devnull), position["stream"], continues=True)
    built = restored(settings, saved, opened.shape)
    check_score(saved.path, saved.entries["score"], opened.score.state)
    opened.score.state = saved.entries["score"]
    run, last = built.run, saved.entries["samples"]
    if position["left"]:
        # Rows that wait for their window.
        xs = position["left"][0]
        run, _ = built.learner.forward(run, xs)
        last += len(xs)
    return opened, built.learner, run, last


def sampled(
    settings: Settings, saved: Saved, length: int, *, prompt: str = "", temperature: float = 1.0, seed: int = 0
) -> bytes:
    """Text of `length` symbols that the model writes, after its own stream or after a prompt.

    Only symbols that the run has seen are written. A `temperature` below 1 prefers likely
    ones. `seed` is that of the random choices.
    """
    encode, decode, symbols = _code(settings, saved)
    built = restored(settings, saved, Shape(symbols, symbols, True))
    start = encode(prompt) if prompt else _unread(settings, saved)
    known = {"seen": saved.entries["score"].get("seen")}
    check_score(saved.path, known, {"seen": [True] * symbols})
    run, random = built.run, np.random.default_rng(seed)
    run, outputs = built.learner.forward(run, start)
    logits, written = np.asarray(outputs[-1], np.float64), []
    for _ in range(length):
        chances = np.where(known["seen"], logits / temperature, -np.inf)
        chances = np.exp(chances - chances.max())
        written.append(random.choice(symbols, p=chances / chances.sum()))
        run, outputs = built.learner.forward(run, np.array(written[-1:], np.int32))
        logits = np.asarray(outputs[0], np.float64)
    return decode(np.array(written, np.int32))


def _unread(settings: Settings, saved: Saved) -> np.ndarray:
    """The symbols that the model has not seen yet: the last one of the stream, and those short of a window."""
    position = saved.entries["position"]
    if settings.kind == "task":
        with open_stream(settings, position["stream"]).stream as stream:
            return stream.take(1).xs
    left, previous = position["left"], position["stream"]["previous"]
    return np.array([*(left[0] if left else []), 0 if previous is None else previous], np.int32)


def _code(settings: Settings, saved: Saved) -> tuple[Callable[[str], np.ndarray], Callable[[np.ndarray], bytes], int]:
    """How text becomes symbols and back, and the number of symbols. The source itself may be gone."""
    if settings.kind in ("csv", "jsonl"):
        raise SettingsError("this run forecasts numbers; only a run on bytes or text can write text.")
    if settings.kind == "bytes":
        check_symbols(saved.entries["position"]["stream"], "bytes")
        return ByteStream.encode, ByteStream.decode, ByteStream.symbols
    if settings.kind == "task":
        alphabet = names.task(settings.source, settings.parameters).alphabet
        size = len(alphabet)
    else:
        alphabet = saved.entries["position"]["stream"].get("alphabet", "")
        size = len(settings.alphabet or "") or settings.alphabet_size
        check_symbols(saved.entries["position"]["stream"], "characters", settings.alphabet, size)
    return partial(encode, alphabet=alphabet), partial(decode, alphabet=alphabet, size=size), size
