"""A run folder in which another process trains, as it grows."""

import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from norewind.checkpoint import CheckpointError, checkpoints, read
from norewind.runs.entries import check_entries
from norewind.runs.folder import METRICS, PREDICTIONS, as_entry
from norewind.runs.metrics import seven_digits
from norewind.serving.feed import RECENT, Feed, about

LARGEST = 50_000_000
"""Bytes of a checkpoint that is still read for its newest rows."""
PATIENCE = 15
"""Seconds without a line of metrics after which the speed of a run is no longer shown."""
AT_ONCE = 4_000_000
"""Bytes of a log that are read at most in one go; of a longer one, the end."""


class Tail:
    """The new lines of a log. One that was cut off, because its run was resumed, is read again from the start."""

    def __init__(self, path: Path, last: int | None = None):
        self.path, self.last = path, last
        self._offset, self._before = 0, b""

    def new(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the log starts again, and its new entries; at first the `last` ones."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(self._offset - len(self._before))
                restarts = file.read(len(self._before)) != self._before
                if restarts:
                    self._offset, self._before = 0, b""
                skipped = max(self._offset, size - AT_ONCE)
                file.seek(skipped)
                data = file.read(size - skipped)
        except OSError:
            return False, []  # it is not there yet, or cannot be read now: the next look may find it
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.split(b"\n")[:-1]
        if skipped > self._offset:
            lines = lines[1:]  # it starts somewhere inside
        self._offset = skipped + len(whole)
        self._before = (self._before + whole)[-64:]
        lines = lines[-(self.last or len(lines)) :]
        return restarts, [entry for line in lines if (entry := as_entry(line)) is not None]


class Following:
    """The feed of a run folder. Nothing in the folder is changed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.feed = Feed(about(folder), [], self.status, self.look)
        self._metrics, self._predictions = Tail(folder / METRICS), Tail(folder / PREDICTIONS, RECENT)
        self._checkpoint: Path | None = None
        self._bad = self._samples = 0
        self._speeds: deque[tuple[int, float]] = deque(maxlen=2)
        self.feed.apply(self.look())

    def look(self) -> tuple[bool, list, list]:
        """Whether everything starts again, new lines of metrics, and new rows."""
        restarts, lines = self._metrics.new()
        cut, rows = self._predictions.new()
        newest = self._newest_checkpoint()
        if newest and not self._predictions.path.exists():
            rows = newest
        self._samples = 0 if restarts else self._samples
        for line in lines:
            self._samples = line.get("samples") or 0
            self._speeds.append((self._samples, line.get("seconds") or 0.0))
        return restarts or cut, lines, rows

    def _newest_checkpoint(self) -> list[dict[str, Any]]:
        """The newest rows of a checkpoint that was not looked at yet."""
        found = checkpoints(self.folder / "checkpoints")
        if not found or found[-1] == self._checkpoint:
            return []
        self._checkpoint = found[-1]  # one that cannot be read is not read again at every look
        try:
            if found[-1].stat().st_size > LARGEST:
                return []
            _, entries = read(found[-1])
            check_entries(found[-1], entries)
            self._bad = entries["watch"].get("bad", 0)
            return recent_rows(entries, self.feed.about["columns"] or {})
        except (CheckpointError, OSError, KeyError, TypeError, ValueError):
            return []  # replaced by a newer one meanwhile, or written by somebody else

    def status(self) -> dict[str, Any]:
        saved = checkpoints(self.folder / "checkpoints")
        durable = int(saved[-1].name.split("-")[0]) if saved else 0
        (before, began), (samples, now) = (*self._speeds, (0, 0.0), (0, 0.0))[:2]
        silent = None  # the seconds since the newest line of metrics
        try:
            log = self._metrics.path.stat()
            silent = max(0, round(time.time() - log.st_mtime)) if log.st_size else None
        except OSError:
            pass  # there is no line yet
        # Lines come farther and farther apart. A run that is silent for much longer than between two has ended.
        lives = silent is not None and silent < PATIENCE + 3 * (now - began)
        return {
            "samples": max(self._samples, durable),
            "durable": durable,
            "watch": "suspicious" if self._bad else "healthy",
            "bad": self._bad,
            "diverged": False,
            "speed": round((samples - before) / (now - began), 1) if lives and now > began else None,
            "silent": silent,
        }


def recent_rows(entries: dict[str, Any], columns: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest rows in a checkpoint of a run on numbers, like lines of predictions."""
    recent, targets = entries["score"].get("recent"), columns.get("targets", [])
    rows = []
    if isinstance(recent, np.ndarray):
        for number, row in enumerate(recent, entries["samples"] - len(recent) + 1):
            values, predicted, deviation = np.moveaxis(row, -1, 0)
            errors = ((values - predicted) / deviation)[~np.isnan(values - predicted)]
            target, prediction = (
                dict(zip(targets, map(seven_digits, part.tolist()), strict=False)) for part in (values, predicted)
            )
            surprise = float(np.sqrt(np.mean(errors**2))) if len(errors) else None
            rows.append({"sample": number, "target": target, "prediction": prediction, "surprise": surprise})
    return rows
