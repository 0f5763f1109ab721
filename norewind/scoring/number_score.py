"""Scores of forecasts of numbers, in the units of the table: of one series, or of many keys together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from math import inf, isfinite
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from norewind.core.losses import log_variance
from norewind.engines.kernels import kernel
from norewind.fleets.fleet import KeyedOutputs
from norewind.fleets.store import KeyErrors, KeyStore
from norewind.scoring.interval_score import (
    bounds_in_units,
    by_level,
    init_sums,
    interval_entries,
    interval_table,
    score_intervals,
)
from norewind.scoring.metrics import SIMPLE_FORECASTS, quantile_of, row_loss
from norewind.scoring.score import Outputs, RowOutputs, ScoreState, StepScore, place_of
from norewind.scoring.tally import Sums, mean, running_sum
from norewind.streams.stream import Samples
from norewind.wording import counted, seven_digits

# The largest number of steps whose errors are written with every line of metrics.
LOGGED_STEPS = 200
# The number of targets whose errors are written with every line of metrics.
LOGGED_TARGETS = 8
# The number of keys listed at the end, and the minimum number of their scored rows.
WORST_KEYS, MIN_SCORED_ROWS = 5, 20


class NumberState(ScoreState, kw_only=True):
    """The state of a `NumberScore`.

    Attributes:
        intervals: sums of `score_intervals` in the interval between two lines; empty without intervals.
        baseline: the number of errors of the mean so far in the interval, and the sum of their squares.
        persistence: the same for the last known value.
    """

    sums = ("intervals",)

    # Checkpoints of earlier versions have none.
    intervals: np.ndarray = msgspec.field(default_factory=lambda: init_sums(0, 0, 0))
    baseline: Sums = (0, 0.0)
    persistence: Sums = (0, 0.0)


class NumberScore(StepScore):
    """Scores forecasts of standardised numbers: mean squared errors, or nats with `gaussian`, per value and step.

    The baseline is the loss of forecasting the mean so far, and `persistence` the mean squared
    error of forecasting the last known value.

    Args:
        columns: the names of the targets.
        loss: "squared", "gaussian", or of one series also "absolute" or "quantile:0.9".
        steps: the forecast steps, in rows ahead.
        levels: the coverage of each interval; outputs end with their bounds.

    Attributes:
        lowest: the lowest value that may be forecast, in units of the stream.
    """

    lowest = -inf

    def __init__(self, columns: Sequence[str], loss: str, steps: Sequence[int], levels: Sequence[float] = ()):
        super().__init__(steps)
        self.columns, self.levels = list(columns), tuple(levels)
        self.gaussian, self.quantile = loss == "gaussian", quantile_of(loss)
        self.unit, self.simple_forecasts = row_loss(loss)
        self.scale = (1 if self.gaussian else 2) / (len(self.columns) * len(self.steps))
        self.state = NumberState(intervals=self._no_intervals())

    def _no_intervals(self) -> np.ndarray:
        return init_sums(len(self.levels), len(self.steps), len(self.columns)) if self.levels else init_sums(0, 0, 0)

    def add(self, samples: Samples, outputs: Outputs | None = None) -> int:
        targets = samples.targets.astype(np.float64)
        if self.quantile is None:
            self.state.baseline = _with_squares(self.state.baseline, targets)
            self.state.persistence = _with_squares(self.state.persistence, targets - samples.last)
        if self.levels:
            assert outputs is not None
            assert not isinstance(outputs, np.ndarray)
            means = self.forecasts_due(samples, outputs)
            bounds = self._limited(self.bounds(outputs.due).astype(np.float64), samples.scales[:, None])
            deviations = np.ascontiguousarray(samples.scales[..., 1], np.float64)
            score_intervals(self.state.intervals, np.array(self.levels), targets, means, bounds, deviations)
        return super().add(samples)

    def end_interval(self) -> dict[str, Any]:
        squares, last = mean(self.state.baseline), mean(self.state.persistence)
        self.state.baseline = self.state.persistence = (0, 0.0)
        if self.gaussian:
            line = {"baseline": None if squares is None else (squares + np.log(2 * np.pi)) / 2}
        else:
            line = {"baseline": squares, "persistence": last}
        if self.levels:
            sums, self.state.intervals = self.state.intervals, self._no_intervals()
            line |= interval_entries(sums, self.levels, self.columns[:LOGGED_TARGETS], logged_places(self.steps))
        return line

    @property
    def logged_steps(self) -> list[int]:
        """The steps whose errors a line of metrics has."""
        return [self.steps[place] for place in logged_places(self.steps)]

    def closing_text(self, lines: Sequence[dict[str, Any]], folder: Path) -> str:
        return interval_table(lines, self.logged_steps)

    def prediction_entries(self, first: int, samples: Samples, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """Yield, for each row, the forecasts made there, and how good the latest forecast of this row was.

        All are in the units of the stream. With intervals, `interval` has the bounds of the forecast and
        `prediction_interval` those of the prediction, rounded outwards. The surprise is the root mean square of the
        errors in standard deviations.

        Args:
            first: the number of the first row.
            samples: consecutive rows.
            outputs: the forecasts of the learner.
        """
        assert not isinstance(outputs, np.ndarray)
        forecasts = self.forecasts_in_units(samples, outputs).tolist()
        predictions, errors = self.predictions_and_errors(samples, outputs)
        _, deviations = self.means_and_deviations(outputs.made)
        deviations = ((samples.scales_after if self.horizon else samples.scales)[..., 1] * deviations).tolist()
        ahead, earlier = self._intervals(samples, outputs) if self.levels else ([], [])
        predictions, has_prediction = predictions.tolist(), self.has_prediction(samples).tolist()
        for i, values in enumerate(samples.values.tolist()):
            entry = self.first_entries(first + i, samples, i)
            if self.horizon:
                entry["forecast"] = self.by_column(forecasts[i])
                if self.levels:
                    entry["interval"] = self.intervals_by_column(ahead[i])
            if self.gaussian:
                entry["deviation"] = self.by_column(deviations[i])
            if has_prediction[i]:
                target = dict(zip(self.columns, map(_as_sent, values), strict=False))
                entry |= {"prediction": self.by_column(predictions[i]), "target": target}
                if self.levels:
                    entry["prediction_interval"] = self.intervals_by_column(earlier[i])
                entry["surprise"] = self.surprise(errors[i])
            yield entry

    def _intervals(self, samples: Samples, outputs: RowOutputs) -> tuple[list, list]:
        """Return the bounds of the forecasts made at each row, and of the nearest earlier forecast of each row."""
        made, due = self.bounds(outputs.made), self.bounds(outputs.due)[..., : len(self.columns)]
        after, before = samples.scales_after, samples.scales[:, : len(self.columns)]
        return tuple(
            np.maximum(bounds_in_units(bounds, scales[..., 0], scales[..., 1]), self.lowest).tolist()
            for bounds, scales in ((made, after), (due, before))
        )

    def forecasts_in_units(self, samples: Samples, outputs: RowOutputs) -> np.ndarray:
        """Convert the forecasts made at each row to the units of the stream.

        Args:
            samples: consecutive rows.
            outputs: the forecasts of the learner.

        Returns:
            The forecasts; the last value while there are too few rows for a scale.
        """
        forecasts = np.empty(samples.values.shape)
        _to_units(np.asarray(outputs.made), samples.scales_after, samples.values, forecasts)
        return np.maximum(forecasts, self.lowest)

    def forecasts_due(self, samples: Samples, outputs: RowOutputs) -> np.ndarray:
        """Return the earlier standardised forecasts of rows, none of them below the lowest value.

        Args:
            samples: consecutive rows.
            outputs: the forecasts of the learner.
        """
        return self._limited(self.means_and_deviations(outputs.due)[0], samples.scales)

    def _limited(self, standardised: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Raise standardised forecasts or bounds to the lowest value."""
        if self.lowest == -inf:
            return standardised
        # A scale that is not known yet gives NaN, as it does everywhere.
        return np.maximum(standardised, (self.lowest - scales[..., 0]) / scales[..., 1])

    def predictions_and_errors(self, samples: Samples, outputs: RowOutputs) -> tuple[np.ndarray, np.ndarray]:
        """Convert the predictions of each row, made earlier by the nearest step, to the units of the stream.

        Args:
            samples: consecutive rows.
            outputs: the forecasts of the learner.

        Returns:
            The predictions, and their errors in standard deviations.
        """
        width = len(self.columns)
        means, deviations = self.forecasts_due(samples, outputs)[:, :width], self.means_and_deviations(outputs.due)[1]
        deviations = deviations[:, :width]
        scales, targets = samples.scales[:, :width], samples.targets[:, :width].astype(np.float64)
        return scales[..., 0] + scales[..., 1] * means, (targets - means) / deviations

    def has_prediction(self, samples: Samples) -> np.ndarray:
        """Return whether each row has a prediction. The first rows have none.

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

    def means_and_deviations(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split outputs into standardised forecasts and their standard deviations.

        Args:
            outputs: outputs of the learner.
        """
        width = outputs.shape[1] // self._parts
        forecasts = np.asarray(outputs[:, :width], np.float64, order="C")
        if not self.gaussian:
            return forecasts, np.ones(forecasts.shape)
        return forecasts, np.exp(log_variance(np.asarray(outputs[:, width : 2 * width], np.float64)) / 2)

    @property
    def _parts(self) -> int:
        """How many outputs there are for each step and target."""
        return (2 if self.gaussian else 1) + 2 * len(self.levels)

    def bounds(self, outputs: np.ndarray) -> np.ndarray:
        """Return the standardised bounds in outputs, lower and upper of each level in turn (rows, bounds, outputs).

        Args:
            outputs: outputs of the learner.
        """
        bounds = 2 * len(self.levels)
        width = outputs.shape[1] // self._parts
        return np.asarray(outputs)[:, (self._parts - bounds) * width :].reshape(len(outputs), bounds, width)

    def intervals_by_column(self, bounds: Sequence[Sequence[float]]) -> dict[str, Any]:
        """Arrange bounds in units by column and level, or by step, column and level.

        Args:
            bounds: for each bound, its values for all columns, or for all steps and columns.
        """
        return self._arranged([by_level(one, self.levels) for one in zip(*bounds, strict=True)])

    def by_column(self, values: Sequence[float]) -> dict[str, Any]:
        """Arrange numbers by column, or by step and column, rounded to the seven digits of a forecast.

        Args:
            values: the numbers of all columns, or of all steps and columns.
        """
        return self._arranged(list(map(seven_digits, values)))

    def _arranged(self, values: list[Any]) -> dict[str, Any]:
        """Arrange values by column, or by step and column."""
        width = len(self.columns)
        if len(values) == width:
            return dict(zip(self.columns, values, strict=True))
        steps = (values[start : start + width] for start in range(0, len(values), width))
        return self.by_step([dict(zip(self.columns, step, strict=True)) for step in steps])


