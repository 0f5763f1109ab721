"""How forecasts of rows are scored, compared with simple ones, and written in the units of the table."""

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import numpy as np

from norewind.losses import log_variance
from norewind.runs.metrics import digits, mean, running_sum, seven_digits
from norewind.runs.scores import Score
from norewind.streams.stream import Samples, as_place

ROW_UNITS = {"squared": "squared error", "gaussian": "nats per value", "classes": "bits"}
PERIODS = (7, 12, 24, 168)
"""Common periods of series, in rows; the best of them is shown."""
RECENT = 200
SHOWN = 8
"""The number of targets whose errors are written with every line of metrics, and whose newest values are kept."""


class RowScore(Score):
    """Forecasts of standardised numbers: mean squared errors, or nats with `gaussian`, per value.

    The baseline is the loss of forecasting the running mean. `persistence` is the mean
    squared error of forecasting the last known value, and `seasonal` that of the value one
    `period` ago, the best of some common ones unless it is given. `errors` are those in
    units of the table. `columns` name the targets, and `horizon` is how many rows ahead
    they are forecast.
    """

    trivial = "running mean"
    needs_outputs = True

    def __init__(self, columns: Sequence[str], loss: str, horizon: int | Sequence[int] = 1, period: int | None = None):
        self.columns, self.horizons = list(columns), [horizon] if isinstance(horizon, int) else list(horizon)
        self.horizon = self.horizons[-1]
        many = len(self.horizons) > 1
        # One for every horizon and column: what is forecast.
        self.labels = [f"{column} in {rows}" if many else column for rows in self.horizons for column in self.columns]
        self.gaussian = loss == "gaussian"
        self.unit = ROW_UNITS[loss]
        self.scale = (1 if self.gaussian else 2) / len(self.labels)
        self.delay = max(1, self.horizon)
        self.periods = [rows for rows in ([period] if period else PERIODS) if rows > self.delay]
        self.forecasters = ["model", "mean", "persistence", *self.periods]
        width, kinds = len(self.labels), len(self.forecasters)
        self.state = {
            "baseline": [0, 0.0],
            "persistence": [0, 0.0],
            "seasonal": np.zeros((len(self.periods), 2)),
            "seasonal before": np.zeros((len(self.periods), 2)),
            "errors": np.zeros((kinds, min(width, SHOWN), 3)),
            "past": np.full((max(self.periods, default=self.delay), width), np.nan),
            "recent": np.zeros((0, min(width, SHOWN), 3)),
        }

    def add(self, samples: Samples, outputs: Any = None) -> int:
        targets = samples.targets.astype(np.float64)
        assert samples.last is not None
        for name, errors in (("baseline", targets), ("persistence", targets - samples.last)):
            sums = self.state[name]
            known = errors[~np.isnan(errors)]
            sums[0] += len(known)
            sums[1] = running_sum(sums[1], known**2)
        if outputs is not None:
            self._compare(samples, outputs[1] if self.horizon else outputs)
        return int(np.sum(~np.isnan(targets).all(axis=-1)))

    def _compare(self, samples: Samples, due: np.ndarray) -> None:
        """Compare what was forecast of these rows with what simple rules would have said, in the table's units."""
        assert samples.scales is not None
        assert samples.values is not None
        center, deviation = np.moveaxis(samples.scales, -1, 0)
        means, spreads = self.forecasts(due)
        model = center + deviation * means
        past = np.concatenate([self.state["past"], samples.values])
        for row in range(len(self.state["past"]), len(past)):
            past[row] = np.where(np.isnan(past[row]), past[row - 1], past[row])  # the last known value
        depth, rows = len(self.state["past"]), len(samples.values)
        ago = [past[depth - lag : depth - lag + rows] for lag in self.periods]
        newest = [past[depth - max(1, lag) :][:rows] for lag in self.horizons]
        parts = (part[:, place * len(self.columns) :][:, : len(self.columns)] for place, part in enumerate(newest))
        ago.insert(0, np.concatenate(list(parts), axis=1))
        errors = np.stack([model, center, *ago]) - samples.values
        # On the same rows: those that the model was scored on. (One period ago there may have been no row.)
        errors = np.where(np.isnan(samples.targets) | np.isnan(errors[:3]).any(axis=0), np.nan, errors)
        self.state["errors"] = _added(self.state["errors"], errors[..., :SHOWN])
        seasonal = (errors[3:] / deviation).reshape(len(self.periods), -1, 1)
        self.state["seasonal"] = _added(self.state["seasonal"][:, None, :], seasonal, absolute=False)[:, 0]
        self.state["past"] = past[rows:]
        shown = np.stack([samples.values, model, deviation * spreads], axis=-1)[:, :SHOWN]
        self.state["recent"] = np.concatenate([self.state["recent"], shown])[-RECENT:]

    def take(self) -> dict[str, Any]:
        baseline, persistence = mean(self.state["baseline"]), mean(self.state["persistence"])
        self.state["baseline"], self.state["persistence"] = [0, 0.0], [0, 0.0]
        seasonal, errors = self.state["seasonal"], self.state["errors"]
        before = self.state["seasonal before"] = self.state["seasonal before"] + seasonal
        self.state["seasonal"], self.state["errors"] = np.zeros_like(seasonal), np.zeros_like(errors)
        line: dict[str, Any] = {"baseline": baseline, "persistence": persistence}
        best = None
        if before[:, 0].any():
            best = int(np.argmin(np.where(before[:, 0] > 0, before[:, 1] / np.maximum(before[:, 0], 1), np.inf)))
            line |= {"seasonal": mean(seasonal[best].tolist()), "period": self.periods[best]}
        if self.gaussian:
            nats = None if baseline is None else (baseline + np.log(2 * np.pi)) / 2
            line = {"baseline": nats, **({"period": line["period"]} if best is not None else {})}
        if errors[0, :, 0].any():
            line["errors"] = {
                name: self._errors(errors[place])
                for place, name in enumerate(("model", "mean", "persistence", "seasonal"))
                if place < 3 or best is not None
                for place in [place if place < 3 else 3 + (best or 0)]
            }
        return line

    def _errors(self, sums: np.ndarray) -> dict[str, dict[str, float | None]]:
        """For each column the mean absolute and the root mean squared error, and of how many values."""
        return {
            column: {
                "mae": digits(total / count) if count else None,
                "rmse": digits(float(np.sqrt(squares / count))) if count else None,
                "rows": int(count),
            }
            for column, (count, total, squares) in zip(self.labels, sums.tolist(), strict=False)
        }

    def predictions(self, first: int, samples: Samples, outputs: Any) -> Iterator[dict[str, Any]]:
        """For each row the forecast made there, and how good the earlier forecast of this row was.

        All in the units of the stream; the surprise is the error in standard deviations
        (root mean square).
        """
        assert samples.ahead is not None
        assert samples.scales is not None
        assert samples.values is not None
        ahead, (predicted, errors) = self.forecast(samples, outputs).tolist(), self.predicted(samples, outputs)
        _, spreads = self.forecasts(outputs[0] if self.horizon else outputs)
        spread = (samples.ahead if self.horizon else samples.scales)[..., 1] * spreads
        came, predicted, known = samples.values.tolist(), predicted.tolist(), self.was_forecast(samples).tolist()
        for i in range(len(came)):
            entry: dict[str, Any] = {"sample": first + i} | place_of(samples, i)
            if self.horizon:
                entry |= {"for": self._rows(first + i), "forecast": self.row(ahead[i])}
            if self.gaussian:
                entry["deviation"] = self.row(spread[i].tolist())
            if known[i]:
                entry |= {
                    "prediction": self.row(predicted[i]),
                    "target": self.row(came[i], sent=True),
                    "surprise": self.surprise(errors[i]),
                }
            yield entry

    def forecast(self, samples: Samples, outputs: Any) -> np.ndarray:
        """What is forecast at each row, in the units of the stream; the last value while there are too few to scale."""
        assert samples.ahead is not None
        assert samples.values is not None
        made, _ = self.forecasts(outputs[0] if self.horizon else outputs)
        ahead = samples.ahead[..., 0] + samples.ahead[..., 1] * made
        return np.where(np.isnan(ahead), samples.values, ahead)

    def predicted(self, samples: Samples, outputs: Any) -> tuple[np.ndarray, np.ndarray]:
        """What was predicted of each row, in the units of the stream, and its errors in standard deviations."""
        assert samples.scales is not None
        made, deviations = self.forecasts(outputs[1] if self.horizon else outputs)
        errors = (samples.targets.astype(np.float64) - made) / deviations
        return samples.scales[..., 0] + samples.scales[..., 1] * made, errors

    def was_forecast(self, samples: Samples) -> np.ndarray:
        """Whether each row was forecast. The first ones were not."""
        assert samples.scales is not None
        return np.asarray((~np.isnan(samples.scales[..., 0])).any(axis=1))

    def surprise(self, errors: np.ndarray) -> float | None:
        """The root mean square of the errors of one row; None if none is known."""
        known = errors[~np.isnan(errors)]
        return round(float(np.sqrt(np.mean(known**2))), 6) if len(known) else None

    def forecasts(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Standardised forecasts, and their standard deviations; of one horizon or of all."""
        width = outputs.shape[1] // (2 if self.gaussian else 1)
        forecasts = np.asarray(outputs[:, :width], np.float64)
        if not self.gaussian:
            return forecasts, np.ones_like(forecasts)
        return forecasts, np.exp(log_variance(np.asarray(outputs[:, width:], np.float64)) / 2)

    def _rows(self, row: int) -> Any:
        """The rows that are forecast at this one."""
        return row + self.horizon if len(self.horizons) == 1 else {str(rows): row + rows for rows in self.horizons}

    def row(self, values: Sequence[float], *, sent: bool = False) -> dict[str, Any]:
        """Numbers by column, or by horizon and column: as they were sent, or the seven digits that a forecast has."""
        width = len(self.columns)
        if len(values) > width:
            if sent:
                return self.row(values[:width], sent=True)
            return {
                str(rows): self.row(values[place * width : (place + 1) * width])
                for place, rows in enumerate(self.horizons)
            }
        written = _plain if sent else seven_digits
        return {column: written(value) for column, value in zip(self.columns, values, strict=True)}


def _plain(value: float) -> float | None:
    """A number as it was sent; None if it was missing."""
    if not isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def place_of(samples: Samples, i: int) -> dict[str, Any]:
    """Where a row stands, and what is copied from it."""
    place: dict[str, Any] = {}
    if samples.lines is not None:
        line = int(samples.lines[i])
        place = {"line": line} if line > 0 else dict(zip(("partition", "offset"), as_place(line), strict=True))
    if samples.copied is not None:
        # Python writes and reads numbers that are not finite, but JSON has none.
        place["copied"] = json.loads(samples.copied[i], parse_constant=lambda _: None)
    return place


def _added(sums: np.ndarray, errors: np.ndarray, *, absolute: bool = True) -> np.ndarray:
    """Sums of counts, errors and squares, with more rows of errors; one by one, so that cuts change no bit."""
    known = ~np.isnan(errors)
    errors = np.where(known, errors, 0)
    parts = [known, np.abs(errors), errors**2] if absolute else [known, errors**2]
    new = np.stack([np.asarray(part, np.float64) for part in parts], axis=-1)
    return np.cumsum(np.concatenate([sums[:, None], new], axis=1), axis=1)[:, -1]
