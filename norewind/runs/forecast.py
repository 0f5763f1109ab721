"""Forecasts of the rows after the end of a trained run's stream."""

import os
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from norewind.learners.protocol import Learner
from norewind.runs.build import Opened, open_stream
from norewind.runs.entries import check_score
from norewind.runs.folder import Saved
from norewind.runs.metrics import seven_digits
from norewind.runs.predict import restored
from norewind.runs.row_scores import RowScore
from norewind.runs.settings import Settings, SettingsError


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
        places = _places(self.last, len(self.means), self.times)
        rows = zip(places, self.means.tolist(), self.deviations.tolist(), strict=True)
        return [
            {**place, "forecast": self._row(mean), "deviation": self._row(deviation)} for place, mean, deviation in rows
        ]

    def _row(self, values: list[float]) -> dict[str, float | None]:
        return dict(zip(self.columns, map(seven_digits, values), strict=True))


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
    reached = [next(place for place, step in enumerate(score.steps) if step >= row) for row in range(1, horizon + 1)]
    made_at = [-1 - (score.steps[place] - row) for row, place in enumerate(reached, 1)]
    center, scale = _scales(opened, horizon)
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


def _scales(opened: Opened, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of every target after each of the last rows; NaN until there are enough rows."""
    scales = opened.stream.scales_ahead(rows)
    if len(scales) < rows:
        scales = np.pad(scales, ((rows - len(scales), 0), (0, 0), (0, 0)), constant_values=np.nan)
    return scales[..., 0], scales[..., 1]


def forecast_class(settings: Settings, saved: Saved, steps: int | None = None) -> list[dict[str, Any]]:
    """The classes of future rows, as many as the model was trained to forecast ahead, one entry per row."""
    check_ahead(settings, steps)
    opened, learner, run, last = _at_the_end(settings, saved)
    with opened.stream as stream:
        logits = learner.pending(run)[:steps].astype(np.float64)
        probabilities = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        places = _places(last, len(logits), stream.times_ahead(len(logits)))
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
