"""What comes next, from the end of the stream of a trained run."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from norewind.runs.build import Opened, open_stream
from norewind.runs.folder import Saved
from norewind.runs.predict import restored
from norewind.runs.row_scores import RowScore
from norewind.runs.settings import Settings, SettingsError


class Forecast(NamedTuple):
    """Forecasts of the rows after row `last`: the first of `means` and `deviations` is that of row `last` + 1.

    Both have the shape (steps, targets); NaN where nothing is known yet. `recent` holds the
    newest rows: values, what had been forecast of them, and its deviation. `direct` is how
    many rows ahead the model was trained to forecast; later rows are forecast from forecasts.
    """

    columns: list[str]
    last: int
    means: np.ndarray
    deviations: np.ndarray
    recent: np.ndarray
    direct: int

    def entries(self) -> list[dict[str, Any]]:
        """One entry per row, as JSON."""
        rows = zip(self.means.tolist(), self.deviations.tolist(), strict=True)
        return [
            {"for": self.last + step, "step": step, "forecast": self._row(mean), "deviation": self._row(deviation)}
            for step, (mean, deviation) in enumerate(rows, 1)
        ]

    def _row(self, values: list[float]) -> dict[str, float | None]:
        known = (float(f"{value:.7g}") if np.isfinite(value) else None for value in values)
        return dict(zip(self.columns, known, strict=True))


def forecast(settings: Settings, saved: Saved, steps: int | None = None) -> Forecast:
    """Forecast the rows that come next. The source is not needed, and the run is not changed.

    As many rows as the model was trained to forecast ahead are forecast directly. For later
    ones, it is given its own forecasts in place of rows, while inputs that it does not
    forecast stay as they are and times go on. Deviations are those that the model forecasts
    (`--loss gaussian`), or its errors over the newest rows; where it goes on from its own
    forecasts, the variances add up, to at most that of the column.
    """
    if settings.kind not in ("csv", "jsonl"):
        raise SettingsError("this run predicts symbols: see what comes next with norewind sample.")
    check_forecasts(settings)
    position = saved.entries["position"]
    opened = open_stream(replace(settings, source=os.devnull), position["stream"], continues=True)
    with opened.stream:
        built = restored(settings, saved, opened.shape)
        opened.score.state = saved.entries["score"]
        learner, run = built.learner, built.run
        last = saved.entries["samples"]
        if position["left"]:
            # Rows that wait for their window.
            xs = position["left"][0]
            run, _ = learner.forward(run, xs)
            last += len(xs)

        def answer(x):
            nonlocal run
            run, (outputs, _) = learner.forward(run, x[None])
            return np.asarray(outputs)

        return from_here(settings, opened, learner.pending(run), last, answer, steps)


def check_forecasts(settings: Settings) -> None:
    """Refuse a run that forecasts no numbers ahead."""
    if not settings.horizons[-1]:
        raise SettingsError("this run has a horizon of 0: it predicts targets of the same row, and nothing ahead.")
    if settings.loss == "classes":
        raise SettingsError("this run forecasts a class: see its newest forecasts with norewind predict.")


def from_here(
    settings: Settings,
    opened: Opened,
    pending: dict[int, np.ndarray],
    last: int,
    answer: Callable[[np.ndarray], np.ndarray],
    steps: int | None = None,
) -> Forecast:
    """Forecast the rows after row `last`: from what is `pending`, then from what the model answers to its forecasts.

    `answer(x)` gives the outputs for one more row, and moves on.
    """
    stream, score = opened.stream, opened.score
    assert isinstance(score, RowScore)
    horizon, width = score.horizon, len(score.columns)
    steps = steps or (horizon if horizon > 1 else 24)
    errors = None if score.gaussian else _recent_errors(score)
    center, scale, _ = np.moveaxis(stream.scales_ahead(horizon), -1, 0)
    # NaN until there are so many rows.
    missing = ((horizon - len(center), 0), (0, 0))
    center, scale = (np.pad(part, missing, constant_values=np.nan) for part in (center, scale))
    means, spreads = [], []
    for rows, outputs in pending.items():
        # The nearest horizon that reaches a row knows most about it.
        made, own = score.forecasts(outputs)
        new = slice(len(means), None)
        means += list((center[-rows:] + scale[-rows:] * made)[new])
        spreads += list((scale[-rows:] * own if errors is None else np.tile(errors[rows], (rows, 1)))[new])
    for step in range(1, steps - horizon + 1):
        made, own = score.forecasts(answer(stream.imagined(means[step - 1], step)))
        means.append(center[-1] + scale[-1] * made[0, -width:])
        new = scale[-1] * own[0, -width:] if errors is None else errors[horizon]
        added = np.sqrt(new**2 + spreads[step - 1] ** 2)
        spreads.append(np.minimum(added, np.fmax(new, scale[-1] if settings.standardise else np.inf)))
    newest = score.state["recent"][:, :width]
    return Forecast(score.columns, last, np.array(means[:steps]), np.array(spreads[:steps]), newest, horizon)


def _recent_errors(score: RowScore) -> dict[int, np.ndarray]:
    """The root mean squared error of every target over the newest rows, by horizon; NaN where it is not known."""
    values, forecasts, _ = np.moveaxis(score.state["recent"], -1, 0)
    squares = (values - forecasts) ** 2
    known = ~np.isnan(squares)
    sums, counts = np.where(known, squares, 0).sum(axis=0), known.sum(axis=0)
    errors = np.sqrt(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
    errors = np.pad(errors, (0, len(score.labels) - len(errors)), constant_values=np.nan)
    return dict(zip(score.horizons, np.split(errors, len(score.horizons)), strict=True))
