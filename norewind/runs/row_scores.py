"""How forecasts of rows are scored, compared with simple ones, and written in the units of the table."""

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import numpy as np

from norewind.kernels import kernel
from norewind.losses import log_variance
from norewind.runs.metrics import digits, mean, running_sum, seven_digits
from norewind.runs.scores import RECENT, Score, place_of
from norewind.streams.stream import Samples

ROW_UNITS = {"squared": "squared error", "gaussian": "nats per value", "classes": "bits"}
# Common periods of series, in rows; the best of them is shown.
PERIODS = (7, 12, 24, 168)
# The number of targets whose errors are written with every line of metrics, and whose newest values are kept.
SHOWN = 8
# The share of the newest squared errors that is kept from row to row.
REMEMBERED = 1 - 1 / RECENT
# The largest number of steps whose errors are written with every line of metrics.
STEPS_SHOWN = 200
# The simple forecasts that every model is compared with, besides the values one period ago.
SIMPLE = ("mean", "persistence")


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
        for name, errors in (("baseline", targets), ("persistence", targets - samples.last)):
            sums = self.state[name]
            known = errors[~np.isnan(errors)]
            sums[0] += len(known)
            sums[1] = running_sum(sums[1], known**2)
        if outputs is not None:
            self._compare(samples, targets, *self.forecasts(outputs[1] if self.horizon else outputs))
        return int(np.sum(~np.isnan(targets).all(axis=-1)))

    def _compare(self, samples: Samples, targets: np.ndarray, means: np.ndarray, spreads: np.ndarray) -> None:
        """Compare what was forecast of these rows with simple forecasts, in the table's units."""
        state, width = self.state, len(self.columns)
        values = np.ascontiguousarray(samples.values[:, :width], np.float64)
        scales = np.ascontiguousarray(samples.scales, np.float64)
        sums = [state[name] for name in ("errors", "squares", "past", "errors recently")]
        compare_rows(*sums, self._ago, state["rows"] % len(state["past"]), values, targets, scales, means)
        state["rows"] += len(values)
        center, deviation = scales[:, :width, 0], scales[:, :width, 1]
        nearest = np.stack([values, center + deviation * means[:, :width], deviation * spreads[:, :width]], axis=-1)
        state["recent"] = np.concatenate([state["recent"], nearest[:, :SHOWN]])[-RECENT:]

    def take(self) -> dict[str, Any]:
        state, first = self.state, 1 + len(SIMPLE)
        baseline, persistence = mean(state["baseline"]), mean(state["persistence"])
        squares, errors = state["squares"], state["errors"]
        before = state["seasonal"] + squares[first:].sum(axis=1)
        state |= {"baseline": [0, 0.0], "persistence": [0, 0.0], "seasonal": before}
        state |= {"squares": np.zeros_like(squares), "errors": np.zeros_like(errors)}
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
                some = squares[:, steps_shown(range(len(self.steps)))].tolist()
                line["by_step"] = {name: [_root_mean(*of) for of in some[place]] for name, place in shown.items()}
        return line

    def _errors(self, sums: np.ndarray) -> dict[str, dict[str, float | None]]:
        """For each column the mean absolute and the root mean squared error, and of how many values."""
        return {
            column: {"mae": digits(mean([count, total])), "rmse": _root_mean(count, squares), "rows": int(count)}
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
        ahead, (predicted, errors) = self.forecast(samples, outputs).tolist(), self.predicted(samples, outputs)
        _, spreads = self.forecasts(outputs[0] if self.horizon else outputs)
        spread = (samples.ahead if self.horizon else samples.scales)[..., 1] * spreads
        came, predicted, known = samples.values.tolist(), predicted.tolist(), self.was_forecast(samples).tolist()
        width = len(self.columns)
        for i in range(len(came)):
            entry: dict[str, Any] = {"sample": first + i} | place_of(samples, i)
            if self.horizon:
                rows = {str(step): first + i + step for step in self.steps}
                entry |= {"for": rows if len(rows) > 1 else first + i + self.horizon, "forecast": self.row(ahead[i])}
            if self.gaussian:
                entry["deviation"] = self.row(spread[i].tolist())
            if known[i]:
                entry |= {"prediction": self.row(predicted[i]), "target": self.row(came[i][:width], sent=True)}
                entry["surprise"] = self.surprise(errors[i])
            yield entry

    def forecast(self, samples: Samples, outputs: Any) -> np.ndarray:
        """What is forecast at each row, in the units of the stream; the last value while there are too few to scale."""
        made, _ = self.forecasts(outputs[0] if self.horizon else outputs)
        ahead = samples.ahead[..., 0] + samples.ahead[..., 1] * made
        return np.where(np.isnan(ahead), samples.values, ahead)

    def predicted(self, samples: Samples, outputs: Any) -> tuple[np.ndarray, np.ndarray]:
        """What was predicted of each row by the nearest step, in the units of the stream, and its errors in standard
        deviations."""
        made, deviations = self.forecasts(outputs[1] if self.horizon else outputs)
        width = len(self.columns)
        scales, targets = samples.scales[:, :width], samples.targets[:, :width].astype(np.float64)
        errors = (targets - made[:, :width]) / deviations[:, :width]
        return scales[..., 0] + scales[..., 1] * made[:, :width], errors

    def was_forecast(self, samples: Samples) -> np.ndarray:
        """Whether each row was forecast. The first ones were not."""
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

    def row(self, values: Sequence[float], *, sent: bool = False) -> dict[str, Any]:
        """Numbers by column, or by step and column: as they were sent, or the seven digits that a forecast has."""
        width = len(self.columns)
        if len(values) > width:
            by_step = np.reshape(values, (len(self.steps), width)).tolist()
            return {str(step): self.row(row) for step, row in zip(self.steps, by_step, strict=True)}
        written = _plain if sent else seven_digits
        return {column: written(value) for column, value in zip(self.columns, values, strict=True)}


@kernel
def compare_rows(errors, squares, past, recently, ago, first, values, targets, scales, means):
    """Add up the errors of the model, the mean, the last value and those a period ago, row by row.

    They are compared on the same rows: those that were forecast and whose target is known. (One
    period ago there may have been no row.)

    Args:
        errors: by forecast (model, mean, persistence, periods), step and target, the number of rows, and the sums of
            absolute and of squared errors in the table's units.
        squares: by forecast and step, the number of errors, and the sum of their squares in variances.
        past: a ring of the newest values.
        recently: by step and target, the weights and the weighted means of the newest squared errors.
        ago: how many rows ago the values of simple forecasts came, by forecast and step.
        first: the place of the first row in the ring.
        values: the values that came, by row and target.
        targets: the same, standardised, for every step; NaN is unknown.
        scales: the means and standard deviations that they are standardised with.
        means: the forecasts of the model, standardised likewise.
    """
    depth, width = past.shape
    rules, steps = ago.shape
    for row in range(len(values)):
        for step in range(steps):
            for column in range(width):
                place = step * width + column
                center, deviation, value = scales[row, place, 0], scales[row, place, 1], values[row, column]
                last = past[(first + row - ago[0, step]) % depth, column]
                model = center + deviation * means[row, place]
                if np.isnan(targets[row, place]) or np.isnan(model) or np.isnan(last) or np.isnan(value):
                    continue
                for forecast in range(2 + rules):
                    if forecast == 0:
                        made = model
                    elif forecast == 1:
                        made = center
                    else:
                        made = past[(first + row - ago[forecast - 2, step]) % depth, column]
                    error = made - value
                    if np.isnan(error):
                        continue
                    total = errors[forecast, step, column]
                    total[0] += 1
                    total[1] += abs(error)
                    total[2] += error * error
                    squares[forecast, step, 0] += 1
                    squares[forecast, step, 1] += (error / deviation) ** 2
                recent = recently[step, column]
                recent[0] = REMEMBERED * recent[0] + (1 - REMEMBERED)
                recent[1] = REMEMBERED * recent[1] + (1 - REMEMBERED) * (model - value) ** 2
        for column in range(width):
            before = past[(first + row - 1) % depth, column]
            value = values[row, column]
            past[(first + row) % depth, column] = before if np.isnan(value) else value  # the last known value


def _root_mean(count: float, squares: float) -> float | None:
    return digits(float(np.sqrt(squares / count))) if count else None


def steps_shown(steps: Sequence[int]) -> list[int]:
    """The steps whose errors a line of metrics has under `by_step`: of very many, only some."""
    return [steps[place] for place in np.unique(np.linspace(0, len(steps) - 1, STEPS_SHOWN).round().astype(int))]


def _plain(value: float) -> float | None:
    """A number as it was sent; None if it was missing."""
    if not isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
