"""The plan of the study: every method on every stream, with equal numbers of tries; and the default with many seeds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from examples.real_data import disturb, fetch
from norewind.sweeps.record import Record
from norewind.training.settings import Settings

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SEEDS = 3
MANY_SEEDS = 20
SHORT = 20_000  # samples of a run among those with many seeds
POINTS = 50  # of a learning curve
WINDOW = 16  # the longest of any method


class Stream(NamedTuple):
    """A stream, its title in the report, and the settings that all its runs share."""

    name: str
    title: str
    item: fetch.Item
    settings: Settings
    seasons: tuple[int, ...] = ()  # the approximate periods of a series, in rows

    @property
    def is_text(self) -> bool:
        return self.settings.format == "bytes"

    @property
    def unit(self) -> str:
        return "bits a character" if self.is_text else "squared error, in variances"


class Kind(NamedTuple):
    """A method with its cell.

    Attributes:
        name: the name in the report, with a placeholder for the number of hidden units.
        method: the method.
        cell: the cell.
        of_texts: the number of hidden units on texts: as many as fit in auto's time per sample.
        of_series: the number of hidden units on series, likewise.
    """

    name: str
    method: str
    cell: str
    of_texts: int
    of_series: int


KINDS = (
    Kind("uoro:window=16, GRU-{}", "uoro:window=16", "gru", 128, 192),
    Kind("bptt:16, GRU-{}", "bptt:16", "gru", 192, 256),
    Kind("snap1, GRU-{}", "snap1", "gru", 64, 128),
    Kind("snap1, LRU-{} (exact)", "snap1", "lru", 64, 256),
    Kind("rtrl, GRU-{}", "rtrl", "gru", 10, 24),
)


def _text(samples: int) -> Settings:
    return Settings(format="bytes", samples=samples)


def _series(samples: int, horizon: int, *columns: str) -> Settings:
    return Settings(format="csv", samples=samples, only_steps=(horizon,), inputs=columns)


# Whole windows, so that every method is scored on the same samples.
STREAMS = (
    Stream("bible", "King James Bible", fetch.BIBLE, _text(200_000)),
    Stream("german", "German messages of a program", fetch.GERMAN, _text(171_008)),
    Stream("code", "Python source code", fetch.CODE, _text(200_000)),
    Stream(
        "electricity", "electricity demand, hourly, 6 hours ahead", fetch.ELECTRICITY, _series(3_600, 6, "y"), (24, 168)
    ),
    Stream("water", "flow of water, hourly, 6 hours ahead", fetch.WATER, _series(1_264, 6, "flow"), (24, 168)),
    Stream(
        "weather",
        "weather, five columns, hourly, 6 hours ahead",
        fetch.WEATHER,
        _series(8_704, 6, "temp", "dewp", "humid", "wind_speed", "pressure"),
        (24, 168),
    ),
    Stream("pulse", "pulse, 100 Hz, 0.1 s ahead", fetch.PULSE, _series(30_000, 10, "hr"), (64,)),
    Stream("sensors", "two pulses, one after the other", fetch.SENSORS, _series(30_000, 10, "pulse"), (64,)),
)


def settings_of(stream: Stream, cache: Path, samples: float | None = None) -> Settings:
    """The settings that all runs on a stream share.

    Args:
        stream: the stream.
        cache: the folder of downloaded data.
        samples: at most this many samples.
    """
    total = int(min(stream.settings.samples or 0, samples or float("inf"))) // WINDOW * WINDOW
    source = str(cache / stream.item.file)
    return replace(stream.settings, source=source, samples=total, metrics_every=max(1, total // POINTS))


def first_plan(cache: Path, samples: float | None = None) -> dict[str, Settings]:
    """Plan auto with every seed, and every other method with every rate and the first seed.

    Args:
        cache: the folder of downloaded data.
        samples: at most this many samples of each stream.
    """
    runs: dict[str, Settings] = {}
    for stream in STREAMS:
        shared = settings_of(stream, cache, samples)
        runs |= {f"{stream.name}_auto_seed={seed}": replace(shared, seed=seed) for seed in range(SEEDS)}
        for kind in KINDS:
            runs |= {_name(stream, kind, rate, 0): _tried(stream, kind, shared, rate, 0) for rate in RATES}
    return runs


def second_plan(cache: Path, found: Mapping[str, Record], samples: float | None = None) -> dict[str, Settings]:
    """Plan every method with the best of its rates and the other seeds.

    Args:
        cache: the folder of downloaded data.
        found: the records of the first plan.
        samples: at most this many samples of each stream.
    """
    runs: dict[str, Settings] = {}
    for stream in STREAMS:
        shared = settings_of(stream, cache, samples)
        for kind in KINDS:
            rate = best_rate(stream, kind, found)
            if rate is not None:
                seeds = range(1, SEEDS)
                runs |= {_name(stream, kind, rate, seed): _tried(stream, kind, shared, rate, seed) for seed in seeds}
    return runs


def best_rate(stream: Stream, kind: Kind, found: Mapping[str, Record]) -> float | None:
    """The rate with the smallest loss over the whole stream.

    Args:
        stream: the stream.
        kind: the method.
        found: the records of the first plan.

    Returns:
        The rate; None if all runs failed.
    """
    tried = {rate: found.get(_name(stream, kind, rate, 0)) for rate in RATES}
    means = {rate: one["mean"] for rate, one in tried.items() if one and one["problem"] is None}
    return min(means, key=means.__getitem__) if means else None


def _name(stream: Stream, kind: Kind, rate: float, seed: int) -> str:
    word = f"{kind.method}-{kind.cell}".replace(":", "-")
    return f"{stream.name}_{word}_rate={rate:g}_seed={seed}"


def _tried(stream: Stream, kind: Kind, shared: Settings, rate: float, seed: int) -> Settings:
    hidden = kind.of_texts if stream.is_text else kind.of_series
    # A run that diverges is not stopped, and its loss shows it.
    return replace(
        shared, method=kind.method, cell=kind.cell, hidden=hidden, rate=rate, seed=seed, stop_if_diverged=False
    )


def seeds_plan(cache: Path, samples: float | None = None) -> dict[str, Settings]:
    """Plan auto with many seeds on every stream, on disturbed copies of the series, and on the paper's tasks.

    Args:
        cache: the folder of downloaded data.
        samples: at most this many samples of each stream.
    """
    length = int(min(SHORT, samples or SHORT))
    streams = {f"{stream.name}_as-it-is": settings_of(stream, cache, length) for stream in STREAMS}
    for stream in STREAMS:
        if not stream.is_text:
            shared = settings_of(stream, cache, length)
            for change in disturb.CHANGES:
                source = str(disturb.path_of(Path(shared.source), change))
                streams[f"{stream.name}_{change}"] = replace(
                    shared, source=source, standardise=change != disturb.SCALED
                )
    outages = settings_of(next(stream for stream in STREAMS if stream.name == "water"), cache, length)
    source = str(cache / fetch.WATER_WITH_OUTAGES.file)
    streams["water_with-outages"] = replace(outages, source=source, inputs=("Water flow [l/s]",))
    tasks = Settings(samples=length // WINDOW * WINDOW, metrics_every=max(1, length // POINTS))
    streams |= {f"{task}_as-it-is": replace(tasks, source=task) for task in ("anbn", "brackets")}
    return {
        f"{name}_seed={seed}": replace(shared, seed=seed)
        for seed in range(MANY_SEEDS)
        for name, shared in streams.items()
    }
