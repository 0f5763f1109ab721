"""Scores of rows of numbers: errors in the units of the table, compared with those of simple forecasts."""

from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from norewind.core.losses import log_variance
from norewind.engines.kernels import kernel
from norewind.learners.steps import PERIODS
from norewind.scoring.metrics import digits, mean, running_sum, seven_digits
from norewind.scoring.score import RECENT, StepScore
from norewind.scoring.summary import Summary, steps_shown, summary, table
from norewind.streams.stream import Samples

ROW_UNITS = {"squared": "squared error", "gaussian": "nats per value", "classes": "bits"}
# The number of targets whose errors are written with every line of metrics, and whose newest values are kept.
SHOWN = 8
# The share of the newest squared errors that is kept from row to row.
REMEMBERED = 1 - 1 / RECENT


class NumberScore(StepScore):
    """Scores forecasts of standardised numbers: mean squared errors, or nats with `gaussian`, per value and step.

    The baseline is the loss of forecasting the running mean, and `persistence` the mean squared
    error of forecasting the last known value.

    Args:
        columns: the names of the targets.
        loss: "squared" or "gaussian".
        steps: the forecast steps, in rows ahead.
    """

    trivial = "running mean"

    def __init__(self, columns: Sequence[str], loss: str, steps: Sequence[int]):
        super().__init__(steps)
        self.columns, self.gaussian, self.unit = list(columns), loss == "gaussian", ROW_UNITS[loss]
        self.scale = (1 if self.gaussian else 2) / (len(self.columns) * len(self.steps))
        self.state = {"baseline": [0, 0.0], "persistence": [0, 0.0]}

    def add(self, samples: Samples, outputs: Any = None) -> int:
        targets = samples.targets.astype(np.float64)
        for name, errors in (("baseline", targets), ("persistence", targets - samples.last)):
            known = errors[~np.isnan(errors)]
            count, total = self.state[name]
            self.state[name] = [count + len(known), running_sum(total, known**2)]
        return super().add(samples)

    def take(self) -> dict[str, Any]:
        line = {name: mean(self.state[name]) for name in ("baseline", "persistence")}
        self.state |= {"baseline": [0, 0.0], "persistence": [0, 0.0]}
        if self.gaussian:
            squares = line["baseline"]
            return {"baseline": None if squares is None else (squares + np.log(2 * np.pi)) / 2}
        return line

    def predictions(self, first: int, samples: Samples, outputs: Any) -> Iterator[dict[str, Any]]:
        """Yield, for each row, the forecasts made there, and how good the newest forecast of this row was.

        All are in the units of the stream. The surprise is the root mean square of the errors in
        standard deviations.

        Args:
            first: the number of the first row.
            samples: consecutive rows.
            outputs: the forecasts of the learner.
        """
        ahead, (predicted, errors) = self.forecast(samples, outputs).tolist(), self.predicted(samples, outputs)
        _, spreads = self.forecasts(self.made_and_due(outputs)[0])
        spread = ((samples.ahead if self.horizon else samples.scales)[..., 1] * spreads).tolist()
        came, predicted, known = samples.values.tolist(), predicted.tolist(), self.was_forecast(samples).tolist()
        for i in range(len(came)):
            entry = self.place(first + i, samples, i)
            if self.horizon:
                entry["forecast"] = self.row(ahead[i])
            if self.gaussian:
                entry["deviation"] = self.row(spread[i])
            if known[i]:
                target = dict(zip(self.columns, map(_as_sent, came[i]), strict=False))
                entry |= {"prediction": self.row(predicted[i]), "target": target}
                entry["surprise"] = self.surprise(errors[i])
            yield entry

    def forecast(self, samples: Samples, outputs: Any) -> np.ndarray:
        """Convert the forecasts made at each row to the units of the stream.

        Args:
            samples: consecutive rows.
            outputs: the forecasts of the learner.

        Returns:
            The forecasts; the last value while there are too few rows for a scale.
        """
        made, _ = self.forecasts(self.made_and_due(outputs)[0])
        ahead = samples.ahead[..., 0] + samples.ahead[..., 1] * made
        return np.where(np.isnan(ahead), samples.values, ahead)

    def predicted(self, samples: Samples, outputs: Any) -> tuple[np.ndarray, np.ndarray]:
        """Convert the earlier forecasts of each row, by the nearest step, to the units of the stream.

        Args:
            samples: consecutive rows.
            outputs: the forecasts of the learner.

        Returns:
            The forecasts, and their errors in standard deviations.
        """
        width = len(self.columns)
        made, deviations = (part[:, :width] for part in self.forecasts(self.made_and_due(outputs)[1]))
        scales, targets = samples.scales[:, :width], samples.targets[:, :width].astype(np.float64)
        return scales[..., 0] + scales[..., 1] * made, (targets - made) / deviations

    def was_forecast(self, samples: Samples) -> np.ndarray:
        """Return whether each row was forecast. The first rows were not.

        Args:
            samples: consecutive rows.
        """
        return np.asarray((~np.isnan(samples.scales[:, : len(self.columns), 0])).any(axis=1))

    def surprise(self, errors: np.ndarray) -> float | None:
        """Return the root mean square of the errors of one row; None if no error is known.

        Args:
            errors: the errors; NaN means unknown.
        """
        known = errors[~np.isnan(errors)]
        return round(float(np.sqrt(np.mean(known**2))), 6) if len(known) else None

    def forecasts(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split outputs into standardised forecasts and their standard deviations.

        Args:
            outputs: outputs of the learner.
        """
        width = outputs.shape[1] // (2 if self.gaussian else 1)
        forecasts = np.asarray(outputs[:, :width], np.float64, order="C")
        if not self.gaussian:
            return forecasts, np.ones(forecasts.shape)
        return forecasts, np.exp(log_variance(np.asarray(outputs[:, width:], np.float64)) / 2)

    def row(self, values: Sequence[float]) -> dict[str, Any]:
        """Arrange numbers by column, or by step and column, rounded to the seven digits of a forecast.

        Args:
            values: the numbers of all columns, or of all steps and columns.
        """
        width = len(self.columns)
        if len(values) > width:
            return self.by_step([self.row(values[start : start + width]) for start in range(0, len(values), width)])
        return dict(zip(self.columns, map(seven_digits, values), strict=True))


class RowScore(NumberScore):
    """Scores forecasts of the rows of one series, and compares them with simple forecasts.

    It extends `NumberScore`. `seasonal` is the mean squared error of forecasting the newest known value
    a multiple of `period` ago; if no period is given, the best of some common ones. `errors` are
    in units of the table, over all steps, and `by_step` are root mean squared errors in
    standard deviations.

    Args:
        columns: the names of the targets.
        loss: "squared" or "gaussian".
        steps: the forecast steps, in rows ahead.
        period: the season in rows, if it is known.
    """

    def __init__(self, columns: Sequence[str], loss: str, steps: Sequence[int] = (1,), period: int | None = None):
        super().__init__(columns, loss, steps)
        self.periods = [period] if period else list(PERIODS)
        # How many rows ago is the newest known value of each simple forecast, by forecast and step.
        self._ago = np.array([self.delays, *(-(-self.delays // rows) * rows for rows in self.periods)])
        # The forecasts that are compared: the model, the mean, the last value, and the values one period ago.
        forecasts, width = 3 + len(self.periods), len(self.columns)
        self.state |= {
            "rows": 0,
            "seasonal": np.zeros((len(self.periods), 2)),
            "errors": np.zeros((forecasts, len(self.steps), width, 3)),
            "squares": np.zeros((forecasts, len(self.steps), 2)),
            "past": np.full((int(self._ago.max()), width), np.nan),
            "errors recently": np.zeros((len(self.steps), width, 2)),
            "recent": np.zeros((0, min(width, SHOWN), 3)),
        }

    def add(self, samples: Samples, outputs: Any = None) -> int:
        state, width = self.state, len(self.columns)
        means, spreads = self.forecasts(self.made_and_due(outputs)[1])
        targets = samples.targets.astype(np.float64)
        values = np.ascontiguousarray(samples.values[:, :width], np.float64)
        scales = np.ascontiguousarray(samples.scales, np.float64)
        sums = [state[name] for name in ("errors", "squares", "past", "errors recently")]
        compare_rows(*sums, self._ago, state["rows"] % len(state["past"]), values, targets, scales, means)
        state["rows"] += len(values)
        center, deviation = scales[:, :width, 0], scales[:, :width, 1]
        nearest = np.stack([values, center + deviation * means[:, :width], deviation * spreads[:, :width]], axis=-1)
        state["recent"] = np.concatenate([state["recent"], nearest[:, :SHOWN]])[-RECENT:]
        return super().add(samples)

    def take(self) -> dict[str, Any]:
        line, state, shown = super().take(), self.state, {"model": 0, "mean": 1, "persistence": 2}
        errors, squares = state["errors"], state["squares"]
        counts, totals = (state["seasonal"] + squares[3:].sum(axis=1)).T
        state |= {"errors": np.zeros_like(errors), "squares": np.zeros_like(squares)}
        state["seasonal"] = np.stack([counts, totals], axis=1)
        if counts.any():
            best = int(np.argmin(np.where(counts > 0, totals / np.maximum(counts, 1), np.inf)))
            shown["seasonal"] = 3 + best
            if not self.gaussian:
                line["seasonal"] = mean(squares[3 + best].sum(axis=0).tolist())
            line["period"] = self.periods[best]
        if errors[0, ..., 0].any():
            line["errors"] = {name: self._errors(errors[place].sum(axis=0)) for name, place in shown.items()}
            if len(self.steps) > 1:
                some = squares[:, steps_shown(range(len(self.steps)))].tolist()
                line["by_step"] = {name: [_root_mean(*of) for of in some[place]] for name, place in shown.items()}
        return line

    def _errors(self, sums: np.ndarray) -> dict[str, dict[str, float | None]]:
        """Return for each column the mean absolute and the root mean squared error, and the number of values."""
        return {
            column: {"mae": digits(mean([count, total])), "rmse": _root_mean(count, squares), "rows": int(count)}
            for column, (count, total, squares) in zip(self.columns[:SHOWN], sums.tolist(), strict=False)
        }

    def recent_errors(self) -> np.ndarray:
        """Return the root mean squared error over the newest rows, by step and target; NaN where it is not known."""
        weights, squares = np.moveaxis(self.state["errors recently"], -1, 0)
        return np.sqrt(np.where(weights > 0, squares / np.where(weights > 0, weights, 1), np.nan))

    def summary(self, lines: Sequence[dict[str, Any]]) -> Summary | None:
        """Compare the last half of a run with simple forecasts; None if nothing was scored.

        Args:
            lines: the lines of metrics.
        """
        return summary(lines, self.steps, squared=not self.gaussian)

    def closing(self, lines: Sequence[dict[str, Any]], folder: Path) -> str:
        """Format the summary as a table.

        Args:
            lines: the lines of metrics.
            folder: unused.
        """
        result = self.summary(lines)
        return table(result) if result else ""


@kernel
def compare_rows(errors, squares, past, recently, ago, first, values, targets, scales, means):
    """Add up the errors of the model, the mean, the last value and the values a period ago, row by row.

    All are compared on the same rows: those that were forecast and whose target is known. (A value
    one period ago may be missing.)

    Args:
        errors: by forecast (model, mean, persistence, periods), step and target, the number of rows, and the sums of
            absolute and of squared errors in the table's units.
        squares: by forecast and step, the number of errors, and the sum of their squares in variances.
        past: a ring of the newest values.
        recently: by step and target, the weights and the weighted means of the newest squared errors.
        ago: how many rows ago the values of simple forecasts arrived, by forecast and step.
        first: the place of the first row in the ring.
        values: the actual values, by row and target.
        targets: the same, standardised, for every step; NaN means unknown.
        scales: the means and standard deviations used to standardise them.
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


def _as_sent(value: float) -> float | None:
    """Return a number as it was sent; None if it was missing."""
    if not isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
