"""Scores of the rows of one series: errors in the units of the table, compared with those of simple forecasts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from norewind.learners.horizon import PERIODS
from norewind.learners.learner import Forecasts
from norewind.scoring.anomalies import init_anomalies, score_rows, scores_and_columns
from norewind.scoring.compare_rows import compare_rows
from norewind.scoring.drift import Alarm, block_rows, drift_entries, init_drift
from norewind.scoring.metrics import ROW_LOSSES, SIMPLE_FORECASTS, last_half
from norewind.scoring.number_score import LOGGED_TARGETS, NumberScore, NumberState, logged_places
from norewind.scoring.running_quantile import add_pinball, baseline_errors, init_quantiles
from norewind.scoring.score import RECENT_ROWS, Outputs
from norewind.scoring.tally import mean
from norewind.streams.position import Count
from norewind.streams.stream import Samples
from norewind.wording import aligned, counted, digits

# Over fewer pairs of values, the size of changes is too uncertain.
MIN_CHANGES = 10
# The number of steps in the table; the others are in the figure.
TABLE_STEPS = 8
# The number of targets in the table; the others are in metrics.jsonl.
TABLE_TARGETS = 3
# The fraction of the model's squared error below which a simple forecast is clearly better.
CLEARLY_BETTER = 0.98
MODEL_TITLE = "this model"
SQUARED = ROW_LOSSES["squared"].unit
# The titles of forecasts, with the names of their errors and of their losses in a line of metrics.
FORECAST_TITLES = {
    MODEL_TITLE: ("model", "loss"),
    SIMPLE_FORECASTS["persistence"]: ("persistence", "persistence"),
    SIMPLE_FORECASTS["baseline"]: ("baseline", "baseline"),
    "": ("seasonal", "seasonal"),
}


class Summary(NamedTuple):
    """The errors of forecasts, by name, over the last half of a run.

    Attributes:
        rows: the number of forecasts that were scored.
        losses: squared errors in variances, or those of a quantile.
        errors: by forecast and column, the mean absolute and the root mean squared error in the table's units, over
            all steps.
        steps: the steps that are shown.
        by_step: root mean squared errors in standard deviations, by forecast and step; empty if there is only one.
        unit: the unit of the losses.
    """

    rows: int
    losses: dict[str, float]
    errors: dict[str, dict[str, tuple[float, float]]]
    steps: list[int]
    by_step: dict[str, list[float]]
    unit: str = SQUARED

    def best_simple(self, *, absolute: bool = False) -> tuple[str, float]:
        """Return the best simple forecast, and its error as a fraction of the model's.

        Args:
            absolute: whether to compare mean absolute errors, not squared ones.
        """
        if self.unit != SQUARED and self.losses:
            best = min((name for name in self.losses if name != MODEL_TITLE), key=self.losses.__getitem__)
            return best, self.losses[best] / self.losses[MODEL_TITLE] if self.losses[MODEL_TITLE] else 1.0
        place, power = (0, 1) if absolute else (1, 2)
        # The errors of all columns, each as a fraction of that of the mean.
        mean = [(column, both[place]) for column, both in self.errors[SIMPLE_FORECASTS["baseline"]].items()]
        fractions = {
            name: float(np.mean([(errors[column][place] / error) ** power if error else 1.0 for column, error in mean]))
            for name, errors in self.errors.items()
        }
        best = min((name for name in fractions if name != MODEL_TITLE), key=fractions.__getitem__)
        return best, fractions[best] / fractions[MODEL_TITLE] if fractions[MODEL_TITLE] else 1.0

    def table(self) -> str:
        """Format the errors as text, with a warning if a simple forecast was better."""
        columns = list(self.errors[MODEL_TITLE])[:TABLE_TARGETS]
        head = [f"last {counted(self.rows, 'forecast' if self.by_step else 'row')}"]
        head += [self.unit] if self.losses else []
        rows = [[*head, *(f"{column[:20]}: {kind}" for column in columns for kind in ("MAE", "RMSE"))]]
        for name in dict.fromkeys([*self.errors, *self.losses]):
            cells = [f"{self.losses[name]:.4f}"] if name in self.losses else [""] if self.losses else []
            errors = self.errors.get(name)
            values = [f"{value:.4g}" for column in columns for value in errors[column]] if errors else []
            rows.append([name, *cells, *(values or [""] * 2 * len(columns))])
        lines = aligned(rows)
        if self.by_step:
            chosen = sorted({round(place) for place in np.geomspace(1, len(self.steps), TABLE_STEPS)})
            rows = [["RMSE in σ, rows ahead", *(str(self.steps[place - 1]) for place in chosen)]]
            rows += [[name, *(f"{errors[place - 1]:.4f}" for place in chosen)] for name, errors in self.by_step.items()]
            lines += aligned(rows)
        if (more := len(self.errors[MODEL_TITLE]) - len(columns)) > 0:
            lines.append(f"The errors of {more} other targets are in metrics.jsonl.")
        best, fraction = self.best_simple()
        if fraction < CLEARLY_BETTER:
            lines.append(f"Warning: {best} was a better forecast than this model. Use that instead, or train longer.")
        elif fraction < 1:
            lines.append(f"Warning: {best} was as good a forecast as this model, and is simpler.")
        elif (absolute := self.best_simple(absolute=True))[1] < CLEARLY_BETTER**0.5:
            lines.append(f"Warning: {absolute[0]} had a smaller mean absolute error than this model: use it for that.")
        return "\n".join(lines)


class RowState(NumberState, kw_only=True):
    """The state of a `RowScore`. `errors`, `squares`, `past` and `recent_squares` are arguments of `compare_rows`.

    Attributes:
        rows: the number of rows.
        seasonal: by period, the number of errors since the start and the sum of their squares.
        errors: sums of errors in the interval, in the table's units.
        squares: sums of squared errors in the interval, in variances.
        past: a ring of the latest values.
        recent_squares: weighted means of the latest squared errors.
        recent: for the latest rows, the values, the forecasts of them, and their deviations.
        recent_times: the times of these rows, if the table has times.
        anomalies: the usual values and errors of each target; see `norewind.scoring.anomalies`.
        drift: the state of the detectors of drift; see `norewind.scoring.drift`.
        block: the number of rows in their blocks.
        quantiles: for losses of quantiles, a ring of the running quantiles, the baseline; otherwise empty.
        alarms: their alarms in the interval.
        time: the time of the latest row; empty if there is none.
    """

    sums = ("intervals", "seasonal", "errors", "squares", "recent_squares", "drift")
    latest = ("recent",)

    rows: Count
    seasonal: np.ndarray
    errors: np.ndarray
    squares: np.ndarray
    past: np.ndarray
    recent_squares: np.ndarray
    recent: np.ndarray
    anomalies: np.ndarray
    drift: np.ndarray
    block: Annotated[int, msgspec.Meta(ge=1)]
    quantiles: np.ndarray = msgspec.field(default_factory=lambda: init_quantiles(None, 0, 0))
    recent_times: Annotated[list[str], msgspec.Meta(max_length=RECENT_ROWS)] = msgspec.field(default_factory=list)
    alarms: list[Alarm] = msgspec.field(default_factory=list)
    time: str = ""


class RowScore(NumberScore):
    """Scores forecasts of the rows of one series, and compares them with simple forecasts.

    It extends `NumberScore`. `seasonal` is the mean squared error of forecasting the latest known value
    a multiple of `period` ago; if no period is given, the best of some common ones. `errors` are
    in units of the table, over all steps, and `by_step` are root mean squared errors in
    standard deviations.

    Args:
        columns: the names of the targets.
        loss: "squared", "gaussian", "absolute", or "quantile:0.9" for a quantile.
        steps: the forecast steps, in rows ahead.
        period: the season in rows, if it is known.
        levels: the coverage of each interval.
    """

    def __init__(
        self,
        columns: Sequence[str],
        loss: str,
        steps: Sequence[int] = (1,),
        period: int | None = None,
        levels: Sequence[float] = (),
    ):
        super().__init__(columns, loss, steps, levels)
        self.periods = [period] if period else list(PERIODS)
        # How many rows ago is the latest known value of each simple forecast, by forecast and step.
        self._ago = np.array([self.delays, *(-(-self.delays // rows) * rows for rows in self.periods)])
        # The forecasts that are compared: the model, the mean, the last value, and the values one period ago.
        forecasts, width = 3 + len(self.periods), len(self.columns)
        self.state: RowState = RowState(  # pyright: ignore[reportIncompatibleVariableOverride]
            intervals=self._no_intervals(),
            rows=0,
            seasonal=np.zeros((len(self.periods), 2)),
            errors=np.zeros((forecasts, len(self.steps), width, 3)),
            squares=np.zeros((forecasts, len(self.steps), 2)),
            past=np.full((int(self._ago.max()), width), np.nan),
            recent_squares=np.zeros((len(self.steps), width, 2)),
            recent=np.zeros((0, min(width, LOGGED_TARGETS), 3)),
            anomalies=init_anomalies(width),
            drift=init_drift(width),
            block=block_rows(self.steps[0], period),
            quantiles=init_quantiles(self.quantile, int(self.delays[-1]), width),
        )

    def add(self, samples: Samples, outputs: Outputs | None = None) -> int:
        assert isinstance(outputs, Forecasts)
        state, width = self.state, len(self.columns)
        means, spreads = self.forecasts_due(samples, outputs), self.means_and_deviations(outputs.due)[1]
        targets = samples.targets.astype(np.float64)
        values = np.ascontiguousarray(samples.values[:, :width], np.float64)
        scales = np.ascontiguousarray(samples.scales, np.float64)
        sums = state.errors, state.squares, state.past, state.recent_squares
        compare_rows(*sums, self._ago, state.rows % len(state.past), values, targets, scales, means)
        self.find_drift(samples, np.abs(targets - means)[:, :width], self.columns)
        if self.quantile is not None:
            errors = baseline_errors(state.quantiles, self.quantile, self.delays, state.rows, targets)
            state.baseline = add_pinball(state.baseline, errors, self.quantile)
            state.persistence = add_pinball(state.persistence, targets - samples.last, self.quantile)
        state.rows += len(values)
        center, deviation = scales[:, :width, 0], scales[:, :width, 1]
        nearest = np.stack([values, center + deviation * means[:, :width], deviation * spreads[:, :width]], axis=-1)
        state.recent = np.concatenate([state.recent, nearest[:, :LOGGED_TARGETS]])[-RECENT_ROWS:]
        if samples.times is not None:
            state.recent_times = [*state.recent_times, *samples.times[-RECENT_ROWS:]][-RECENT_ROWS:]
        return super().add(samples, outputs)

    def usual_after(self, samples: Samples | None, outputs: Outputs | None) -> np.ndarray:
        usual = self.state.anomalies
        if samples is not None:
            assert isinstance(outputs, Forecasts)
            usual = usual.copy()
            score_rows(usual, *self._values_and_errors(samples, outputs))
        return usual

    def note_usual(self, samples: Samples, outputs: Outputs) -> None:
        # Replaced, not changed: the service answers from the state of an earlier row.
        self.state.anomalies = self.usual_after(samples, outputs)

    def anomaly_entries(
        self, samples: Samples, outputs: Forecasts, usual: np.ndarray | None = None
    ) -> Iterator[dict[str, Any]]:
        """Score how unusual consecutive rows are; see `norewind.scoring.anomalies`.

        Args:
            samples: the rows that come next.
            outputs: the forecasts of the learner.
            usual: the usual values and errors to compare with; by default those of all rows so far.

        Returns:
            For each row its `anomaly`, a score from 0 to 1 with nine digits. If there are several targets, `unusual`
            names the one that the score is due to; None if it is 0.
        """
        usual = self.state.anomalies if usual is None else usual
        found = scores_and_columns(usual.copy(), *self._values_and_errors(samples, outputs))
        for score, column in zip(*(part.tolist() for part in found), strict=True):
            entry: dict[str, Any] = {"anomaly": round(score, 9)}
            yield entry | ({"unusual": self.columns[column] if score > 0 else None} if len(self.columns) > 1 else {})

    def _values_and_errors(self, samples: Samples, outputs: Forecasts) -> tuple[np.ndarray, np.ndarray]:
        return samples.values[:, : len(self.columns)], self.predictions_and_errors(samples, outputs)[1]

    def prediction_entries(self, first: int, samples: Samples, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """Yield the entries of a `NumberScore`, and those of `anomaly_entries` for every row that had a forecast.

        Args:
            first: the number of the first row.
            samples: consecutive rows.
            outputs: the forecasts of the learner.
        """
        assert isinstance(outputs, Forecasts)
        anomalies = self.anomaly_entries(samples, outputs)
        for anomaly, entry in zip(anomalies, super().prediction_entries(first, samples, outputs), strict=True):
            yield entry | anomaly if "surprise" in entry else entry

    def end_interval(self) -> dict[str, Any]:
        line, state = super().end_interval() | drift_entries(self.state), self.state
        forecasts = {"model": 0, "baseline": 1, "persistence": 2}
        errors, squares = state.errors, state.squares
        state.errors, state.squares = np.zeros_like(errors), np.zeros_like(squares)
        state.seasonal = state.seasonal + squares[3:].sum(axis=1)
        counts, totals = state.seasonal.T
        if counts.any():
            best = int(np.argmin(np.where(counts > 0, totals / np.maximum(counts, 1), np.inf)))
            forecasts["seasonal"] = 3 + best
            if not self.gaussian and self.quantile is None:
                line["seasonal"] = mean(squares[3 + best].sum(axis=0).tolist())
            line["period"] = self.periods[best]
        if errors[0, ..., 0].any():
            line["errors"] = {name: self._errors(errors[place].sum(axis=0)) for name, place in forecasts.items()}
            if len(self.steps) > 1:
                logged = squares[:, logged_places(self.steps)].tolist()
                line["by_step"] = {
                    name: [_root_mean(*sums) for sums in logged[place]] for name, place in forecasts.items()
                }
        return line

    def _errors(self, sums: np.ndarray) -> dict[str, dict[str, float | None]]:
        """Return for each column the mean absolute and the root mean squared error, and the number of values."""
        return {
            column: {"mae": digits(mean([count, total])), "rmse": _root_mean(count, squares), "rows": int(count)}
            for column, (count, total, squares) in zip(self.columns[:LOGGED_TARGETS], sums.tolist(), strict=False)
        }

    def recent_errors(self) -> np.ndarray:
        """Return the root mean squared error over the latest rows, by step and target; NaN where it is not known."""
        weights, squares = np.moveaxis(self.state.recent_squares, -1, 0)
        return np.sqrt(np.where(weights > 0, squares / np.where(weights > 0, weights, 1), np.nan))

    def recent_changes(self, rows: int) -> np.ndarray:
        """Return how much every target changes over 1, 2, ... rows: the root mean square over its latest values.

        Args:
            rows: the largest number of rows.

        Returns:
            The changes, by number of rows and target; NaN where too few values are kept.
        """
        past = np.roll(self.state.past, -(self.state.rows % len(self.state.past)), axis=0)
        changes = np.full((rows, past.shape[1]), np.nan)
        for apart in range(1, min(rows, len(past) - 1) + 1):
            squares = (past[apart:] - past[:-apart]) ** 2
            known = (~np.isnan(squares)).sum(axis=0)
            means = np.nansum(squares, axis=0) / np.maximum(known, 1)
            changes[apart - 1] = np.where(known >= MIN_CHANGES, np.sqrt(means), np.nan)
        return changes

    def summary(self, lines: Sequence[dict[str, Any]]) -> Summary | None:
        """Compare the last half of a run with simple forecasts; None if nothing was scored.

        Args:
            lines: the lines of metrics.
        """
        last = last_half([line for line in lines if line.get("errors")])
        if not last:
            return None

        def rows(name: str) -> np.ndarray:
            errors = [line["errors"].get(name, {"": {"rows": 0}}).values() for line in last]
            return np.array([max(column["rows"] for column in columns) for columns in errors])

        # The best period may change during a run. Each line is compared with the best one at that time.
        periods = dict.fromkeys(line["period"] for line in last if "period" in line)
        losses = {}
        errors = {}
        by_step = {}
        weights = rows("model")
        for title, (name, entry) in FORECAST_TITLES.items():
            title = title or f"{' or '.join(map(str, periods))} rows ago"
            # A simple forecast that is missing for some of the rows is left out.
            if (rows(name) < weights).any():
                continue
            errors[title] = {}
            for column in last[-1]["errors"][name]:
                parts = [line["errors"][name][column] for line in last]
                mae, rmse, counts = ([part[kind] for part in parts] for kind in ("mae", "rmse", "rows"))
                if any(counts):
                    errors[title][column] = float(_mean(mae, counts)), float(_mean(rmse, counts, power=2))
            if "by_step" in last[-1]:
                by_step[title] = _mean([line["by_step"][name] for line in last], weights, power=2).tolist()
            loss = float(_mean([line.get(entry) for line in last], weights))
            if not self.gaussian and not np.isnan(loss):
                losses[self.simple_forecasts.get(entry, title) if self.quantile else title] = loss
        return Summary(int(weights.sum()), losses, errors, self.logged_steps, by_step, self.unit)

    def closing_text(self, lines: Sequence[dict[str, Any]], folder: Path) -> str:
        """Format the summary as a table.

        Args:
            lines: the lines of metrics.
            folder: unused.
        """
        result = self.summary(lines)
        return "\n".join(filter(None, [result.table() if result else "", super().closing_text(lines, folder)]))


def _mean(values: list[Any], weights: Sequence[float] | np.ndarray, power: int = 1) -> np.ndarray:
    """The weighted power mean over lines, ignoring unknown values; NaN where all are unknown."""
    powers = np.array(values, float) ** power
    known = np.where(np.isnan(powers), 0, np.reshape(weights, (-1, *[1] * (powers.ndim - 1))))
    total, count = (known * np.nan_to_num(powers)).sum(axis=0), known.sum(axis=0)
    return np.where(count > 0, total / np.where(count > 0, count, 1), np.nan) ** (1 / power)


def _root_mean(count: float, squares: float) -> float | None:
    return digits(float(np.sqrt(squares / count))) if count else None
