"""The service's numbers in the Prometheus text format."""

from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import Any

from norewind.scoring.metrics import METRICS_ENTRIES

BUCKET_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
URL_PATHS = (
    "/",
    "/events",
    "/forecast",
    "/health",
    "/learn",
    "/login",
    "/metrics",
    "/page.css",
    "/page.js",
    "/predict",
    "/stream",
)
GAUGES = {name: entry.meaning for name, entry in METRICS_ENTRIES.items()} | {
    "durable": "Samples in the latest checkpoint.",
    "queue": "Rows waiting to be learned from.",
    "waiting": "Rows waiting for their labels.",
    "predicted": "Rows predicted since the service started.",
    "diverged": "1 if the run has diverged.",
}


class RequestCounts:
    """Counts of requests by path and status, and a histogram of prediction times."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.buckets, self.sum = [0] * (len(BUCKET_SECONDS) + 1), 0.0

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request.

        Args:
            path: the path of the URL; unknown paths are counted together.
            status: the status of the response.
            seconds: how long it took.
        """
        self.counts[f'{{path="{path if path in URL_PATHS else "other"}",status="{status}"}}'] += 1
        if path == "/predict" and status == 200:
            self.buckets[bisect_left(BUCKET_SECONDS, seconds)] += 1
            self.sum += seconds

    def text(self, gauges: dict[str, Any]) -> str:
        """Format all numbers as text.

        Args:
            gauges: values by name; those listed in `GAUGES` are included where known.
        """
        lines = _family("requests_total", "counter", "Requests by path and status.", self.counts)
        buckets = zip([*BUCKET_SECONDS, "+Inf"], accumulate(self.buckets), strict=True)
        histogram = {f'_bucket{{le="{bound}"}}': count for bound, count in buckets}
        histogram |= {"_sum": self.sum, "_count": sum(self.buckets)}
        lines += _family("predict_seconds", "histogram", "Time of predictions.", histogram)
        for name, help in GAUGES.items():
            if gauges.get(name) is not None:
                lines += _family(name, "gauge", help, {"": float(gauges[name])})
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help: str, values: dict[str, Any]) -> list[str]:
    lines = [f"norewind_{name}{label} {value}" for label, value in values.items()]
    return [f"# HELP norewind_{name} {help}", f"# TYPE norewind_{name} {kind}", *lines]
