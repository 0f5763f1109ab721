"""What is run: every method on every stream."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fetch import BIBLE, ELECTRICITY, HEART, Item

from norewind.runs.settings import Settings

METHODS = ("uoro", "uoro:window=16", "bptt:16", "sliding_bptt:16", "rtrl")
RATES = (1e-3, 1e-2)
POINTS = 50  # of a learning curve


class Stream(NamedTuple):
    """A stream, the settings that all its runs share, and how the report names it."""

    name: str
    title: str
    item: Item
    settings: Settings
    methods: tuple[str, ...] = METHODS
    season: int = 1  # rows after which a series comes back to roughly where it was
    drawn: tuple[str, ...] = ("counts, order 0", "counts, order 2")  # the baselines in the figure

    @property
    def unit(self) -> str:
        return "bits" if self.settings.format == "text" else "squared error, in variances"


# Without the watch, a run that has lost what it knew is not stopped, and its number shows it.
SHARED = Settings(alpha=0.03, watch=False)
TEXT = replace(SHARED, format="text", alphabet_size=80)
STREAMS = (
    Stream(
        "electricity",
        "electricity demand of Victoria, hourly, 6 hours ahead, GRU-16",
        ELECTRICITY,
        replace(SHARED, inputs=("y",), horizon=6, hidden=16, samples=3_594),
        season=24,
        drawn=("running mean", "24 rows before", "linear, 24 lags"),
    ),
    Stream(
        "heart",
        "a person's pulse, 100 Hz, 0.1 seconds ahead, GRU-16",
        HEART,
        replace(SHARED, inputs=("hr",), horizon=10, hidden=16, samples=30_000),
        season=64,
        drawn=("running mean", "linear, 64 lags"),
    ),
    Stream("text-16", "King James Bible, GRU-16", BIBLE, replace(TEXT, hidden=16, samples=5e4)),
    # Without the two methods that would take too long at this size.
    Stream("text-64", "King James Bible, GRU-64", BIBLE, replace(TEXT, hidden=64, samples=2e5), METHODS[:3]),
)


def plan(cache: Path, seeds: int = 3, samples: float | None = None) -> dict[str, Settings]:
    """All runs by name, seed by seed, so that an interrupted study is a complete one with fewer seeds."""
    return {name: run for seed in range(seeds) for stream in STREAMS for name, run in _of(stream, cache, seed, samples)}


def _of(stream: Stream, cache: Path, seed: int, samples: float | None):
    shared = stream.settings
    total = int(min(shared.samples or 0, samples or float("inf")))
    source = str(cache / stream.item.file)
    shared = replace(shared, source=source, samples=total, metrics_every=max(1, total // POINTS), seed=seed)
    for rate in RATES:
        for method in stream.methods:
            name = f"{stream.name}_{method.replace(':', '-')}_rate={rate:g}_seed={seed}"
            yield name, replace(shared, method=method, rate=rate)
