"""What comes next, from the end of the stream of a trained run."""

import os
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from norewind.runs.build import open_stream
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
    if not settings.horizon:
        raise SettingsError("this run has a horizon of 0: it predicts targets of the same row, and nothing ahead.")
    position = saved.entries["position"]
    opened = open_stream(replace(settings, source=os.devnull), position["stream"], continues=True)
    with opened.stream as stream:
        built = restored(settings, saved, opened.shape)
        score: Any = opened.score
        assert isinstance(score, RowScore)
        score.state = saved.entries["score"]
        learner, run = built.learner, built.run
        last = saved.entries["samples"]
        if position["left"]:
            # Rows that wait for their window.
            xs = position["left"][0]
            run, _ = learner.forward(run, xs)
            last += len(xs)
        horizon = settings.horizon
        steps = steps or (horizon if horizon > 1 else 24)
        made, own = score.forecasts(learner.pending(run))
        center, scale, _ = np.moveaxis(stream.scales_ahead(horizon), -1, 0)
        recent = _recent_error(score) if not score.gaussian else None
        # NaN until there are so many rows.
        missing = ((horizon - len(center), 0), (0, 0))
        center, scale = (np.pad(part, missing, constant_values=np.nan) for part in (center, scale))
        means = list(center + scale * made)
        spreads = [spread if recent is None else recent for spread in scale * own]
        for step in range(1, steps - horizon + 1):
            run, (outputs, _) = learner.forward(run, stream.imagined(means[step - 1], step)[None])
            made, own = score.forecasts(np.asarray(outputs))
            means.append(center[-1] + scale[-1] * made[0])
            new = recent if recent is not None else scale[-1] * own[0]
            added = np.sqrt(new**2 + spreads[step - 1] ** 2)
            spreads.append(np.minimum(added, np.fmax(new, scale[-1] if settings.standardise else np.inf)))
    columns = score.columns
    return Forecast(columns, last, np.array(means[:steps]), np.array(spreads[:steps]), score.state["recent"], horizon)


def _recent_error(score: RowScore) -> np.ndarray:
    """The root mean squared error of every target over the newest rows; NaN where it is not known."""
    values, forecasts, _ = np.moveaxis(score.state["recent"], -1, 0)
    squares = (values - forecasts) ** 2
    known = ~np.isnan(squares)
    sums, counts = np.where(known, squares, 0).sum(axis=0), known.sum(axis=0)
    errors = np.sqrt(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
    return np.pad(errors, (0, len(score.columns) - len(errors)), constant_values=np.nan)
