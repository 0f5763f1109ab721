"""The numbers of the service in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter
from typing import Any

BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PATHS = ("/", "/events", "/health", "/learn", "/login", "/metrics", "/page.css", "/page.js", "/predict", "/stream")
GAUGES = {
    "samples": "Samples learned from.",
    "durable": "Samples in the newest checkpoint.",
    "queue": "Rows that wait to be learned from.",
    "waiting": "Rows that wait for their labels.",
    "predicted": "Rows predicted since the service started.",
    "diverged": "1 if the run has diverged.",
}
MEASURED = {
    "loss": "Mean loss since the line of metrics before the newest.",
    "baseline": "The loss of a trivial forecast over the same samples.",
    "carry": "The norm of what the method carries.",
}


class Requests:
    """Requests by path and status, and how long predictions took."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.buckets, self.sum = [0] * (len(BOUNDS) + 1), 0.0

    def add(self, path: str, status: int, seconds: float) -> None:
        self.counts[path if path in PATHS else "other", status] += 1
        if path == "/predict" and status == 200:
            self.buckets[bisect_left(BOUNDS, seconds)] += 1
            self.sum += seconds

    def text(self, status: dict[str, Any], line: dict[str, Any]) -> str:
        lines = _family("requests_total", "counter", "Requests by path and status.")
        lines += [
            f'norewind_requests_total{{path="{path}",status="{code}"}} {count}'
            for (path, code), count in sorted(self.counts.items())
        ]
        lines += _family("predict_seconds", "histogram", "How long predictions took.")
        total = 0
        for bound, count in zip([*BOUNDS, "+Inf"], self.buckets, strict=True):
            total += count
            lines.append(f'norewind_predict_seconds_bucket{{le="{bound}"}} {total}')
        lines += [f"norewind_predict_seconds_sum {self.sum}", f"norewind_predict_seconds_count {total}"]
        for entries, words in ((status, GAUGES), (line, MEASURED)):
            for name, help in words.items():
                if entries.get(name) is not None:
                    lines += [*_family(name, "gauge", help), f"norewind_{name} {float(entries[name])}"]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP norewind_{name} {help}", f"# TYPE norewind_{name} {kind}"]
