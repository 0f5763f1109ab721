"""Forecasts for every key of a fleet, from the keys' records."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from norewind.fleets.store import Store
from norewind.runs.build import build, open_stream, set_precision
from norewind.runs.fleets import WINDOW
from norewind.runs.folder import saved_run
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.shards import shard_folders


def fleet_forecasts(path: Path, settings: Settings, steps: int | None = None) -> Iterator[dict[str, Any]]:
    """The forecasts of every key up to the horizon, one entry per row; keys by shard, then by their bytes."""
    horizon = settings.horizons[0]
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
        fleet = build(replace(settings, resident=WINDOW), opened.shape).learner
    score: Any = opened.score
    store = Store(folder, fleet.slots.layout, write=False)
    try:
        for key, content in store.all():
            record = fleet.slots.record(store, key, content)
            # Of the newest rows, the one at `samples` modulo the horizon is the oldest.
            scales = np.roll(record["waiting"], -int(record["samples"]) % len(record["waiting"]), axis=0)
            center, deviation, _ = np.moveaxis(scales, -1, 0)
            means, spreads = score.forecasts(record["outputs"])
            made = center + deviation * means
            # The first rows of a key were not there to forecast from.
            made[: max(0, len(made) - int(record["samples"]))] = np.nan
            for step in range(min(steps, len(made))):
                entry = {"key": score.name(key), "rows": int(record["samples"]), "step": step + 1}
                entry["forecast"] = score.row(made[step].tolist())
                if score.gaussian:
                    entry["deviation"] = score.row((deviation[step] * spreads[step]).tolist())
                yield entry
    finally:
        store.close()
