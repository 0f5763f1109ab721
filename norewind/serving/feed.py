"""What the page shows of a run, and everyone who looks at it."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from norewind.runs.folder import COLUMNS, METRICS, read_log, settings_of
from norewind.runs.metrics import CARRY_LIMIT, PATIENCE
from norewind.runs.settings import Settings
from norewind.runs.train import unit_of
from norewind.serving.refusals import busy

RECENT = 200
MOST_LINES = 1_000
MOST_KEYS = 10_000
SHOWN_KEYS = 12
TICK = 0.5
MOST_VIEWERS = 32
SLOW = 16
"""Ticks that may wait for one viewer; one that is slower has to connect again."""
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
    """Lines of metrics, the newest rows, and surprise by key; told to viewers twice a second.

    `status()` says how the run is now. `look()` is called before every tick, in a thread, and
    returns what is new.
    """

    def __init__(self, about: dict[str, Any], lines: list[dict[str, Any]]):
        self.about = about
        self.metrics: list[dict[str, Any]] = []
        self.rows: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.keys: dict[str, list] = {}
        self.status: Callable[[], dict[str, Any]] = dict
        self.look: Callable[[], tuple[bool, list, list]] | None = None
        self._new_lines, self._new_rows = [], deque(maxlen=RECENT)
        self._viewers: set[asyncio.Queue] = set()
        self._rates: deque[tuple[float, dict]] = deque(maxlen=int(5 / TICK))
        self.restart(lines)

    @classmethod
    def of_folder(cls, folder: Path) -> "Feed":
        return cls(about(folder), read_log(folder / METRICS))

    def restart(self, lines: list[dict[str, Any]]) -> None:
        """Begin again with these lines of metrics."""
        self.metrics.clear()
        self.rows.clear()
        self.keys.clear()
        for line in lines:
            self.add_metrics(line)
        self._new_lines, self._new_rows = [], deque(maxlen=RECENT)
        self._tell("start", self.whole())

    def apply(self, found: tuple[bool, list, list]) -> None:
        """Whether everything begins again, new lines of metrics, and new rows."""
        begins, lines, rows = found
        if begins:
            self.restart(lines)
        else:
            for line in lines:
                self.add_metrics(line)
        self.add_rows(rows)

    def add_metrics(self, line: dict[str, Any]) -> None:
        line = {name: line[name] for name in ENTRIES if line.get(name) is not None}
        self.metrics.append(line)
        self._new_lines.append(line)
        if len(self.metrics) > MOST_LINES:
            del self.metrics[: MOST_LINES // 2 : 2]  # the older half in less detail

    def add_rows(self, entries: list[dict[str, Any]]) -> None:
        """Predictions as they are written down."""
        self.rows.extend(entries)
        self._new_rows.extend(entries)
        for entry in entries:
            key, surprise = entry.get("key"), entry.get("surprise")
            if key is not None and surprise is not None:
                self._add_key(str(key), surprise)

    def _add_key(self, key: str, surprise: float) -> None:
        mean, rows, _ = self.keys.pop(key, None) or [surprise, 0, 0]
        # At the end of the dictionary: the key that was silent for longest is forgotten first.
        self.keys[key] = [mean + WEIGHT * (surprise - mean), rows + 1, surprise]
        if len(self.keys) > MOST_KEYS:
            del self.keys[next(iter(self.keys))]

    def top_keys(self) -> list[dict[str, Any]]:
        """The keys with the highest mean surprise."""
        best = sorted(self.keys.items(), key=lambda item: -item[1][0])[:SHOWN_KEYS]
        return [{"key": key, "mean": round(mean, 4), "rows": rows, "last": last} for key, (mean, rows, last) in best]

    def present(self) -> dict[str, Any]:
        """How the run is now, with rates per second over the last seconds."""
        now, status = time.monotonic(), self.status()
        self._rates.append((now, status))
        before, old = self._rates[0]
        seconds = now - before
        rates = {
            f"{name}_rate": round((status[name] - old[name]) / seconds, 1)
            for name in ("samples", "predicted")
            if name in status and name in old and seconds > TICK / 2
        }
        return {**status, **rates, "keys": self.top_keys()}

    def whole(self) -> dict[str, Any]:
        return {"about": self.about, "metrics": self.metrics, "rows": list(self.rows), "status": self.present()}

    async def run(self) -> None:
        """Tell viewers what is new, until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            if self.look:
                self.apply(await asyncio.to_thread(self.look))
            lines, self._new_lines = self._new_lines, []
            rows, self._new_rows = list(self._new_rows), deque(maxlen=RECENT)
            self._tell("tick", {"metrics": lines, "rows": rows, "status": self.present()})

    def _tell(self, event: str, content: dict[str, Any]) -> None:
        if not self._viewers:
            return
        message = event_text(event, content)
        for queue in list(self._viewers):
            if queue.full():
                self._send_away(queue)
            else:
                queue.put_nowait(message)

    def _send_away(self, queue: asyncio.Queue) -> None:
        self._viewers.discard(queue)
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(None)

    def join(self) -> asyncio.Queue:
        """The messages for one more viewer; None ends them."""
        if len(self._viewers) >= MOST_VIEWERS:
            raise busy(f"{MOST_VIEWERS} pages are open")
        queue: asyncio.Queue = asyncio.Queue(SLOW)
        queue.put_nowait(event_text("start", self.whole()))
        self._viewers.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue) -> None:
        self._viewers.discard(queue)

    def end(self) -> None:
        """Send all viewers away."""
        for queue in list(self._viewers):
            self._send_away(queue)


def event_text(event: str, content: dict[str, Any]) -> bytes:
    """A server-sent event. JSON has no line breaks of its own."""
    return f"event: {event}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


def about(folder: Path) -> dict[str, Any]:
    """What does not change about a run."""
    settings = settings_of(folder)
    return {
        "name": folder.resolve().name,
        "kind": settings.kind,
        "loss": settings.loss,
        "unit": unit_of(settings),
        "method": settings.method,
        "model": model_words(settings),
        "source": settings.source,
        "columns": _columns(folder / COLUMNS),
        "patience": PATIENCE,
        "carry_limit": CARRY_LIMIT,
        "watches": settings.watch,
    }


def _columns(path: Path) -> dict[str, Any] | None:
    """What a run uses of its table; None of a run on symbols, or if somebody else has written there."""
    try:
        return msgspec.to_builtins(msgspec.json.decode(path.read_bytes(), type=Columns))
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def model_words(settings: Settings) -> str:
    if settings.method == "auto":
        return "auto"
    layers = f"{settings.layers} × " if settings.layers > 1 else ""
    return f"{layers}{settings.cell}-{settings.hidden}, {settings.method}"
