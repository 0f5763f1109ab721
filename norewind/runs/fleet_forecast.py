"""Forecasts for every key of a fleet, from the keys' records."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from norewind.fleets.store import Store
from norewind.learners.steps import nearest_steps
from norewind.runs.build import build, open_stream, set_precision
from norewind.runs.fleets import WINDOW
from norewind.runs.folder import saved_run
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.shards import shard_folders
from norewind.streams.scaling import NEWEST


def fleet_forecasts(path: Path, settings: Settings, steps: int | None = None) -> Iterator[dict[str, Any]]:
    """The forecasts of every key up to the horizon, one entry per row; keys by shard, then by their bytes."""
    horizon = settings.horizon
    if not horizon:
        raise SettingsError("this run has a horizon of 0: it predicts targets of the same row, and nothing ahead.")
    if steps is not None and steps > horizon:
        raise SettingsError(f"--steps: a fleet forecasts as many rows of a key as its horizon, which is {horizon}.")
    for folder in shard_folders(path, settings.shards) if settings.shards > 1 and settings.shard is None else [path]:
        yield from _of_folder(folder, steps or horizon)


def _of_folder(folder: Path, steps: int) -> Iterator[dict[str, Any]]:
    settings, saved = saved_run(folder)
    set_precision(settings)
    opened = open_stream(replace(settings, source=os.devnull), saved.entries["position"]["stream"], continues=True)
    with opened.stream:
        # Keys are read one at a time: the fewest that may be resident are enough.
        fleet: Any = build(replace(settings, resident=WINDOW), opened.shape).learner
    score: Any = opened.score
    store = Store(folder, fleet.slots.layout, write=False)
    try:
        for key, content in store.all():
            record = fleet.slots.record(key, content)[0]
            center, deviation = _scales(record, opened.shape.steps)
            means, spreads = score.forecasts(fleet.engine.pending(record))
            means, spreads = center + deviation * means, deviation * spreads
            # Before there are enough values to scale by, the last one, as in the predictions.
            newest = record["statistics"][NEWEST, fleet.table.targets]
            means = np.where(np.isnan(means), newest, means)
            for step in range(min(steps, len(means))):
                entry = {"key": score.name(key), "rows": int(record["seen"]), "step": step + 1}
                entry["forecast"] = score.row(means[step].tolist())
                if score.gaussian:
                    entry["deviation"] = score.row(spreads[step].tolist())
                yield entry
    finally:
        store.close()


def _scales(record: np.ndarray, steps: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of every target as they were known when each of the next rows was forecast: by the nearest
    step that reaches it; NaN if there was no row then."""
    waiting, seen = record["waiting"], int(record["seen"])
    made_at = seen - 1 - nearest_steps(tuple(steps))[0]
    scales = np.where(made_at[:, None, None] >= 0, waiting[made_at % len(waiting)], np.nan)
    return scales[..., 0], scales[..., 1]
