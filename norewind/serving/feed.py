"""What the page shows of a run: one that this process trains, or a folder in which another process does."""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from norewind.checkpoint import CheckpointError, checkpoints, read
from norewind.runs.entries import check_entries
from norewind.runs.folder import COLUMNS, METRICS, PREDICTIONS, as_entry, settings_of
from norewind.runs.metrics import CARRY_LIMIT, PATIENCE, seven_digits
from norewind.runs.train import unit_of

RECENT = 200
MOST_LINES = 1_000
MOST_KEYS = 10_000
SHOWN_KEYS = 12
TICK = 0.5
# Of the newest row, in the mean surprise of a key.
WEIGHT = 0.1
# Bytes of a checkpoint that is still read for its newest rows.
LARGEST = 50_000_000
# Seconds without a line of metrics after which the speed of a run is no longer shown.
SILENT = 15
# Bytes of a log that are read at most in one go; of a longer one, the end.
AT_ONCE = 4_000_000
ENTRIES = ("samples", "loss", "mean", "baseline", "persistence", "seasonal", "period", "carry", "accuracy", "majority")


class Columns(msgspec.Struct):
    """What `train` notes in columns.json."""

    inputs: list[str]
    targets: list[str]
    steps: list[int]
    ignored: dict[str, str]


class Feed:
    """Lines of metrics, the newest rows, and surprise by key.

    Args:
        about: what does not change about the run (see `about`).
        lines: the lines of metrics so far.
        status: says how the run is now.
        look: called before every tick, in a thread; returns what is new, for `apply`.
    """

    def __init__(
        self,
        about: dict[str, Any],
        lines: list[dict[str, Any]],
        status: Callable[[], dict[str, Any]] = dict,
        look: Callable[[], tuple[bool, list, list]] | None = None,
    ):
        self.about, self.status, self.look = about, status, look
        self.metrics: list[dict[str, Any]] = []
        self.rows: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.keys: dict[str, tuple[float, int, float]] = {}
        self.viewers, self.ended = 0, False
        self._restarts = self._lines_added = self._rows_added = 0
        self._now: dict[str, Any] = {}
        self._history: deque[tuple[float, dict]] = deque(maxlen=int(5 / TICK))
        self.apply((True, lines, []))

    def apply(self, found: tuple[bool, list, list]) -> None:
        """Add what `look` found: whether everything starts again, new lines of metrics, and new rows."""
        restarts, lines, rows = found
        if restarts:
            self.metrics.clear()
            self.rows.clear()
            self.keys.clear()
            self._restarts += 1
        for line in lines:
            self.add_metrics(line)
        self.add_rows(rows)

    def add_metrics(self, line: dict[str, Any]) -> None:
        self.metrics.append({name: line[name] for name in ENTRIES if line.get(name) is not None})
        self._lines_added += 1
        if len(self.metrics) > MOST_LINES:
            del self.metrics[: MOST_LINES // 2 : 2]  # the older half in less detail

    def add_rows(self, entries: list[dict[str, Any]]) -> None:
        """Add predictions as they are written down."""
        self.rows.extend(entries)
        self._rows_added += len(entries)
        for entry in entries:
            surprise = entry.get("surprise")
            if entry.get("key") is None or surprise is None:
                continue
            key = str(entry["key"])
            mean, rows, _ = self.keys.pop(key, (surprise, 0, 0))
            # At the end of the dictionary: the key that was silent for longest is forgotten first.
            self.keys[key] = mean + WEIGHT * (surprise - mean), rows + 1, surprise
            if len(self.keys) > MOST_KEYS:
                del self.keys[next(iter(self.keys))]

    def top_keys(self) -> list[dict[str, Any]]:
        """The keys with the highest mean surprise."""
        best = heapq.nlargest(SHOWN_KEYS, self.keys.items(), key=lambda item: item[1][0])
        return [{"key": key, "mean": round(mean, 4), "rows": rows, "last": last} for key, (mean, rows, last) in best]

    def present(self) -> dict[str, Any]:
        """How the run is now, with rates per second over the last seconds."""
        now, status = time.monotonic(), self.status()
        before, old = self._history[0] if self._history else (now, {})
        rates = {
            f"{name}_rate": round((status[name] - old[name]) / (now - before), 1)
            for name in ("samples", "predicted")
            if name in status and name in old and now - before > TICK / 2
        }
        return {**status, **rates, "keys": self.top_keys()}

    def whole(self) -> dict[str, Any]:
        self._now = self.present()
        return {"about": self.about, "metrics": self.metrics, "rows": list(self.rows), "status": self._now}

    def news(self, told: tuple[int, int, int] | None) -> tuple[tuple[int, int, int], str, dict[str, Any]]:
        """What a viewer is to be told next.

        Args:
            told: what this returned first when the viewer was told last; None at first.

        Returns:
            What is told then, the name of the event, and its content.
        """
        now = self._restarts, self._lines_added, self._rows_added
        if told is None or told[0] != now[0]:
            return now, "start", self.whole()
        lines, rows = len(self.metrics) - (now[1] - told[1]), len(self.rows) - (now[2] - told[2])
        new = {"metrics": self.metrics[max(0, lines) :], "rows": list(self.rows)[max(0, rows) :]}
        return now, "tick", {**new, "status": self._now}

    def end(self) -> None:
        """Let viewers go."""
        self.ended = True

    async def run(self) -> None:
        """Keep up with the run, until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            if self.look:
                self.apply(await asyncio.to_thread(self.look))
            self._history.append((time.monotonic(), self.status()))
            self._now = self.present()


def about(folder: Path) -> dict[str, Any]:
    """What does not change about a run."""
    settings = settings_of(folder)
    layers = f"{settings.layers} × " if settings.layers > 1 else ""
    model = f"{layers}{settings.cell}-{settings.hidden}, {settings.method}"
    return {
        **{name: getattr(settings, name) for name in ("kind", "loss", "method", "source")},
        "name": folder.resolve().name,
        "unit": unit_of(settings),
        "model": "auto" if settings.method == "auto" else model,
        "columns": _columns(folder / COLUMNS),
        "patience": PATIENCE,
        "carry_limit": CARRY_LIMIT,
        "watches": settings.watch,
    }


def _columns(path: Path) -> dict[str, Any] | None:
    """What a run uses of its table; None for a run on symbols, or if somebody else has written to the file."""
    try:
        return msgspec.to_builtins(msgspec.json.decode(path.read_bytes(), type=Columns))
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


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
        with suppress(OSError):  # there is no line yet
            log = self._metrics.path.stat()
            silent = max(0, round(time.time() - log.st_mtime)) if log.st_size else None
        # Lines come farther and farther apart. A run that is silent for much longer than between two has ended.
        lives = silent is not None and silent < SILENT + 3 * (now - began)
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
