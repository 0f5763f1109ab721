"""What is run: every method on every stream, by the code behind `norewind train`, one record each."""

import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fetch import BIBLE, ELECTRICITY, HEART, Item

from norewind.files import write_atomically
from norewind.training.settings import Settings

METHODS = ("uoro", "uoro:memory=16", "bptt:16", "rtrl")
RATES = (1e-3, 1e-2)
LINES = 50  # points of a learning curve


class Stream(NamedTuple):
    """A stream, the settings that all its runs share, and how the report calls it."""

    name: str
    title: str
    unit: str
    item: Item
    settings: Settings
    methods: tuple[str, ...] = METHODS
    season: int = 1  # rows after which a series comes back to where it was, roughly
    drawn: tuple[str, ...] = ("counts, order 0", "counts, order 2")  # the baselines in the figure


BITS, ERROR = "bits per character", "squared error, in variances"
TEXT = Settings(format="text", alphabet_size=80)
STREAMS = (
    Stream(
        "electricity",
        "electricity demand of Victoria, hourly, 6 hours ahead, GRU-16",
        ERROR,
        ELECTRICITY,
        Settings(inputs=("y",), horizon=6, hidden=16, samples=3_594),
        season=24,
        drawn=("running mean", "24 rows before", "linear, 24 lags"),
    ),
    Stream(
        "heart",
        "pulse at a finger, 100 Hz, 0.1 seconds ahead, GRU-16",
        ERROR,
        HEART,
        Settings(inputs=("hr",), horizon=10, hidden=16, samples=30_000),
        season=64,
        drawn=("running mean", "linear, 64 lags"),
    ),
    Stream("text-16", "King James Bible, GRU-16", BITS, BIBLE, replace(TEXT, hidden=16, samples=5e4)),
    # RTRL would take weeks at this size.
    Stream("text-64", "King James Bible, GRU-64", BITS, BIBLE, replace(TEXT, hidden=64, samples=2e5), METHODS[:3]),
)


def plan(stream: Stream, seed: int, samples: float | None) -> list[Settings]:
    """The settings of all runs on a stream with a seed."""
    shared = stream.settings
    total = int(min(shared.samples or 0, samples or float("inf")))
    shared = replace(shared, samples=float(total), metrics_every=max(1, total // LINES), seed=seed)
    return [replace(shared, method=method, rate=rate) for rate in RATES for method in stream.methods]


def record_of(source: Path, settings: Settings) -> dict[str, Any]:
    """Train, and return what is worth keeping: settings, versions, durations and the learning curve."""
    import jax

    import norewind
    from norewind.training.logs import read_log
    from norewind.training.session import METRICS, begin, run_training

    began, cpu = time.perf_counter(), time.process_time()
    diverged = None
    with TemporaryDirectory() as folder:
        # Without the watch, a run that has lost what it knew is not stopped, and its number shows it.
        here = replace(settings, source=str(source), checkpoint_every=10**9, checkpoint_seconds=1e9, watch=False)
        begin(Path(folder), here)
        try:
            run_training(Path(folder), here, quiet=True)
        except norewind.NonFiniteError as error:
            diverged = str(error)
        lines = read_log(Path(folder) / METRICS)
    jax.clear_caches()  # the next run compiles its own
    return {
        "settings": settings.as_json(),
        "norewind": norewind.__version__,
        "jax": jax.__version__,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "diverged": diverged,
        "mean": lines[-1]["mean"],
        "curve": [[line["samples"], line["loss"]] for line in lines],
    }


def run_one(source: Path, settings: Settings, path: Path) -> dict[str, Any]:
    """The record of a run: the one that is there, or a new one, kept for the next time."""
    record = record_in(path, settings)
    if record is None:
        record = record_of(source, settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record).encode() + b"\n")
    return record


def record_in(path: Path, settings: Settings) -> dict[str, Any] | None:
    """The record in a file, if there is one of the same settings."""
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    return record if record["settings"] == json.loads(json.dumps(settings.as_json())) else None


def name_of(settings: Settings) -> str:
    """What tells the runs on a stream apart, as part of a file's name."""
    return f"{settings.method.replace(':', '-')}_rate={settings.rate:g}_seed={settings.seed}"
