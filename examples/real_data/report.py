"""Tables and figures from the records of runs and from the baselines."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from baselines import count_bits, row_errors
from trials import STREAMS, Stream

LATE = 0.8  # "the last fifth" begins here
STYLES = {"uoro": "-", "uoro:memory=16": "--", "bptt:16": "-.", "rtrl": ":"}
COLORS = {"uoro": "tab:blue", "uoro:memory=16": "tab:cyan", "bptt:16": "tab:orange", "rtrl": "black"}

Curve = list[tuple[int, float]]
"""Samples seen, and the mean loss since the point before."""


class Entry(NamedTuple):
    """A row of a table: a method at a rate, or a baseline."""

    method: str
    rate: float | None
    curves: list[Curve]
    diverged: int = 0
    cpu_seconds: float | None = None


def report(records: dict[str, list[dict[str, Any]]], sources: dict[str, Path], out: Path) -> str:
    """Write table.md, table.csv and the figures; return the tables."""
    sections, rows, entries = [], [], {}
    for stream in STREAMS:
        if not records[stream.name]:
            continue
        entries[stream.name] = found = trained(records[stream.name]) + baselines(
            stream, records[stream.name], sources[stream.name]
        )
        sections.append(table(stream, found))
        rows += [[stream.name, *cells(entry)] for entry in found]
    every = [record for group in records.values() for record in group]
    versions = sorted({f"norewind {record['norewind']}, JAX {record['jax']}" for record in every})
    minutes = sum(record["cpu_seconds"] for record in every) / 60
    sections.append(f"{len(every)} runs, {minutes:.1f} minutes of CPU time in all; {'; '.join(versions)}.")
    text = "\n\n".join(sections) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(text)
    with (out / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["stream", *HEADER], *rows])
    for name, streams in (("text", STREAMS[2:]), ("series", STREAMS[:2])):
        draw([(stream, entries[stream.name]) for stream in streams if stream.name in entries], out / f"{name}.png")
    return text


def trained(records: list[dict[str, Any]]) -> list[Entry]:
    """One entry per method and rate, over its seeds."""
    kinds = dict.fromkeys((record["settings"]["method"], record["settings"]["rate"]) for record in records)
    entries = []
    for method, rate in sorted(kinds, key=lambda kind: (list(STYLES).index(kind[0]), kind[1])):
        group = [r for r in records if (r["settings"]["method"], r["settings"]["rate"]) == (method, rate)]
        curves = [record["curve"] for record in group if record["diverged"] is None]
        seconds = float(np.mean([record["cpu_seconds"] for record in group]))
        entries.append(Entry(method, rate, curves, len(group) - len(curves), seconds))
    return entries


def baselines(stream: Stream, records: list[dict[str, Any]], source: Path) -> list[Entry]:
    """The baselines of a stream, over the same samples and intervals as the runs."""
    settings = records[0]["settings"]
    samples = int(settings["samples"])
    points = [samples_seen for samples_seen, _ in records[0]["curve"]]
    if settings["format"] == "text":
        text = source.read_text(encoding="utf-8")[: samples + 1]
        losses = {f"counts, order {order}": count_bits(text, order, settings["alphabet_size"]) for order in (0, 2, 4)}
    else:
        losses = row_errors(source, settings["inputs"][0], settings["horizon"], stream.season, samples)
    return [Entry(name, None, [intervals(loss, points)]) for name, loss in losses.items()]


def intervals(losses: np.ndarray, points: list[int]) -> Curve:
    """Means between the points. (Of rows, the first few have no target: the first mean is over fewer.)"""
    parts = np.split(losses, [point - (points[-1] - len(losses)) for point in points[:-1]])
    return [(point, float(part.mean())) for point, part in zip(points, parts, strict=True)]


def mean_of(curve: Curve, start: float = 0.0) -> float:
    """The mean loss from a share of the stream on."""
    samples, losses = np.array(curve).T
    weights = np.diff(samples, prepend=0) * (samples > start * samples[-1])
    return float(np.sum(weights * losses) / np.sum(weights))


HEADER = ("method", "rate", "whole stream", "last fifth", "of single runs", "runs", "diverged", "CPU seconds a run")


def cells(entry: Entry) -> list[str]:
    """An entry as text: means over its runs, and the range of the last fifth."""
    whole = [mean_of(curve) for curve in entry.curves]
    late = [mean_of(curve, LATE) for curve in entry.curves]
    is_run = entry.rate is not None
    return [
        entry.method,
        f"{entry.rate:g}" if is_run else "",
        f"{np.mean(whole):.3f}" if whole else "",
        f"{np.mean(late):.3f}" if late else "",
        f"{min(late):.3f} to {max(late):.3f}" if is_run and late else "",
        str(len(entry.curves) + entry.diverged) if is_run else "",
        str(entry.diverged) if is_run else "",
        f"{entry.cpu_seconds:.0f}" if entry.cpu_seconds is not None else "",
    ]


def table(stream: Stream, entries: list[Entry]) -> str:
    lines = [f"**{stream.title}** ({stream.unit}, {entries[0].curves[0][-1][0]:,} samples)", ""]
    lines += [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    return "\n".join(lines + [f"| {' | '.join(cells(entry))} |" for entry in entries])


def draw(panels: list[tuple[Stream, list[Entry]]], path: Path) -> None:
    """A panel per stream: every method at the better of its rates, and the baselines in grey."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not panels:
        return
    figure = Figure(figsize=(9, 3.9 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (stream, entries) in zip(np.atleast_1d(figure.subplots(len(panels))), panels, strict=True):
        for method in stream.methods:
            tried = [entry for entry in entries if entry.method == method and entry.curves]
            if not tried:
                continue
            best = min(tried, key=lambda entry: np.mean([mean_of(curve) for curve in entry.curves]))
            samples, losses = averaged(best.curves)
            label = f"{method}, rate {best.rate:g}"
            axes.plot(samples, losses, STYLES[method], color=COLORS[method], linewidth=1.6, label=label)
        simple = [entry for entry in entries if entry.rate is None and entry.method in stream.drawn]
        for entry, marker in zip(simple, "so^", strict=False):
            samples, losses = averaged(entry.curves)
            axes.plot(samples, losses, color="0.55", linewidth=0.8, marker=marker, markersize=3, label=entry.method)
        axes.set(xlabel="samples", ylabel=stream.unit, xlim=(0, None))
        axes.set_title(stream.title, fontsize=10, loc="left")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9, handlelength=3.5)
    figure.savefig(path, dpi=110)


def averaged(curves: list[Curve], group: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Several curves as their mean, over pairs of intervals, for the eye."""
    values = np.array(curves)[:, : len(curves[0]) // group * group]
    samples, losses = values[0, :, 0], values[:, :, 1].mean(axis=0)
    return samples[group - 1 :: group], losses.reshape(-1, group).mean(axis=1)
