"""Forecasts of the rows after the end of a trained run's stream."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

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

    As many rows as the model was trained to forecast ahead are forecast directly, and those
    that were forecast some rows ago are corrected by the newest error. For later ones, it is
    given its own forecasts in place of rows, while inputs that it does not forecast stay as
    they are and times go on. Deviations are those that the model forecasts (`--loss
    gaussian`), or its errors over the newest rows; where it goes on from its own forecasts,
    the variances add up, to at most that of the column.
    """
    check_ahead(settings, steps)
    opened, learner, run, last = _at_the_end(settings, saved)
    with opened.stream:

        def answer(x):
            nonlocal run
            run, (outputs, _) = learner.forward(run, x[None])
            return np.asarray(outputs)

        unscored = last - saved.entries["samples"]
        coming = rows_to_come(opened, learner.pending(run), answer, steps, unscored)
        return described(settings, opened, coming, last)


class Coming(NamedTuple):
    """The rows to come: their forecasts, how far the model itself expects to err, and the horizon of each.

    All but the last have the shape (steps, targets), in the units of the stream. `left` is
    the part of a deviation that is left after the correction by the newest error.
    """

    means: np.ndarray
    errors: np.ndarray
    left: np.ndarray
    horizons: list[int]


def rows_to_come(
    opened: Opened,
    pending: dict[int, np.ndarray],
    answer: Callable[[np.ndarray], np.ndarray],
    steps: int | None,
    unscored: int = 0,
) -> Coming:
    """Forecast the next rows: from what is `pending`, then from what the model answers to its forecasts.

    `answer(x)` gives the outputs for one more row, and moves on. The score does not know
    the newest `unscored` rows.
    """
    stream, score = opened.stream, opened.score
    assert isinstance(score, RowScore)
    horizon, width = score.horizon, len(score.columns)
    steps = steps or (horizon if horizon > 1 else 24)
    center, scale = _scales(opened, horizon)
    means, errors, left, horizons = [], [], [], []
    for rows, outputs in pending.items():
        # The nearest horizon that reaches a row knows most about it.
        made, own = score.forecasts(outputs)
        new = slice(len(means), None)
        corrections, parts = _corrections(score, rows, unscored)
        means += list((center[-rows:] + scale[-rows:] * made + corrections)[new])
        errors += list((scale[-rows:] * own)[new])
        left += list(parts[new])
        horizons += [rows] * (len(means) - len(horizons))
    for step in range(1, steps - horizon + 1):
        made, own = score.forecasts(answer(stream.imagined(means[step - 1], step)))
        means.append(center[-1] + scale[-1] * made[0, -width:])
        errors.append(scale[-1] * own[0, -width:])
        left.append(np.ones(width))
        horizons.append(horizon)
    found = np.array(means[:steps])
    # Before there are enough values to scale by, the last one, as in the predictions.
    found = np.where(np.isnan(found), stream.newest_targets(), found)
    return Coming(found, np.array(errors[:steps]), np.array(left[:steps]), horizons[:steps])


def _corrections(score: RowScore, rows: int, unscored: int) -> tuple[np.ndarray, np.ndarray]:
    """What the newest error says about forecasts made up to `rows` rows ago, and the part of their deviations left.

    Errors of forecasts several rows ahead are alike from row to row, and the newest one is
    known. Row t + k is corrected by the share of the error at row t that was left after k
    rows, over the newest rows: the autocorrelation of the errors (divided by all of them,
    which makes it smaller where few rows are known). The forecast made at the newest row
    needs none.
    """
    width = len(score.columns)
    if rows == 1:
        return np.zeros((1, width)), np.ones((1, width))
    start = score.horizons.index(rows) * width
    values, forecasts, _ = np.moveaxis(score.state["recent"][:, start : start + width], -1, 0)
    errors = np.nan_to_num(values - forecasts)
    # Of many columns, only the first are kept.
    errors = np.pad(errors, ((0, 0), (0, width - errors.shape[1])))
    total = (errors**2).sum(axis=0)
    shares = np.zeros((rows, width))
    for step in range(1, rows):
        lag = step + unscored
        # Without a newest error there is nothing to correct by.
        if lag < len(errors):
            alike = np.where(errors[-1] != 0, (errors[lag:] * errors[:-lag]).sum(axis=0), 0)
            shares[step - 1] = np.maximum(0, alike / np.where(total > 0, total, 1))
    newest = errors[-1] if len(errors) else np.zeros(width)
    return shares * newest, np.sqrt(1 - shares**2)


def described(settings: Settings, opened: Opened, coming: Coming, last: int) -> Forecast:
    """The forecasts of the rows after row `last`, with their deviations, the newest rows and times."""
    stream, score = opened.stream, opened.score
    assert isinstance(score, RowScore)
    steps, horizon, scale = len(coming.means), score.horizon, _scales(opened, 1)[1][0]
    recent = None if score.gaussian else _recent_errors(score)
    spreads: list[np.ndarray] = []
    for step, rows in enumerate(coming.horizons):
        new = coming.left[step] * (coming.errors[step] if recent is None else recent[rows])
        if step >= horizon:
            added = np.sqrt(new**2 + spreads[step - horizon] ** 2)
            new = np.minimum(added, np.fmax(new, scale if settings.standardise else np.inf))
        spreads.append(new)
    newest, times = score.state["recent"][:, : len(score.columns)], stream.times_ahead(steps)
    return Forecast(score.columns, last, coming.means, np.array(spreads), newest, horizon, times)


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
        logits = learner.pending(run)[settings.horizons[-1]][:steps].astype(np.float64)
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
    horizon = settings.horizons[-1]
    if not horizon:
        raise SettingsError("this run has a horizon of 0: it predicts targets of the same row, and nothing ahead.")
    if settings.loss == "classes" and (steps or 1) > horizon:
        rows = "one row" if horizon == 1 else f"{horizon} rows"
        raise SettingsError(f"this run forecasts a class {rows} ahead: to go further, train with --horizon {steps}.")


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


def _recent_errors(score: RowScore) -> dict[int, np.ndarray]:
    """The root mean squared error of every target over the newest rows, by horizon; NaN where it is not known."""
    values, forecasts, _ = np.moveaxis(score.state["recent"], -1, 0)
    squares = (values - forecasts) ** 2
    known = ~np.isnan(squares)
    sums, counts = np.where(known, squares, 0).sum(axis=0), known.sum(axis=0)
    errors = np.sqrt(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
    errors = np.pad(errors, (0, len(score.labels) - len(errors)), constant_values=np.nan)
    return dict(zip(score.horizons, np.split(errors, len(score.horizons)), strict=True))
