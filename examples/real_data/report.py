"""The tables and the figure, from the records of runs and baselines."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from examples.real_data.baselines import HEADERS, jobs_of, record_name
from examples.real_data.coded import compression_table
from examples.real_data.figure import draw
from examples.real_data.plan import KINDS, MANY_SEEDS, STREAMS, Stream, best_rate, first_plan, second_plan, seeds_plan
from norewind.plotting.tables import comma_separated, markdown
from norewind.sweeps.record import Record, final_loss, read_records
from norewind.sweeps.sweep import finished_records

LAST = 0.2  # "the last fifth"
CLOSE = 1.01


class Entry(NamedTuple):
    """A row of a table: a method at the best of its rates, over its seeds, or a baseline at the best of its tries."""

    name: str
    setting: str
    records: list[Record]
    diverged: int = 0
    is_baseline: bool = False

    @property
    def whole(self) -> float:
        return float(np.mean([record["mean"] for record in self.records])) if self.records else float("inf")

    @property
    def late(self) -> float | None:
        values = [last_fifth(record) for record in self.records if "curve" in record]
        return float(np.mean(values)) if values else None

    @property
    def microseconds(self) -> float | None:
        known = [record["microseconds"] for record in self.records if record["microseconds"] is not None]
        return min(known) if known else None


def last_fifth(record: Record) -> float:
    # Except for methods with a window, the points of a curve are `every` samples apart.
    plain = record["settings"].get("method", "auto") == "auto"
    return final_loss({name: record[name] for name in ("every", "samples", "curve")} if plain else record, LAST)


class Found(NamedTuple):
    """A stream with its results: auto first, then single methods, then baselines."""

    stream: Stream
    entries: list[Entry]

    @property
    def auto(self) -> Entry:
        return self.entries[0]

    @property
    def best_baseline(self) -> Entry:
        return min((entry for entry in self.entries if entry.is_baseline), key=lambda entry: entry.whole)

    @property
    def best_other(self) -> Entry:
        return min(self.entries[1:], key=lambda entry: entry.whole)


def report(cache: Path, out: Path, samples: float | None = None) -> str:
    """Write table.md, table.csv, verdict.md, seeds.md, compression.md and figure.png.

    Args:
        cache: the folder of downloaded data.
        out: the folder of records, tables and figures.
        samples: at most this many samples of each stream.

    Returns:
        The tables.
    """
    tried = finished_records(first_plan(cache, samples), out)
    again = finished_records(second_plan(cache, tried, samples), out)
    every = read_records(out)
    found = [gathered(stream, tried | again, every) for stream in STREAMS]
    found = [one for one in found if one.auto.records and any(entry.is_baseline for entry in one.entries)]
    if not found:
        raise SystemExit(f"There are no records of this study in {out}.")
    seeds = seeds_table(finished_records(seeds_plan(cache, samples), out))
    texts = {
        "table.md": "\n".join([*map(table, found), made_with([*tried.values(), *again.values()], found)]),
        "table.csv": comma_separated(
            ["stream", *HEADER], [[one.stream.name, *row] for one in found for row in rows(one)]
        ),
        "verdict.md": verdict(found),
        "seeds.md": seeds,
        "compression.md": compression_table(cache, every, samples),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    draw(found, out / "figure.png")
    return "\n".join([texts["table.md"], texts["verdict.md"], seeds])


def gathered(stream: Stream, runs: dict[str, Record], every: dict[str, Record]) -> Found:
    """Collect the results on a stream.

    Args:
        stream: the stream.
        runs: the records of the runs, by name.
        every: all records of the study, with those of the baselines.
    """
    own = [record for name, record in runs.items() if name.startswith(f"{stream.name}_")]
    entries = [_entry("auto", "", [one for one in own if one["settings"]["method"] == "auto"])]
    for kind in KINDS:
        rate = best_rate(stream, kind, runs)
        wanted = {"method": kind.method, "cell": kind.cell, "rate": rate}
        chosen = [one for one in own if wanted.items() <= one["settings"].items()]
        hidden = kind.of_texts if stream.is_text else kind.of_series
        entries.append(_entry(kind.name.format(hidden), f"rate {rate:g}" if rate else "", chosen))
    for name in jobs_of(stream):
        record = every.get(record_name(stream, name))
        if record is not None and record["mean"] is not None:
            net = record["mean"] - 8 * HEADERS.get(name, 0) / record["samples"]
            entries.append(Entry(name, _setting(name, record["best"]), [{**record, "mean": net}], is_baseline=True))
    return Found(stream, entries)


def _entry(name: str, setting: str, found: list[Record]) -> Entry:
    good = [record for record in found if record["problem"] is None]
    return Entry(name, setting, good, len(found) - len(good))


def _setting(name: str, best: Any) -> str:
    words = {"ppmd": "order", "HoltWinters": "alpha", "Bayesian": "smoothing", "squares": "ridge"}
    word = next((word for part, word in words.items() if part in name), "rate")
    return "" if best is None else f"{word} {best:g}"


HEADER = ("method", "setting", "whole stream", "to the best baseline", "last fifth", "single runs", "µs per sample")


def rows(found: Found) -> list[list[str]]:
    """Format every entry as a row of text: means over its runs, and their range."""
    best, lines = found.best_baseline.whole, []
    for entry in found.entries:
        means = [record["mean"] for record in entry.records]
        lines.append(
            [
                entry.name,
                entry.setting,
                f"{entry.whole:.3f}" if means else "diverged",
                f"{entry.whole / best:.3f}" if means else "",
                "" if entry.late is None else f"{entry.late:.3f}",
                f"{min(means):.3f} to {max(means):.3f}" if len(means) > 1 else "",
                "" if entry.microseconds is None else f"{entry.microseconds:.{0 if entry.microseconds > 10 else 1}f}",
            ]
        )
    return lines


def table(found: Found) -> str:
    count = max(record["samples"] for entry in found.entries for record in entry.records)
    return f"**{found.stream.title}** ({found.stream.unit}; {count:,} samples)\n\n{markdown(HEADER, rows(found))}"


def verdict(found: list[Found]) -> str:
    """The table of auto against the best of all others and, on texts, against zpaq."""
    lines = []
    for one in found:
        other = one.best_other
        zpaq = next((entry for entry in one.entries if entry.name == "zpaq -m5"), None)
        lines.append(
            [
                one.stream.title,
                f"{one.auto.whole:.3f}",
                f"{other.name}: {other.whole:.3f}",
                f"{one.auto.whole / other.whole:.3f}",
                f"{one.auto.whole / zpaq.whole:.3f}" if zpaq else "",
                f"{one.auto.microseconds:.0f}" if one.auto.microseconds is not None else "",
            ]
        )
    header = ["stream", "auto", "the best of all others", "ratio", "ratio to zpaq -m5", "µs per sample"]
    return f"{markdown(header, lines)}\n{summary(found)}\n"


def summary(found: list[Found]) -> str:
    """A sentence on how often auto is better than, or close to, the best of all others."""
    ratios = [one.auto.whole / one.best_other.whole for one in found]
    below, close = sum(ratio < 1 for ratio in ratios), sum(ratio <= CLOSE for ratio in ratios)
    return (
        f"`auto` is below the best of all others on {below} of {len(found)} streams, and at most 1 % above it "
        f"on {close} of {len(found)}."
    )


def seeds_table(found: dict[str, Record]) -> str:
    """The table of how many runs of auto diverged, on every stream and every disturbed copy."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for name, record in found.items():
        stream, change, _ = name.split("_")
        groups.setdefault((stream, change.replace("-", " ")), []).append(record)
    lines = []
    for (stream, change), group in groups.items():
        losses = [record["mean"] for record in group if record["mean"] is not None]
        trivial = [np.nanmean([np.nan if one is None else one for one in record["baseline"]]) for record in group]
        lines.append(
            [
                stream,
                change,
                f"{max(record['samples'] for record in group):,}",
                f"{sum(record['problem'] is not None for record in group)} of {len(group)}",
                f"{min(losses):.4g} to {max(losses):.4g}" if losses else "",
                f"{np.mean(trivial):.4g}" if trivial else "",
            ]
        )
    problems = [record for record in found.values() if record["problem"] is not None]
    missing = "" if all(len(group) == MANY_SEEDS for group in groups.values()) else " (the study is not finished)"
    summary = f"{len(problems)} of {len(found)} runs diverged{missing}.\n"
    header = ["stream", "change", "samples", "diverged", "mean loss of the runs", "trivial forecast"]
    return markdown(header, lines) + "\n" + summary


def made_with(runs: list[Record], found: list[Found]) -> str:
    """A sentence on the number of runs, their cost, and the versions of the libraries.

    Args:
        runs: the records of the runs.
        found: the results on each stream.
    """
    versions = sorted({f"norewind {record['norewind']}, JAX {record['jax']}" for record in runs})
    others = [entry.records[0] for one in found for entry in one.entries if entry.is_baseline]
    libraries = {f"{name} {v}" for one in others for name, v in one["libraries"].items()}
    minutes = sum(record["cpu_seconds"] or 0 for record in runs) / 60
    diverged = sum(record["problem"] is not None for record in runs)
    return (
        f"{len(runs)} runs, {minutes:.0f} minutes of CPU time in total; {diverged} diverged. {'; '.join(versions)}; "
        f"{', '.join(sorted(libraries))}.\n"
    )