def _with_squares(sums: Sums, errors: np.ndarray) -> Sums:
    """Add errors to a count and a sum of squares. NaN means unknown."""
    known = errors[~np.isnan(errors)]
    return sums[0] + len(known), running_sum(sums[1], known**2)


@kernel
def _to_units(outputs, scales, values, forecasts):
    """Write standardised forecasts in the units of the stream, or the last value while there is no scale.

    Args:
        outputs: the forecasts, perhaps followed by their variances.
        scales: the mean and deviation for each of them.
        values: the last values.
        forecasts: where to write the result.
    """
    for row in range(len(forecasts)):
        for i in range(forecasts.shape[1]):
            forecast = scales[row, i, 0] + scales[row, i, 1] * outputs[row, i]
            forecasts[row, i] = values[row, i] if np.isnan(forecast) else forecast


def logged_places(steps: Sequence[int]) -> list[int]:
    """Select the places of the steps whose errors a line of metrics has: all, or an evenly spaced selection.

    Args:
        steps: all steps.
    """
    return np.unique(np.linspace(0, len(steps) - 1, LOGGED_STEPS).round().astype(int)).tolist()


class KeyedScore(NumberScore):
    """Scores forecasts of the rows of many keys, each standardised by its own past.

    The outputs end with the standardised samples, because the fleet standardises them.

    Args:
        columns: the names of the targets.
        loss: "squared" or "gaussian".
        steps: the forecast steps, in rows (of the same key) ahead.
        name: converts a key to its name.
        levels: the coverage of each interval.
    """

    def __init__(
        self,
        columns: Sequence[str],
        loss: str,
        steps: Sequence[int],
        name: Callable[[bytes], Any],
        levels: Sequence[float] = (),
    ):
        super().__init__(columns, loss, steps, levels)
        self.name = name

    def add(self, samples: Samples, outputs: Outputs | None = None) -> int:
        assert isinstance(outputs, KeyedOutputs)
        return super().add(outputs.samples, outputs)

    def prediction_entries(self, first: int, samples: Samples, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """Yield predictions as for a single series, with the key.

        There is no `for` entry, because the future rows of a key have no number yet.

        Args:
            first: the number of the first row.
            samples: consecutive rows with their keys.
            outputs: the outputs of the fleet, `norewind.fleets.fleet.KeyedOutputs`.
        """
        assert isinstance(outputs, KeyedOutputs)
        described = outputs.samples._replace(keys=samples.keys, lines=samples.lines, copied=samples.copied)
        return super().prediction_entries(first, described, outputs)

    def first_entries(self, number: int, samples: Samples, i: int) -> dict[str, Any]:
        assert samples.keys is not None
        return {"sample": number, "key": self.name(samples.keys[i])} | place_of(samples, i)

    def closing_text(self, lines: Sequence[dict[str, Any]], folder: Path) -> str:
        """Describe the keys with the largest errors, and the intervals of all keys together.

        Args:
            lines: the lines of metrics.
            folder: the run folder.
        """
        return "\n".join(filter(None, [worst_keys([folder], self.name), super().closing_text(lines, folder)]))


def worst_keys(folders: Iterable[Path], name: Callable[[bytes], Any]) -> str:
    """Describe the keys with the largest errors, compared with simple forecasts, as text.

    Args:
        folders: run folders, each with some of the keys.
        name: converts a key to its name.
    """
    worst: list[KeyErrors] = []
    keys = 0
    for folder in folders:
        with closing(KeyStore(folder, None, write=False)) as store:
            worst += store.worst(WORST_KEYS, MIN_SCORED_ROWS)
            keys += len(store)
    if not worst:
        return f"{counted(keys, 'key')}; none has {MIN_SCORED_ROWS} scored rows yet."
    simple = f"{SIMPLE_FORECASTS['persistence']}, {SIMPLE_FORECASTS['baseline']}"
    lines = [f"{counted(keys, 'key')}. Those with the largest squared errors (this model, {simple}):"]
    for key, rows, model, persistence, average in sorted(worst, key=lambda key: -key.model)[:WORST_KEYS]:
        lines.append(f"  {name(key)!s:.40}: {model:.4f}, {persistence:.4f}, {average:.4f} ({counted(rows, 'row')})")
    return "\n".join(lines)


def _as_sent(value: float) -> float | None:
    """Return a number as it was sent; None if it was missing."""
    if not isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
