"""Forecasts of the rows after the end of a run: numbers, classes, or the next rows of every key of a fleet."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from norewind.fleets.fleet import Fleet
from norewind.forecasting.predict import open_at_end, training_at_end
from norewind.learners.horizon import nearest_steps
from norewind.learners.learner import RowLearner
from norewind.scoring.class_score import ClassScore
from norewind.scoring.interval_score import bounds_in_units
from norewind.scoring.number_score import KeyedScore
from norewind.scoring.row_score import RowScore
from norewind.scoring.score import log_probabilities
from norewind.streams.table.moment import Moment
from norewind.streams.table.row_outlook import plan_from
from norewind.streams.table.row_stream import RowStream
from norewind.sweeps.shards import shard_folders
from norewind.training.build import build, set_precision
from norewind.training.folder import SavedRun, saved_run
from norewind.training.settings import Settings, SettingsError
from norewind.training.training_loop import Training
from norewind.wording import first_few

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The largest number of rows that can be forecast at once.
MAX_ROWS = 100_000


class Forecast(NamedTuple):
    """Forecasts of the rows after the end of a run. For a class, there are only the entries.

    Attributes:
        entries: one per row, ready to be written as JSON: the number of the row (`for`), its `time` if the times of the
            table are regular, the number of rows ahead (`step`), and the `forecast` with its `deviation` and perhaps
            its `interval`, all by column, or a class with its `probability`.
        columns: the names of the targets; empty for a class.
        means: forecasts, by row and target. A target with too few values, or with a constant value, is forecast to
            keep its last value.
        deviations: standard deviations of the same shape; NaN where they are not known yet.
        recent: the latest rows: values, earlier forecasts of them, and the deviations of those, by row and target.
        warning: how rows beyond the horizon are forecast, as a sentence; None if there are none.
        levels: the coverage of each interval.
        bounds: the lower and upper bound of each level in turn, by row, bound and target.
        recent_times: the times of the latest rows, if the table has times.
    """

    entries: list[dict[str, Any]]
    columns: Sequence[str] = ()
    means: np.ndarray = np.zeros((0, 0))
    deviations: np.ndarray = np.zeros((0, 0))
    recent: np.ndarray = np.zeros((0, 0, 3))
    warning: str | None = None
    levels: Sequence[float] = ()
    bounds: np.ndarray = np.zeros((0, 0, 0))
    recent_times: Sequence[str] = ()

    def figure(self) -> "Figure":
        """Draw the latest rows and the forecasts, as a Matplotlib figure."""
        from norewind.plotting.figures import rows_figure

        ahead = np.stack([self.means, self.deviations], axis=-1)
        times = [entry["time"] for entry in self.entries if "time" in entry]
        bands = {level: self.bounds[:, 2 * place : 2 * place + 2] for place, level in enumerate(self.levels)}
        last, before = self.entries[0]["for"] - 1, self.recent_times
        return rows_figure(self.recent, self.columns, last, ahead, times, bands, recent_times=before)


def forecast(settings: Settings, saved: SavedRun, rows: int | None = None) -> Forecast:
    """Forecast the next rows. The source is not needed, and the run is not changed.

    Rows up to the horizon are forecast directly. For later ones, the model is given its own
    forecasts in place of rows, while inputs that it does not forecast keep their values and
    times advance. Deviations are those that the model forecasts (`--loss gaussian`), or its
    errors over the latest rows. Beyond the horizon the variances add up, to at most that of
    the column, but no deviation is less than the change of the column over as many rows,
    among its latest values. Beyond the horizon, intervals grow in proportion to the deviations, and their coverage is
    not guaranteed. Classes are forecast only up to the horizon.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        rows: the number of rows; by default the horizon.

    Raises:
        SettingsError: the run cannot forecast this many rows.
    """
    check_rows(settings, rows)
    training = training_at_end(settings, saved)
    with training.windowed.stream:
        return forecast_next_rows(settings, training, rows)


def forecast_next_rows(
    settings: Settings,
    training: Training,
    rows: int | None = None,
    known_future: Iterable[dict[str, Any]] | None = None,
) -> Forecast:
    """Forecast the next rows of an open stream; see `forecast`.

    Args:
        settings: the settings of the run.
        training: the run, which is not changed.
        rows: the number of rows, which `check_rows` has accepted.
        known_future: what is known in advance about these rows; None to use the plan of the stream.

    Raises:
        StreamError: `known_future` does not fit; see `plan_from`.
    """
    training.update_metrics()
    score, learner = training.score, training.learner
    assert isinstance(learner, RowLearner)
    if isinstance(score, ClassScore):
        logits = learner.upcoming(training.run_so_far())[:rows]
        classes = zip(*score.likeliest(log_probabilities(logits)), strict=True)
        return Forecast(_entries(training, [{"forecast": name, "probability": share} for name, share in classes]))
    assert isinstance(score, RowScore)
    rows, stream = rows or score.horizon, training.windowed.rows
    origin = ForecastOrigin(learner, score, stream, training.run_so_far(), stream.moment())
    if known_future is not None:
        plan = plan_from(known_future, stream.outlook, stream.clock, stream.times_ahead(1))
        origin = origin.planned(plan)
    means, deviations = _means_and_deviations(origin, rows, standardise=settings.standardise)
    bounds = _bounds(origin, means, deviations)
    rows_ahead = zip(means.tolist(), deviations.tolist(), strict=True)
    values = [{"forecast": score.by_column(mean), "deviation": score.by_column(spread)} for mean, spread in rows_ahead]
    for value, row in zip(values, bounds.tolist(), strict=True):
        if score.levels:
            value["interval"] = score.intervals_by_column(row)
    warning = _beyond_horizon(training, score, rows)
    entries, recent = _entries(training, values), score.state.recent
    times = score.state.recent_times
    return Forecast(entries, score.columns, means, deviations, recent, warning, score.levels, bounds, times)


class ForecastOrigin(NamedTuple):
    """The state of a run after its latest row, from which forecasts are made.

    Attributes:
        learner, score, stream: of the run.
        run: the run of the learner.
        moment: what the next row of the stream depends on.
    """

    learner: RowLearner
    score: RowScore
    stream: RowStream
    run: Any
    moment: Moment

    def planned(self, plan: np.ndarray) -> "ForecastOrigin":
        """Return the same origin, as if something else had been known in advance.

        Args:
            plan: the planned columns of the next rows.
        """
        moment = self.moment._replace(plan=plan)
        run, _ = self.learner.replan(self.run, self._inputs(moment, self.stream.latest_targets(), 0))
        return self._replace(run=run, moment=moment)

    def inputs(self, targets: np.ndarray, step: int) -> np.ndarray:
        """Return the inputs of a future row.

        Args:
            targets: the assumed targets of that row.
            step: how many rows ahead it is.
        """
        return self._inputs(self.moment, targets, step)

    def _inputs(self, moment: Moment, targets: np.ndarray, step: int) -> np.ndarray:
        return moment.future_inputs(self.stream.layout, self.stream.outlook, targets, step)

    def scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and deviation of every target when each next row was forecast; NaN where unknown."""
        horizon = self.score.horizon
        scales = self.stream.scales_ahead(horizon)
        scales = np.pad(scales, ((horizon - len(scales), 0), (0, 0), (0, 0)), constant_values=np.nan)
        # Each row is forecast with the nearest step that reaches it, made some rows before the latest one.
        made_at = -1 - nearest_steps(self.score.steps)[0]
        return scales[made_at, :, 0], scales[made_at, :, 1]


