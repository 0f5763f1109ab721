"""A run folder in which another process trains, as it grows."""

import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from norewind.checkpoint import CheckpointError, checkpoints, read
from norewind.runs.entries import check_entries
from norewind.runs.folder import METRICS, PREDICTIONS, as_entry
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
        """Whether the log begins again, and its new entries; at first the `last` ones."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                begins = size < self._offset or not self._is_the_same(file)
                if begins:
                    self._offset, self._before = 0, b""
                skipped = max(self._offset, size - AT_ONCE)
                file.seek(skipped)
                data = file.read(size - skipped)
        except OSError:
            return False, []  # it is not there yet, or cannot be read now: the next look may find it
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.split(b"\n")[:-1]
        if skipped > self._offset:
            lines = lines[1:]  # it begins somewhere inside
        self._offset = skipped + len(whole)
        self._before = (self._before + whole)[-64:]
        return begins, [entry for line in lines[-(self.last or len(lines)) :] if (entry := as_entry(line)) is not None]

    def _is_the_same(self, file: Any) -> bool:
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before


class Following:
    """The feed of a run folder. Nothing in the folder is changed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.feed = Feed(about(folder), [])
        self.feed.look, self.feed.status = self.look, self.status
        self._metrics, self._predictions = Tail(folder / METRICS), Tail(folder / PREDICTIONS, RECENT)
        self._checkpoint: Path | None = None
        self._watch: dict[str, Any] = {}
        self._samples = 0
        self._speeds: deque[tuple[int, float]] = deque(maxlen=2)
        self.feed.apply(self.look())

    def look(self) -> tuple[bool, list, list]:
        """Whether everything begins again, new lines of metrics, and new rows."""
        begins, lines = self._metrics.new()
        cut, rows = self._predictions.new()
        newest = self._newest_checkpoint()
        if newest and not self._predictions.path.exists():
            rows = newest
        for line in lines:
            self._samples = line.get("samples") or 0
            self._speeds.append((self._samples, line.get("seconds") or 0.0))
        if begins and not lines:
            self._samples = 0
        return begins or cut, lines, rows

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
            self._watch = entries["watch"]
            return recent_rows(entries, self.feed.about["columns"] or {})
        except (CheckpointError, OSError, KeyError, TypeError, ValueError):
            return []  # replaced by a newer one meanwhile, or not for us to judge

    def status(self) -> dict[str, Any]:
        saved = checkpoints(self.folder / "checkpoints")
        durable = int(saved[-1].name.split("-")[0]) if saved else 0
        bad = self._watch.get("bad", 0)
        (before, began), (samples, now) = (*self._speeds, (0, 0.0), (0, 0.0))[:2]
        silent = self._silent()
        # Lines come farther and farther apart. One that is silent for much longer than between its last two has ended.
        lives = silent is not None and silent < PATIENCE + 3 * (now - began)
        speed = (samples - before) / (now - began) if lives and now > began else None
        return {
            "samples": max(self._samples, durable),
            "durable": durable,
            "watch": "suspicious" if bad else "healthy",
            "bad": bad,
            "diverged": False,
            "speed": None if speed is None else round(speed, 1),
            "silent": silent,
        }

    def _silent(self) -> int | None:
        """The seconds since the newest line of metrics; None if there is none yet."""
        try:
            about = self._metrics.path.stat()
        except OSError:
            return None
        return max(0, round(time.time() - about.st_mtime)) if about.st_size else None


def recent_rows(entries: dict[str, Any], columns: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest rows in a checkpoint of a run on numbers, like lines of predictions."""
    recent, targets = entries["score"].get("recent"), columns.get("targets", [])
    if not isinstance(recent, np.ndarray):
        return []
    last, rows = entries["samples"], []
    for number, row in enumerate(recent, last - len(recent) + 1):
        values, predicted, deviation = np.moveaxis(row, -1, 0)
        errors = ((values - predicted) / deviation)[~np.isnan(values - predicted)]
        named = [dict(zip(targets, _plain(part), strict=False)) for part in (values, predicted)]
        surprise = float(np.sqrt(np.mean(errors**2))) if len(errors) else None
        rows.append({"sample": number, "target": named[0], "prediction": named[1], "surprise": surprise})
    return rows


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values.tolist()]
