"""What the page shows of a run."""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from norewind.runs.folder import COLUMNS, settings_of
from norewind.runs.metrics import CARRY_LIMIT, PATIENCE
from norewind.runs.train import unit_of

RECENT = 200
MOST_LINES = 1_000
MOST_KEYS = 10_000
SHOWN_KEYS = 12
TICK = 0.5
WEIGHT = 0.1
"""Of the newest row, in the mean surprise of a key."""
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
        "name": folder.resolve().name,
        "kind": settings.kind,
        "loss": settings.loss,
        "unit": unit_of(settings),
        "method": settings.method,
        "model": "auto" if settings.method == "auto" else model,
        "source": settings.source,
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