def _bounds(origin: ForecastOrigin, means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Return the bounds of forecasts, by row, bound and target: beyond the horizon, those of its last row, widened."""
    score, rows = origin.score, len(means)
    horizon = score.horizon
    if not score.levels:
        return np.zeros((rows, 0, len(score.columns)))
    bounds = bounds_in_units(score.bounds(origin.learner.upcoming(origin.run)), *origin.scales())[:rows]
    bounds = np.maximum(bounds, score.lowest)
    if rows <= horizon:
        return bounds
    wider = (deviations[horizon:] / deviations[horizon - 1])[:, None]
    distances = bounds[horizon - 1] - means[horizon - 1]
    return np.concatenate([bounds, np.maximum(means[horizon:, None] + wider * distances, score.lowest)])


def _beyond_horizon(training: Training, score: RowScore, rows: int) -> str | None:
    """Describe how rows beyond the horizon are forecast; None if there are none."""
    horizon = score.horizon
    if rows <= horizon:
        return None
    which = f"row {rows} is" if rows == horizon + 1 else f"rows {horizon + 1} to {rows} are"
    unknown = training.windowed.rows.unknown_ahead()
    kept = f", while {first_few(unknown, 5)} keep{'s' if len(unknown) == 1 else ''} the last value" if unknown else ""
    how = f"the model is given its own forecasts in place of rows{kept}"
    if score.levels:
        how += ", and their intervals grow with the deviations, without a guaranteed coverage"
    remedy = f"To forecast all of them directly, train with horizon={rows}."
    return f"{which} beyond the horizon of {horizon}: {how}. {remedy}"


def _entries(training: Training, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the number of each forecast row to its values, and its time if times are regular."""
    times = training.windowed.rows.times_ahead(len(values))
    when = [{}] * len(values) if times is None else [{"time": time} for time in times]
    rows = enumerate(zip(when, values, strict=True), 1)
    return [{"for": training.received + step, **time, "step": step, **value} for step, (time, value) in rows]


def _means_and_deviations(origin: ForecastOrigin, rows: int, *, standardise: bool) -> tuple[np.ndarray, np.ndarray]:
    """Forecast numbers directly up to the horizon, then from the forecasts."""
    learner, score, run = origin.learner, origin.score, origin.run
    horizon, width = score.horizon, len(score.columns)
    center, scale = origin.scales()
    means, deviations = score.means_and_deviations(learner.upcoming(run))
    means, deviations = np.maximum(center + scale * means, score.lowest), scale * deviations
    errors = (deviations if score.gaussian else score.recent_errors()[nearest_steps(score.steps)[1]])[:rows]
    means, deviations = list(means[:rows]), list(errors)
    changes = score.recent_changes(rows)
    center, scale = center[-1], scale[-1]  # of the latest row, for all later rows
    for row in range(1, rows - horizon + 1):
        run, (outputs, _) = learner.forward(run, origin.inputs(means[row - 1], row)[None])
        mean, deviation = (part[0, -width:] for part in score.means_and_deviations(np.asarray(outputs)))
        means.append(np.maximum(center + scale * mean, score.lowest))
        new = scale * deviation if score.gaussian else errors[horizon - 1]
        added = np.sqrt(new**2 + deviations[-horizon] ** 2)
        added = np.minimum(added, np.fmax(new, scale if standardise else np.inf))
        deviations.append(np.fmax(added, changes[horizon + row - 1]))
    # Until there are enough values to scale by, forecast the last one, as the predictions do.
    return np.where(np.isnan(means), origin.stream.latest_targets(), means), np.array(deviations)


def check_rows(settings: Settings, rows: int | None) -> None:
    """Check that a run can forecast this many rows.

    Args:
        settings: the settings of the run.
        rows: the number of rows; None for the default.

    Raises:
        SettingsError: the run predicts symbols, its horizon is 0, it forecasts classes or many keys and its horizon
            is less than `rows`, or `rows` is not a number from 1 to 100,000.
    """
    if not settings.has_rows:
        raise SettingsError("this run predicts symbols: use norewind sample to generate text.")
    horizon = settings.horizon
    if not horizon:
        raise SettingsError("this run has a horizon of 0: it predicts targets of the same row, not of later rows.")
    if rows is None:
        return
    if not isinstance(rows, int | np.integer) or not 1 <= rows <= MAX_ROWS:
        raise SettingsError(f"the number of rows to forecast must be from 1 to {MAX_ROWS:,}, not {rows!r}.")
    if settings.loss == "classes" and rows > horizon:
        reach = "one row" if horizon == 1 else f"{horizon} rows"
        raise SettingsError(f"this run forecasts classes {reach} ahead: to go further, train with horizon={rows}.")
    if settings.key is not None and rows > horizon:
        raise SettingsError(f"a fleet forecasts no further than its horizon, which is {horizon}.")


def fleet_forecasts(path: Path, settings: Settings, rows: int | None = None) -> Iterator[dict[str, Any]]:
    """Forecast the next rows of every key of a fleet, up to the horizon.

    Args:
        path: the run folder.
        settings: the settings of the run.
        rows: the number of rows per key, at most the horizon, which is the default.

    Returns:
        One entry per key and forecast row. Keys are ordered by shard, then by their bytes.

    Raises:
        SettingsError: the run cannot forecast this many rows.
    """
    check_rows(settings, rows)
    for folder in shard_folders(path, settings.shards) if settings.shards > 1 and settings.shard is None else [path]:
        yield from _folder_forecasts(folder, rows or settings.horizon)


def _folder_forecasts(folder: Path, rows: int) -> Iterator[dict[str, Any]]:
    settings, saved = saved_run(folder)
    set_precision(settings)
    opened = open_at_end(settings, saved)
    with opened.stream:
        # Keys are read one at a time.
        fleet = build(replace(settings, resident=1), opened.shape).learner
    score = opened.score
    assert isinstance(fleet, Fleet)
    assert isinstance(score, KeyedScore)
    with closing(fleet.records(folder)) as records:
        for key, record in records.on_disk(saved.entries["samples"]):
            yield from key_forecasts(fleet, score, key, record, rows)


def key_forecasts(
    fleet: Fleet, score: KeyedScore, key: bytes, record: np.ndarray, rows: int
) -> Iterator[dict[str, Any]]:
    """Forecast the next rows of one key of a fleet.

    Args:
        fleet: the fleet.
        score: its score.
        key: the key.
        record: the record of the key.
        rows: the number of rows, at most the horizon.

    Returns:
        One entry per row.
    """
    outputs, mean, deviation, latest, rows_so_far = fleet.upcoming(record)
    means, spreads = score.means_and_deviations(outputs)
    means, spreads = mean + deviation * means, deviation * spreads
    bounds = bounds_in_units(score.bounds(outputs), mean, deviation)
    # Until there are enough values to scale by, forecast the last one, as the predictions do.
    means = np.maximum(np.where(np.isnan(means), latest, means), score.lowest)
    bounds = np.maximum(bounds, score.lowest)
    for step in range(min(rows, len(means))):
        entry = {"key": score.name(key), "rows": rows_so_far, "step": step + 1}
        entry["forecast"] = score.by_column(means[step].tolist())
        if score.gaussian:
            entry["deviation"] = score.by_column(spreads[step].tolist())
        if score.levels:
            entry["interval"] = score.intervals_by_column(bounds[step].tolist())
        yield entry
