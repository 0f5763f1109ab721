"""The content of the live page, for a run that this process or another one trains."""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np

from norewind.scoring.divergence import CARRY_LIMIT
from norewind.scoring.metrics import METRICS_ENTRIES, TILES
from norewind.storage.checkpoint import CheckpointError, checkpoints, read, samples_of
from norewind.training.checkpoint_schema import check_entries
from norewind.training.folder import CHECKPOINTS, COLUMNS, read_settings
from norewind.training.log import METRICS, PREDICTIONS, LogTail
from norewind.training.open_stream import loss_description
from norewind.wording import seven_digits

SHOWN_ROWS = 200
MAX_METRICS = 1_000
MAX_KEYS = 10_000
SHOWN_KEYS = 12
TICK_SECONDS = 0.5
# The weight of the latest row in the mean surprise of a key.
LATEST_WEIGHT = 0.1
# Larger checkpoints are not read for their latest rows (in bytes).
MAX_CHECKPOINT_READ = 50_000_000
# After this time without a line of metrics, the speed of a run is no longer shown (in seconds).
SILENT_SECONDS = 15

Entry = dict[str, Any]


class Columns(TypedDict):
    """The part of columns.json that the page uses."""

    targets: list[str]
    steps: list[int]


def about(folder: Path) -> Entry:
    """Return the fixed facts about the run in a folder: its name, model, source and columns."""
    settings = read_settings(folder)
    loss = loss_description(settings)
    layers = f"{settings.layers} × " if settings.layers > 1 else ""
    model = f"{layers}{settings.cell}-{settings.hidden}, {settings.method}"
    try:
        columns = msgspec.json.decode((folder / COLUMNS).read_bytes(), type=Columns)
    except (OSError, msgspec.DecodeError, RecursionError):
        columns = None  # a run on symbols has no such file, and another program may have changed it
    return {
        **{name: getattr(settings, name) for name in ("kind", "has_rows", "loss", "source")},
        "name": folder.resolve().name,
        "unit": loss.unit,
        "simple": loss.simple_forecasts,
        "tiles": TILES,
        "model": "auto" if settings.method == "auto" else model,
        "columns": columns,
        "carry_limit": CARRY_LIMIT,
        "stop_if_diverged": settings.stop_if_diverged,
    }


