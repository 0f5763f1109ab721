"""Forecasts for every key of a fleet, read from the records of its keys."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from norewind.fleets.store import Store
from norewind.forecasting.predict import check_ahead, opened_at_the_end
from norewind.learners.steps import nearest_steps
from norewind.streams.table.scaling import NEWEST
from norewind.sweeps.parts import shard_folders
from norewind.training.build import build, set_precision
from norewind.training.folder import saved_run
from norewind.training.settings import Settings, SettingsError


def fleet_forecasts(path: Path, settings: Settings, steps: int | None = None) -> Iterator[dict[str, Any]]:
    """Forecast the next rows of every key of a fleet, up to the horizon.

    Args:
        path: the run folder.
        settings: the settings of the run.
        steps: the number of rows per key, at most the horizon, which is the default.

    Returns:
        One entry per key and forecast row. Keys are ordered by shard, then by their bytes.

    Raises:
        SettingsError: if the run cannot forecast this many rows.
    """
    check_ahead(settings, steps)
    horizon = settings.horizon
    if steps is not None and steps > horizon:
        raise SettingsError(f"--steps: a fleet forecasts no further than its horizon, which is {horizon}.")
    for folder in shard_folders(path, settings.shards) if settings.shards > 1 and settings.shard is None else [path]:
        yield from _of_folder(folder, steps or horizon)


def _of_folder(folder: Path, steps: int) -> Iterator[dict[str, Any]]:
    settings, saved = saved_run(folder)
    set_precision(settings)
    opened = opened_at_the_end(settings, saved)
    with opened.stream:
        # Keys are read one at a time.
        fleet: Any = build(replace(settings, resident=1), opened.shape).learner
    score: Any = opened.score
    store = Store(folder, fleet.slots.layout, write=False)
    try:
        for key, content in store.all():
            record = fleet.slots.record(key, content)[0]
            center, deviation = _scales(record, opened.shape.steps)
            means, spreads = score.means_and_deviations(fleet.engine.pending(record))
            means, spreads = center + deviation * means, deviation * spreads
            # Until there are enough values to scale by, forecast the last one, as the predictions do.
            newest = record["statistics"][NEWEST, fleet.table.targets]
            means = np.where(np.isnan(means), newest, means)
            for step in range(min(steps, len(means))):
                entry = {"key": score.name(key), "rows": int(record["seen"]), "step": step + 1}
                entry["forecast"] = score.by_column(means[step].tolist())
                if score.gaussian:
                    entry["deviation"] = score.by_column(spreads[step].tolist())
                yield entry
    finally:
        store.close()


def _scales(record: np.ndarray, steps: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of every target, as known when each of the next rows was forecast.

    Each row is forecast with the nearest step that reaches it. NaN if no row had arrived at that time.
    """
    waiting, seen = record["waiting"], int(record["seen"])
    made_at = seen - 1 - nearest_steps(tuple(steps))[0]
    scales = np.where(made_at[:, None, None] >= 0, waiting[made_at % len(waiting)], np.nan)
    return scales[..., 0], scales[..., 1]
