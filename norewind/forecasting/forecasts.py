"""Forecasts of the rows after the end of a run: numbers, classes, or the next rows of every key of a fleet."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from norewind.forecasting.predict import open_at_end, training_at_end
from norewind.learners.steps import nearest_steps
from norewind.scoring.class_score import ClassScore
from norewind.scoring.metrics import seven_digits
from norewind.scoring.row_score import RowScore
from norewind.scoring.score import log_probabilities
from norewind.sweeps.parts import shard_folders
from norewind.training.build import build, set_precision
from norewind.training.folder import Saved, saved_run
from norewind.training.settings import Settings, SettingsError
from norewind.training.training_loop import Training


class Forecast(NamedTuple):
    """Forecasts of the rows after row `last`.

    Attributes:
        columns: the names of the targets.
        last: the number of the newest row.
        means: forecasts, by row (from `last` + 1 on) and target. A target with too few values, or with a constant
            value, is forecast to keep its last value.
        deviations: standard deviations of the same shape; NaN where they are not known yet.
        recent: the newest rows: values, earlier forecasts of them, and the deviations of those, by row and target.
        direct: how many rows ahead the model was trained to forecast; later rows are forecast from forecasts.
        times: when the rows are due, if the times of the table are regular.
    """

    columns: list[str]
    last: int
    means: np.ndarray
    deviations: np.ndarray
    recent: np.ndarray
    direct: int
    times: list[Any] | None = None

    def entries(self) -> list[dict[str, Any]]:
        """One entry per row, ready to be written as JSON."""
        named = [
            [dict(zip(self.columns, map(seven_digits, row), strict=True)) for row in part.tolist()]
            for part in (self.means, self.deviations)
        ]
        places = _places(self.last, len(self.means), self.times)
        rows = zip(places, *named, strict=True)
        return [place | {"forecast": mean, "deviation": deviation} for place, mean, deviation in rows]


def _places(last: int, steps: int, times: list[Any] | None) -> list[dict[str, Any]]:
    """The numbers of the forecast rows, with their times if these are regular."""
    when = [{}] * steps if times is None else [{"time": time} for time in times]
    return [{"for": last + step, **when[step - 1], "step": step} for step in range(1, steps + 1)]


def forecast(settings: Settings, saved: Saved, steps: int | None = None) -> Forecast:
    """Forecast the next rows. The source is not needed, and the run is not changed.

    Rows up to the horizon are forecast directly. For later ones, the model is given its own
    forecasts in place of rows, while inputs that it does not forecast keep their values and
    times move on. Deviations are those that the model forecasts (`--loss gaussian`), or its
    errors over the newest rows; beyond the horizon the variances add up, to at most that of
    the column.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        steps: the number of rows; by default the horizon, or 24 if that is 1.
    """
    check_ahead(settings, steps)
    training = training_at_end(settings, saved)
    with training.steps.stream:
        return forecast_next_rows(settings, training, steps)


def forecast_next_rows(settings: Settings, training: Training, steps: int | None) -> Forecast:
    """Forecast the next rows of an open stream: directly up to the horizon, then from the forecasts.

    Args:
        settings: the settings of the run.
        training: the run.
        steps: the number of rows; by default the horizon, or 24 if that is 1.

    Returns:
        The forecasts with their standard deviations.
    """
    training.add_up()
    stream, score, learner, run = training.steps.stream, training.score, training.learner, training.run_so_far()
    assert isinstance(score, RowScore)
    horizon, width = score.horizon, len(score.columns)
    steps = steps or (horizon if horizon > 1 else 24)
    # Each row is forecast with the nearest step that reaches it, made `late` rows before the newest one.
    late, reached = nearest_steps(score.steps)
    made_at = -1 - late
    # Mean and deviation of every target after each of the last rows; NaN until there are enough rows.
    scales = stream.scales_ahead(horizon)
    scales = np.pad(scales, ((horizon - len(scales), 0), (0, 0), (0, 0)), constant_values=np.nan)
    center, scale = scales[..., 0], scales[..., 1]
    means, own = score.means_and_deviations(learner.upcoming(run))
    means, own = center[made_at] + scale[made_at] * means, scale[made_at] * own
    errors = (own if score.gaussian else score.recent_errors()[reached])[:steps]
    means, spreads = list(means[:steps]), list(errors)
    for step in range(1, steps - horizon + 1):
        x = stream.imagined(means[step - 1], step)
        run, (outputs, _) = learner.forward(run, x[None])
        made, own = (part[0, -width:] for part in score.means_and_deviations(np.asarray(outputs)))
        means.append(center[-1] + scale[-1] * made)
        new = scale[-1] * own if score.gaussian else errors[horizon - 1]
        added = np.sqrt(new**2 + spreads[-horizon] ** 2)
        spreads.append(np.minimum(added, np.fmax(new, scale[-1] if settings.standardise else np.inf)))
    found = np.array(means)
    # Until there are enough values to scale by, forecast the last one, as the predictions do.
    found = np.where(np.isnan(found), stream.newest_targets(), found)
    newest, times = score.state["recent"], stream.times_ahead(steps)
    return Forecast(score.columns, training.received, found, np.array(spreads), newest, horizon, times)


def forecast_class(settings: Settings, saved: Saved, steps: int | None = None) -> list[dict[str, Any]]:
    """Forecast the classes of the next rows, one entry per row.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        steps: the number of rows, at most the horizon, which is the default.

    Returns:
        The most likely class of each row, with its probability.

    Raises:
        SettingsError: the run cannot forecast this many rows.
    """
    check_ahead(settings, steps)
    training = training_at_end(settings, saved)
    assert isinstance(training.score, ClassScore)
    with training.steps.stream as stream:
        logits = training.learner.upcoming(training.run_so_far())[:steps]
        names, shares = training.score.likeliest(log_probabilities(logits))
        places = _places(training.received, len(names), stream.times_ahead(len(names)))
        classes = zip(places, names, shares, strict=True)
        return [place | {"forecast": name, "probability": share} for place, name, share in classes]


def check_ahead(settings: Settings, steps: int | None) -> None:
    """Check that a run can forecast this many rows ahead.

    Args:
        settings: the settings of the run.
        steps: the number of rows; None for the default.

    Raises:
        SettingsError: the run predicts symbols, its horizon is 0, or it forecasts classes and its horizon
            is less than `steps`.
    """
    if not settings.has_rows:
        raise SettingsError("this run predicts symbols: use norewind sample to generate text.")
    horizon = settings.horizon
    if not horizon:
        raise SettingsError("this run has a horizon of 0: it predicts targets of the same row, not of later rows.")
    if settings.loss == "classes" and (steps or 1) > horizon:
        rows = "one row" if horizon == 1 else f"{horizon} rows"
        raise SettingsError(f"this run forecasts classes {rows} ahead: to go further, train with --horizon {steps}.")


def fleet_forecasts(path: Path, settings: Settings, steps: int | None = None) -> Iterator[dict[str, Any]]:
    """Forecast the next rows of every key of a fleet, up to the horizon.

    Args:
        path: the run folder.
        settings: the settings of the run.
        steps: the number of rows per key, at most the horizon, which is the default.

    Returns:
        One entry per key and forecast row. Keys are ordered by shard, then by their bytes.

    Raises:
        SettingsError: the run cannot forecast this many rows.
    """
    check_ahead(settings, steps)
    horizon = settings.horizon
    if steps is not None and steps > horizon:
        raise SettingsError(f"--steps: a fleet forecasts no further than its horizon, which is {horizon}.")
    for folder in shard_folders(path, settings.shards) if settings.shards > 1 and settings.shard is None else [path]:
        yield from _folder_forecasts(folder, steps or horizon)


def _folder_forecasts(folder: Path, steps: int) -> Iterator[dict[str, Any]]:
    settings, saved = saved_run(folder)
    set_precision(settings)
    opened = open_at_end(settings, saved)
    with opened.stream:
        # Keys are read one at a time.
        fleet: Any = build(replace(settings, resident=1), opened.shape).learner
    score: Any = opened.score
    with closing(fleet.records(folder)) as records:
        for key, record in records.on_disk():
            outputs, mean, deviation, newest, rows = fleet.upcoming(record)
            means, spreads = score.means_and_deviations(outputs)
            means, spreads = mean + deviation * means, deviation * spreads
            # Until there are enough values to scale by, forecast the last one, as the predictions do.
            means = np.where(np.isnan(means), newest, means)
            for step in range(min(steps, len(means))):
                entry = {"key": score.name(key), "rows": rows, "step": step + 1}
                entry["forecast"] = score.by_column(means[step].tolist())
                if score.gaussian:
                    entry["deviation"] = score.by_column(spreads[step].tolist())
                yield entry