class PageContent:
    """The lines of metrics, the latest rows, and the surprise of every key, for any number of viewers.

    Args:
        about: the fixed facts about the run (see `about`).
        lines: the lines of metrics so far.
        status: returns the current state of the run, as JSON.
    """

    def __init__(self, about: Entry, lines: Iterable[Entry] = (), status: Callable[[], Entry] = dict):
        self.about, self.status = about, status
        self.metrics: list[Entry] = []
        self.rows: deque[Entry] = deque(maxlen=SHOWN_ROWS)
        self.keys: dict[str, tuple[float, int, float]] = {}
        self.viewers, self.ended = 0, False
        self._restarts = self._lines_added = self._rows_added = 0
        for line in lines:
            self.add_metrics(line)

    def add_metrics(self, line: Entry) -> None:
        """Add a line of metrics.

        Args:
            line: its entries by name, as in metrics.jsonl.
        """
        shown = (*METRICS_ENTRIES, "time", "weights", "drift")
        self.metrics.append({name: line[name] for name in shown if line.get(name) is not None})
        self._lines_added += 1
        if len(self.metrics) > MAX_METRICS:
            del self.metrics[: MAX_METRICS // 2 : 2]  # thin out the older half

    def add_rows(self, entries: list[Entry]) -> None:
        """Add rows with their predictions.

        Args:
            entries: rows as in predictions.jsonl.
        """
        self.rows.extend(entries)
        self._rows_added += len(entries)
        for entry in entries:
            surprise = entry.get("surprise")
            if entry.get("key") is None or surprise is None:
                continue
            key = str(entry["key"])
            mean, rows, _ = self.keys.pop(key, (surprise, 0, 0))
            # Moved to the end of the dictionary, so that the key without rows for longest is dropped first.
            self.keys[key] = mean + LATEST_WEIGHT * (surprise - mean), rows + 1, surprise
            if len(self.keys) > MAX_KEYS:
                del self.keys[next(iter(self.keys))]

    def restart(self) -> None:
        """Clear everything, because the logs of the run were restarted."""
        self.metrics.clear()
        self.rows.clear()
        self.keys.clear()
        self._restarts += 1

    def snapshot(self) -> Entry:
        """Return the status of the run, and the keys with the highest mean surprise."""
        best = heapq.nlargest(SHOWN_KEYS, self.keys.items(), key=lambda item: item[1][0])
        keys = [{"key": key, "mean": round(mean, 4), "rows": rows, "last": last} for key, (mean, rows, last) in best]
        return {**self.status(), "keys": keys}

    def next_event(self, sent: tuple[int, int, int] | None) -> tuple[tuple[int, int, int], str, Entry]:
        """Return the next event for a viewer.

        Args:
            sent: the first part of the previous result for this viewer; None at first.

        Returns:
            A marker of what the viewer has received including this event, the name of the event, and its content.
        """
        now = self._restarts, self._lines_added, self._rows_added
        starts = sent is None or sent[0] != now[0]
        _, lines, rows = (0, 0, 0) if sent is None or starts else sent
        content = {
            "metrics": self.metrics[max(0, len(self.metrics) - (now[1] - lines)) :],
            "rows": list(self.rows)[max(0, len(self.rows) - (now[2] - rows)) :],
            "status": self.snapshot(),
        }
        return now, "start" if starts else "tick", {"about": self.about, **content} if starts else content

    def end(self) -> None:
        """Disconnect all viewers."""
        self.ended = True

    async def run(self) -> None:
        """Keep the page up to date until cancelled. Does nothing here: the service adds lines and rows."""


class FolderContent(PageContent):
    """The page of a run folder in which another process trains. The folder is not changed.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path):
        super().__init__(about(folder), status=self.folder_status)
        self.folder = folder
        self._metrics = LogTail(folder / METRICS)
        self._predictions = LogTail(folder / PREDICTIONS, SHOWN_ROWS)
        self._checkpoint: Path | None = None
        self._bad = 0
        self.apply(*self.look())

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.apply(*await asyncio.to_thread(self.look))

    def look(self) -> tuple[bool, list[Entry], list[Entry]]:
        """Return whether a log was truncated, the new lines of metrics, and the new rows."""
        restarts, lines = self._metrics.new()
        cut, rows = self._predictions.new()
        saved = checkpoints(self.folder / CHECKPOINTS)
        if saved and saved[-1] != self._checkpoint:
            self._checkpoint = saved[-1]  # even if it cannot be read: it is tried only once
            latest = self._rows_in(saved[-1])
            rows = rows if self._predictions.path.exists() else latest
        return restarts or cut, lines, rows

    def apply(self, restarts: bool, lines: list[Entry], rows: list[Entry]) -> None:
        """Add the result of `look` to the page.

        Args:
            restarts: whether a log was truncated.
            lines: the new lines of metrics.
            rows: the new rows.
        """
        if restarts:
            self.restart()
        for line in lines:
            self.add_metrics(line)
        self.add_rows(rows)

    def _rows_in(self, checkpoint: Path) -> list[Entry]:
        """Return the latest rows in a checkpoint."""
        try:
            if checkpoint.stat().st_size > MAX_CHECKPOINT_READ:
                return []
            _, entries = read(checkpoint)
            check_entries(checkpoint, entries)
            self._bad = entries["divergence"].get("bad", 0)
            return recent_rows(entries, self.about["columns"] or {})
        except (CheckpointError, OSError, KeyError, TypeError, ValueError):
            return []  # it was replaced by a newer one, or written by another program

    def folder_status(self) -> Entry:
        """Return the current state of the run, from its folder."""
        saved = checkpoints(self.folder / CHECKPOINTS)
        durable = samples_of(saved[-1]) if saved else 0
        latest = [(line.get("samples", 0), line.get("seconds", 0.0)) for line in self.metrics[-2:]]
        (before, began), (samples, now) = [(0, 0.0), (0, 0.0), *latest][-2:]
        silent = None  # the seconds since the latest line of metrics
        with suppress(OSError):  # there is no line yet
            log = self._metrics.path.stat()
            silent = max(0, round(time.time() - log.st_mtime)) if log.st_size else None
        # The intervals between lines grow. A run that is silent for much longer than the last interval has ended.
        lives = silent is not None and silent < SILENT_SECONDS + 3 * (now - began)
        return {
            "samples": max(samples, durable),
            "durable": durable,
            "divergence": "suspicious" if self._bad else "healthy",
            "speed": round((samples - before) / (now - began), 1) if lives and now > began else None,
            "silent": silent,
        }


def recent_rows(entries: Entry, columns: Entry) -> list[Entry]:
    """Return the latest rows in a checkpoint, like lines of predictions.

    Args:
        entries: the entries of the checkpoint.
        columns: the content of columns.json; empty if there is none.

    Returns:
        The rows, oldest first; none for a run on symbols.
    """
    recent, targets = entries["score"].get("recent"), columns.get("targets", [])
    rows = []
    if isinstance(recent, np.ndarray):
        for number, row in enumerate(recent, entries["samples"] - len(recent) + 1):
            values, predicted, deviation = np.moveaxis(row, -1, 0)
            errors = ((values - predicted) / deviation)[~np.isnan(values - predicted)]
            entry: Entry = {"sample": number}
            for name, part in (("target", values), ("prediction", predicted)):
                entry[name] = dict(zip(targets, map(seven_digits, part.tolist()), strict=False))
            entry["surprise"] = float(np.sqrt(np.mean(errors**2))) if len(errors) else None
            rows.append(entry)
    return rows
