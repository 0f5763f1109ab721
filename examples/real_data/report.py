"""Tables and figures from the records of runs and from the baselines."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from baselines import count_bits, row_errors
from fetch import fetched
from plan import METHODS, STREAMS, Stream

from norewind.instruments import figures
from norewind.instruments.curves import final, losses, points
from norewind.instruments.tables import comma_separated, markdown
from norewind.runs.record import Record

LAST = 0.2  # "the last fifth"


class Entry(NamedTuple):
    """A row of a table: a method at a rate, or a baseline. The records of a baseline hold its curve alone."""

    method: str
    rate: float | None
    records: list[Record]
    diverged: int = 0
    cpu_seconds: float | None = None


def report(records: dict[str, Record], cache: Path, out: Path) -> str:
    """Write table.md, table.csv, baselines.json and the figures; return the tables."""
    entries = {}
    simple = baselines(records, cache, out)
    for stream in STREAMS:
        own = [record for name, record in records.items() if name.startswith(f"{stream.name}_")]
        if own:
            entries[stream.name] = trained(own) + [
                Entry(name, None, [one]) for name, one in simple[stream.name].items()
            ]
    sections = [table(stream, entries[stream.name]) for stream in STREAMS if stream.name in entries]
    text = "\n".join([*sections, made_with(list(records.values()))])
    rows = [[name, *cells(entry)] for name, found in entries.items() for entry in found]
    (out / "table.md").write_text(text)
    (out / "table.csv").write_text(comma_separated(["stream", *HEADER], rows))
    for name, streams in (("text", STREAMS[2:]), ("series", STREAMS[:2])):
        draw([(stream, entries[stream.name]) for stream in streams if stream.name in entries], out / f"{name}.png")
    return text


def trained(records: list[Record]) -> list[Entry]:
    """One entry per method and rate, over its seeds."""
    kinds = dict.fromkeys((record["settings"]["method"], record["settings"]["rate"]) for record in records)
    entries = []
    for method, rate in sorted(kinds, key=lambda kind: (METHODS.index(kind[0]), kind[1])):
        group = [r for r in records if (r["settings"]["method"], r["settings"]["rate"]) == (method, rate)]
        good = [record for record in group if record["problem"] is None]
        seconds = [record["cpu_seconds"] for record in group if record["cpu_seconds"] is not None]
        entries.append(Entry(method, rate, good, len(group) - len(good), float(np.mean(seconds)) if seconds else None))
    return entries


def baselines(records: dict[str, Record], cache: Path, out: Path) -> dict[str, dict[str, Record]]:
    """The curves of all baselines, by stream, over the samples and intervals of the runs; computed once and kept."""
    path = out / "baselines.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    for stream in STREAMS:
        own = [r for name, r in records.items() if name.startswith(f"{stream.name}_") and r["problem"] is None]
        if own and not _fits(kept.get(stream.name), own[0]):
            found = compute_baselines(stream, own[0]["settings"], fetched(stream.item, cache))
            kept[stream.name] = {name: intervals(values, own[0]) for name, values in found.items()}
    out.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in kept.items()) + "\n}\n")
    return kept


def _fits(kept: dict[str, Record] | None, run: Record) -> bool:
    return kept is not None and all(np.array_equal(points(one), points(run)) for one in kept.values())


def compute_baselines(stream: Stream, settings: dict, source: Path) -> dict[str, np.ndarray]:
    """The loss of every baseline at every sample that has a target."""
    samples = int(settings["samples"])
    if settings["format"] == "text":
        text = source.read_text(encoding="utf-8")[: samples + 1]
        return {f"counts, order {order}": count_bits(text, order, settings["alphabet_size"]) for order in (0, 2, 4)}
    return row_errors(source, settings["inputs"][0], settings["horizon"], stream.season, samples)


def intervals(values: np.ndarray, run: Record) -> Record:
    """Means over the intervals of a run. (Of rows, the first few have no target: the first mean is over fewer.)"""
    ends = points(run)
    parts = np.split(values, ends[:-1] - (ends[-1] - len(values)))
    curve = [float(f"{part.mean():.6g}") for part in parts]
    return {"every": run["every"], "samples": run["samples"], "curve": curve}


HEADER = ("method", "rate", "whole stream", "last fifth", "of single runs", "runs", "diverged", "CPU seconds a run")


def cells(entry: Entry) -> list[str]:
    """An entry as text: means over its runs, and the range of the last fifth."""
    whole = [final(record, 1) for record in entry.records]
    late = [final(record, LAST) for record in entry.records]
    is_run = entry.rate is not None
    return [
        entry.method,
        f"{entry.rate:g}" if is_run else "",
        f"{np.mean(whole):.3f}" if whole else "",
        f"{np.mean(late):.3f}" if late else "",
        f"{min(late):.3f} to {max(late):.3f}" if is_run and late else "",
        str(len(entry.records) + entry.diverged) if is_run else "",
        str(entry.diverged) if is_run else "",
        f"{entry.cpu_seconds:.0f}" if entry.cpu_seconds is not None else "",
    ]


def table(stream: Stream, entries: list[Entry]) -> str:
    title = f"**{stream.title}** ({stream.unit}, {entries[-1].records[0]['samples']:,} samples)"
    return f"{title}\n\n{markdown(HEADER, map(cells, entries))}"


def made_with(records: list[Record]) -> str:
    """How many runs there are, what they cost, and what made them."""
    versions = sorted({f"norewind {record['norewind']}, JAX {record['jax']}" for record in records})
    minutes = sum(record["cpu_seconds"] or 0 for record in records) / 60
    old = " They were made by an earlier version, in its record format." if "converted" in records[0] else ""
    return f"{len(records)} runs, {minutes:.1f} minutes of CPU time in total; {'; '.join(versions)}.{old}\n"


def draw(panels: list[tuple[Stream, list[Entry]]], path: Path) -> None:
    """A panel per stream: every method at the better of its rates, and the baselines in grey."""
    if not panels:
        return
    figure, axes = figures.new_figure(len(panels), panel=(9, 3.9))
    for ax, (stream, entries) in zip(axes[:, 0], panels, strict=True):
        for method in stream.methods:
            tried = [entry for entry in entries if entry.method == method and entry.records]
            if not tried:
                continue
            best = min(tried, key=lambda entry: np.mean([final(record, 1) for record in entry.records]))
            look = figures.look(METHODS.index(method))
            ax.plot(*averaged(best.records), label=f"{method}, rate {best.rate:g}", **look)
        simple = [entry for entry in entries if entry.rate is None and entry.method in stream.drawn]
        for entry, marker in zip(simple, "so^", strict=False):
            ax.plot(
                *averaged(entry.records), color=figures.GREY, lw=0.8, marker=marker, markersize=3, label=entry.method
            )
        ax.set(xlabel="samples", ylabel=stream.unit, xlim=(0, None))
        ax.set_title(stream.title, fontsize=10, loc="left")
        figures.count_axis(ax)
        ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9, handlelength=3.5)
    figures.save(figure, path)


def averaged(records: list[Record], group: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Several curves as their mean, over fewer and longer intervals, for the eye."""
    length = len(records[0]["curve"]) // group * group
    mean = np.mean([losses(record)[:length] for record in records], axis=0)
    return points(records[0])[:length][group - 1 :: group], mean.reshape(-1, group).mean(axis=1)
