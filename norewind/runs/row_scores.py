"""How forecasts of rows are scored, compared with simple ones, and written in the units of the table."""

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from norewind.kernels import kernel
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
REMEMBERED = 1 - 1 / RECENT
"""The share of the newest squared errors that is kept from row to row."""
STEPS_SHOWN = 200
"""The largest number of steps whose errors are written with every line of metrics."""
SIMPLE = ("mean", "persistence")
"""The simple forecasts that every model is compared with, besides the values one period ago."""


class Compared(NamedTuple):
    """Errors of the model and of simple forecasts, added up row by row.

    `errors` has, by forecast (model, mean, persistence, periods), step and target, the number
    of rows, and the sums of absolute and of squared errors in the table's units; `squares` has
    the sums of squared errors in variances, by forecast and step, after their number. `past`
    is a ring of the newest values, and `recent` holds weighted means of the newest squared
    errors, by step and target, after their weights.
    """

    errors: np.ndarray
    squares: np.ndarray
    past: np.ndarray
    recent: np.ndarray


class RowScore(Score):
    """Forecasts of standardised numbers: mean squared errors, or nats with `gaussian`, per value and step.

    The baseline is the loss of forecasting the running mean. `persistence` is the mean
    squared error of forecasting the last known value, and `seasonal` that of the newest known
    value a multiple of `period` ago, the best of some common ones unless it is given. `errors`
    are those in units of the table, over all steps, and `by_step` are root mean squared errors
    in standard deviations.

    Args:
        columns: the names of the targets.
        loss: "squared" or "gaussian".
        steps: how many rows ahead they are forecast.
        period: the season in rows, if it is known.
    """

    trivial = "running mean"
    needs_outputs = True

    def __init__(self, columns: Sequence[str], loss: str, steps: Sequence[int] = (1,), period: int | None = None):
        self.columns, self.steps, self.horizon = list(columns), tuple(steps), steps[-1]
        self.gaussian = loss == "gaussian"
        self.unit = ROW_UNITS[loss]
        self.scale = (1 if self.gaussian else 2) / (len(self.columns) * len(self.steps))
        self.periods = [period] if period else list(PERIODS)
        # How many rows ago is the newest known value of each simple forecast, by forecast and step.
        delays = [max(1, step) for step in self.steps]
        self._ago = np.array([delays, *([-(-delay // rows) * rows for delay in delays] for rows in self.periods)])
        forecasts, width = 1 + len(SIMPLE) + len(self.periods), len(self.columns)
        self.state = {
            "rows": 0,
            "baseline": [0, 0.0],
            "persistence": [0, 0.0],
            "seasonal": np.zeros((len(self.periods), 2)),
            "errors": np.zeros((forecasts, len(self.steps), width, 3)),
            "squares": np.zeros((forecasts, len(self.steps), 2)),
            "past": np.full((int(self._ago.max()), width), np.nan),
            "errors recently": np.zeros((len(self.steps), width, 2)),
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
            self._compare(samples, targets, outputs[1] if self.horizon else outputs)
        return int(np.sum(~np.isnan(targets).all(axis=-1)))

    def _compare(self, samples: Samples, targets: np.ndarray, due: np.ndarray) -> None:
        """Compare what was forecast of these rows with what simple rules would have said, in the table's units."""
        assert samples.scales is not None
        assert samples.values is not None
        means, spreads = self.forecasts(due)
        state, width = self.state, len(self.columns)
        values = np.ascontiguousarray(samples.values[:, :width], np.float64)
        scales = np.ascontiguousarray(samples.scales, np.float64)
        sums = Compared(state["errors"], state["squares"], state["past"], state["errors recently"])
        compare_rows(sums, self._ago, state["rows"] % len(sums.past), values, targets, scales, means)
        state["rows"] += len(values)
        center, deviation = scales[:, :width, 0], scales[:, :width, 1]
        nearest = np.stack([values, center + deviation * means[:, :width], deviation * spreads[:, :width]], axis=-1)
        state["recent"] = np.concatenate([state["recent"], nearest[:, :SHOWN]])[-RECENT:]

    def take(self) -> dict[str, Any]:
        state = self.state
        baseline, persistence = mean(state["baseline"]), mean(state["persistence"])
        squares, errors, first = state["squares"], state["errors"], 1 + len(SIMPLE)
        before = state["seasonal"] = state["seasonal"] + squares[first:].sum(axis=1)
        state["baseline"], state["persistence"] = [0, 0.0], [0, 0.0]
        state["squares"], state["errors"] = np.zeros_like(squares), np.zeros_like(errors)
        line: dict[str, Any] = {"baseline": baseline, "persistence": persistence}
        shown = {"model": 0, "mean": 1, "persistence": 2}
        if before[:, 0].any():
            best = int(np.argmin(np.where(before[:, 0] > 0, before[:, 1] / np.maximum(before[:, 0], 1), np.inf)))
            shown["seasonal"] = first + best
            line |= {"seasonal": mean(squares[first + best].sum(axis=0).tolist()), "period": self.periods[best]}
        if self.gaussian:
            nats = None if baseline is None else (baseline + np.log(2 * np.pi)) / 2
            line = {"baseline": nats, **({"period": line["period"]} if "period" in line else {})}
        if errors[0, ..., 0].any():
            line["errors"] = {name: self._errors(errors[place].sum(axis=0)) for name, place in shown.items()}
            if len(self.steps) > 1:
                line["by_step"] = {name: _by_step(squares[place]) for name, place in shown.items()}
        return line

    def _errors(self, sums: np.ndarray) -> dict[str, dict[str, float | None]]:
        """For each column the mean absolute and the root mean squared error, and of how many values."""
        return {
            column: {
                "mae": digits(total / count) if count else None,
                "rmse": digits(float(np.sqrt(squares / count))) if count else None,
                "rows": int(count),
            }
            for column, (count, total, squares) in zip(self.columns[:SHOWN], sums.tolist(), strict=False)
        }

    def recent_errors(self) -> np.ndarray:
        """The root mean squared error over the newest rows, by step and target; NaN where it is not known."""
        weights, squares = np.moveaxis(self.state["errors recently"], -1, 0)
        return np.sqrt(np.where(weights > 0, squares / np.where(weights > 0, weights, 1), np.nan))

    def predictions(self, first: int, samples: Samples, outputs: Any) -> Iterator[dict[str, Any]]:
        """For each row the forecasts made there, and how good the newest forecast of this row was.

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
        width = len(self.columns)
        for i in range(len(came)):
            entry: dict[str, Any] = {"sample": first + i} | place_of(samples, i)
            if self.horizon:
                entry |= {"for": self._rows(first + i), "forecast": self.row(ahead[i])}
            if self.gaussian:
                entry["deviation"] = self.row(spread[i].tolist())
            if known[i]:
                entry |= {
                    "prediction": self.row(predicted[i]),
                    "target": self.row(came[i][:width], sent=True),
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
        """What was predicted of each row by the nearest step, in the units of the stream, and its errors in standard
        deviations."""
        assert samples.scales is not None
        made, deviations = self.forecasts(outputs[1] if self.horizon else outputs)
        width = len(self.columns)
        scales, targets = samples.scales[:, :width], samples.targets[:, :width].astype(np.float64)
        errors = (targets - made[:, :width]) / deviations[:, :width]
        return scales[..., 0] + scales[..., 1] * made[:, :width], errors

    def was_forecast(self, samples: Samples) -> np.ndarray:
        """Whether each row was forecast. The first ones were not."""
        assert samples.scales is not None
        return np.asarray((~np.isnan(samples.scales[:, : len(self.columns), 0])).any(axis=1))

    def surprise(self, errors: np.ndarray) -> float | None:
        """The root mean square of the errors of one row; None if none is known."""
        known = errors[~np.isnan(errors)]
        return round(float(np.sqrt(np.mean(known**2))), 6) if len(known) else None

    def forecasts(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Standardised forecasts, and their standard deviations."""
        width = outputs.shape[1] // (2 if self.gaussian else 1)
        forecasts = np.asarray(outputs[:, :width], np.float64, order="C")
        if not self.gaussian:
            return forecasts, np.ones_like(forecasts)
        return forecasts, np.exp(log_variance(np.asarray(outputs[:, width:], np.float64)) / 2)

    def _rows(self, row: int) -> Any:
        """The rows that are forecast at this one."""
        return row + self.horizon if len(self.steps) == 1 else {str(step): row + step for step in self.steps}

    def row(self, values: Sequence[float], *, sent: bool = False) -> dict[str, Any]:
        """Numbers by column, or by step and column: as they were sent, or the seven digits that a forecast has."""
        width = len(self.columns)
        if len(values) > width:
            return {
                str(step): self.row(values[place * width : (place + 1) * width])
                for place, step in enumerate(self.steps)
            }
        written = _plain if sent else seven_digits
        return {column: written(value) for column, value in zip(self.columns, values, strict=True)}


@kernel
def compare_rows(sums, ago, first, values, targets, scales, means):
    """Add up the errors of the model, the mean, the last value and those a period ago, row by row.

    They are compared on the same rows: those that were forecast and whose target is known. (One
    period ago there may have been no row.) `ago` says how many rows ago the values of simple
    forecasts came, by forecast and step; `first` is the number of the first row.
    """
    depth, width = sums.past.shape
    rules, steps = ago.shape
    for row in range(len(values)):
        for step in range(steps):
            for column in range(width):
                place = step * width + column
                center, deviation, value = scales[row, place, 0], scales[row, place, 1], values[row, column]
                last = sums.past[(first + row - ago[0, step]) % depth, column]
                model = center + deviation * means[row, place]
                if np.isnan(targets[row, place]) or np.isnan(model) or np.isnan(last) or np.isnan(value):
                    continue
                for forecast in range(2 + rules):
                    if forecast == 0:
                        made = model
                    elif forecast == 1:
                        made = center
                    else:
                        made = sums.past[(first + row - ago[forecast - 2, step]) % depth, column]
                    error = made - value
                    if np.isnan(error):
                        continue
                    total = sums.errors[forecast, step, column]
                    total[0] += 1
                    total[1] += abs(error)
                    total[2] += error * error
                    sums.squares[forecast, step, 0] += 1
                    sums.squares[forecast, step, 1] += (error / deviation) ** 2
                recent = sums.recent[step, column]
                recent[0] = REMEMBERED * recent[0] + (1 - REMEMBERED)
                recent[1] = REMEMBERED * recent[1] + (1 - REMEMBERED) * (model - value) ** 2
        for column in range(width):
            before = sums.past[(first + row - 1) % depth, column]
            value = values[row, column]
            sums.past[(first + row) % depth, column] = before if np.isnan(value) else value  # the last known value


def _by_step(squares: np.ndarray) -> list[float | None]:
    """Root mean squared errors in standard deviations, by step; of very many steps, only some."""
    chosen = squares[np.unique(np.linspace(0, len(squares) - 1, STEPS_SHOWN).round().astype(int))]
    return [digits(float(np.sqrt(total / count))) if count else None for count, total in chosen.tolist()]


def steps_shown(steps: Sequence[int]) -> list[int]:
    """The steps whose errors a line of metrics has under `by_step`."""
    return [steps[place] for place in np.unique(np.linspace(0, len(steps) - 1, STEPS_SHOWN).round().astype(int))]


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
