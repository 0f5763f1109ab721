"""Comparing methods: each is trained on the same stream from the same parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from norewind.core import checks
from norewind.plotting.tables import comma_separated, markdown, markdown_as_html, sparkline
from norewind.scoring.metrics import counted
from norewind.sweeps.record import Record, final_loss, group_by, interval_ends, loss_curve, window_of
from norewind.sweeps.sweep import sweep
from norewind.training import registry
from norewind.training.build import CHOSEN_BY_AUTO
from norewind.training.opening import open_stream
from norewind.training.settings import Settings, SettingsError

# The final loss is the mean over this last share of the stream.
FINAL_SHARE = 0.1
# The default number of points of a curve.
CURVE_POINTS = 100
# The most samples between two points.
MAX_INTERVAL = 10_000
# By default, divergence is detected only if points are at least this many samples apart.
MIN_DETECTION_INTERVAL = 1_000


def compare(
    methods: Sequence[str | registry.Method],
    settings: Settings,
    *,
    seeds: int = 1,
    out: Path | str | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    quiet: bool = True,
) -> "Comparison":
    """Train every method on the same stream from the same initial parameters.

    A method that does not support the cell, or whose run diverges, stays in the result with the reason.

    Args:
        methods: the names of the methods, e.g. `["uoro", "bptt:16"]`.
        settings: the settings of all runs, except for the method. The source can be a task or a file.
        seeds: the number of runs per method, with seeds counted up from `settings.seed`. A seed determines the
            weights, the noise, and the text of a task.
        out: the folder for records, table and figure; by default nothing is kept.
        jobs: the number of runs to train at the same time; by default one per core.
        ray: a Ray cluster to train in; "auto" for a running one, or else a new one on this machine.
        quiet: show no progress.

    Returns:
        The records of all runs, which can be printed, drawn and saved.

    Raises:
        SettingsError: there are no methods, an argument has the wrong type, or the source is standard input.

    >>> settings = Settings("anbn", hidden=4, samples=400, metrics_every=20)
    >>> result = compare(["uoro", "lstm97"], settings)
    >>> [(row["method"], row["updates"], (row["problem"] or "")[:14]) for row in result.rows()]
    [('uoro', 400, ''), ('lstm97', None, 'refused: metho')]
    """
    checks.at_least_one("compare: seeds", seeds)
    if not isinstance(settings, Settings):
        raise SettingsError(
            f"compare: the second argument must be settings, not a {type(settings).__name__}: "
            'compare(["uoro", "bptt:16"], Settings("anbn")).'
        )
    if isinstance(methods, str | Settings) or not isinstance(methods, Sequence):
        raise SettingsError('compare: methods must be a list of names, such as ["uoro", "bptt:16"].')
    if not methods:
        raise SettingsError("compare: name at least one method.")
    if settings.source == "-":
        raise SettingsError("compare: standard input can only be read once. Use a file or a task.")
    chosen = [method.name if isinstance(method, registry.Method) else method for method in methods]
    chosen = [name if name == registry.AUTO else registry.parse_method(name).name for name in chosen]
    # Files are taken as complete: the last line counts even without a newline.
    settings = settings if settings.kind == "task" else replace(settings, final=True)
    with open_stream(settings).stream as stream:
        # Opened here so that a source that cannot be read raises one error, not one per run.
        if settings.metrics_every is None:
            most = CURVE_POINTS * MAX_INTERVAL
            most = int(min(settings.samples or most, most))
            length = 0
            while length < most and (taken := stream.take(most - length)) is not None:
                length += len(taken.xs)
            every = max(1, length // CURVE_POINTS)
            # The means of short intervals vary too much to detect divergence.
            settings = replace(
                settings,
                metrics_every=every,
                stop_if_diverged=settings.stop_if_diverged and every >= MIN_DETECTION_INTERVAL,
            )
    # The default method chooses its own networks.
    defaults = {name: getattr(Settings(), name) for name in CHOSEN_BY_AUTO}
    plan = {
        f"{method.replace(':', '-')}_seed{seed}": replace(
            settings, method=method, seed=seed, **(defaults if method == registry.AUTO else {})
        )
        for method in chosen
        for seed in range(settings.seed, settings.seed + seeds)
    }
    with TemporaryDirectory() as scratch:
        result = Comparison(settings, sweep(plan, scratch if out is None else out, jobs=jobs, ray=ray, quiet=quiet))
    if out is not None:
        result.save(out)
    return result


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`. It prints as a Markdown table.

    Attributes:
        settings: the settings that the runs share.
        records: the records of all runs, by name.
    """

    settings: Settings
    records: Mapping[str, Record]

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        curves = [[name, sparkline(loss_curve(group[0]))] for name, group in self.methods().items()]
        return markdown_as_html(f"{self.table()}\n\n{markdown(['method', 'loss along the stream'], curves)}")

    def methods(self) -> dict[str, list[Record]]:
        """Return the records of each method, in the order in which the methods were named."""
        return group_by(lambda record: record["settings"]["method"], self.records.values())

    def rows(self) -> list[dict]:
        """Return one row per method: means over the seeds without problems, with the standard error if several."""
        return [_row(method, group) for method, group in self.methods().items()]

    def table(self) -> str:
        """Return a Markdown table, best method first."""
        rows = sorted(self.rows(), key=lambda row: (row["final loss"] is None, row["final loss"] or 0))
        unit = next((row["unit"] for row in rows if row["final loss"] is not None), "")
        formats = {"final loss": ".4f", "updates": ",", "CPU µs per sample": ".1f", "bytes carried": ","}
        lines = []
        for row in rows:
            loss, *costs = ("–" if row[name] is None else format(row[name], digits) for name, digits in formats.items())
            error = "" if row["standard error"] is None else f" ± {row['standard error']:.4f}"
            lines.append([row["method"], loss + error, *costs, row["problem"]])
        header = ["method", f"final {unit}".strip(), "updates", "CPU µs per sample", "bytes carried", ""]
        return markdown(header, lines) + "\n" + self.note()

    def note(self) -> str:
        """Return sentences about the shared settings, the reference losses, and methods that make fewer updates."""
        settings, records, levels = self.settings, list(self.records.values()), self.levels()
        seeds = len({record["settings"]["seed"] for record in records})
        samples = max((record["samples"] for record in records), default=0)
        windows = {method: window_of(group[0]) for method, group in self.methods().items()}
        fewer = [f"{method} makes one update per {window} samples" for method, window in windows.items() if window > 1]
        finals = [row["final loss"] for row in self.rows() if row["final loss"] is not None]
        text = (
            f"{settings.source}, {settings.cell} of {settings.hidden}, {settings.optimizer} at {settings.rate:g} / "
            f"(1 + {settings.alpha:g} √t), {counted(samples, 'sample')}, {counted(seeds, 'seed')}; final: the "
            f"mean over the last tenth{''.join(f', {name} {value:.4f}' for name, value in levels.items())}."
        )
        text += f" {'; '.join(fewer)}." if fewer else ""
        if finals and levels.get("persistence", np.inf) < min(finals):
            text += " Warning: the last value was a better forecast than all of these methods."
        return text

    def levels(self) -> dict[str, float]:
        """Return reference losses: the floor and the memoryless loss of a task, or the final baselines of a file."""
        if self.settings.kind == "task":
            text = registry.task(self.settings.source, self.settings.parameters)
            return {"floor": text.floor, "memoryless": text.memoryless}
        good = [record for record in self.records.values() if record["problem"] is None]
        losses = {name: final_loss(good[0], FINAL_SHARE, name) for name in ("baseline", "persistence") if good}
        return {name: value for name, value in losses.items() if not isnan(value)}

    def save(self, folder: Path | str) -> None:
        """Write comparison.md, .csv and .png to a folder.

        Args:
            folder: the folder, which is created if needed.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comparison.md").write_text(self.table() + "\n")
        rows = self.rows()
        (folder / "comparison.csv").write_text(comma_separated(list(rows[0]), rows))
        self.figure(folder / "comparison.png")

    def figure(self, path: Path | str) -> None:
        """Draw the learning curves (means over seeds), and the final loss against time and against bytes carried.

        Args:
            path: the figure; .png, .pdf or .svg.
        """
        from norewind.plotting import figures

        rows = self.rows()
        figure, axes = figures.new_figure(1, 3, panel=(4.4, 4.6), width_ratios=(2, 1, 1))
        curves, costs, memories = axes[0]
        for number, (row, group) in enumerate(zip(rows, self.methods().values(), strict=True)):
            good = [record for record in group if record["problem"] is None]
            if not good:
                continue
            mean = np.mean([loss_curve(record) for record in good], axis=0)
            style, every = figures.curve_style(number, markers=True), max(1, len(mean) // 8)
            curves.plot(interval_ends(good[0]), mean, label=row["method"], markevery=every, ms=5, **style)
            point = {"marker": style["marker"], "color": style["color"], "linestyle": ""}
            for ax, x in ((costs, row["CPU µs per sample"]), (memories, max(1, row["bytes carried"]))):
                if x is not None:
                    ax.errorbar(x, row["final loss"], yerr=row["standard error"], **point)
        for (name, value), dashes in zip(self.levels().items(), ("--", ":"), strict=False):
            curves.axhline(value, color="black", linewidth=1, linestyle=dashes, label=name)
        unit = next(iter(self.records.values()))["unit"]
        curves.set(xlabel="samples", ylabel=unit)
        if all(value > 0 for record in self.records.values() for value in loss_curve(record)):
            figures.log_axis(curves)
        figures.count_axis(curves)
        costs.set(xlabel="CPU µs per sample", ylabel=f"final {unit}", xlim=(0, None))
        if all(row["CPU µs per sample"] is None for row in rows):
            costs.text(0.5, 0.5, "unknown:\nthe runs are too short", ha="center", transform=costs.transAxes)
        memories.set(xlabel="bytes carried (0 drawn at 1)", ylabel=f"final {unit}", xscale="log")
        figures.legend(figure, [curves], columns=6)
        figures.save(figure, path)


def _row(method: str, group: Sequence[Record]) -> dict:
    good = [record for record in group if record["problem"] is None]
    finals = [loss for record in good if not isnan(loss := final_loss(record, FINAL_SHARE))]
    times = [record["microseconds"] for record in good if record["microseconds"] is not None]
    problems = dict.fromkeys(record["problem"] for record in group if record["problem"] is not None)
    samples = good[0]["samples"] if good else None
    return {
        "method": method,
        "final loss": float(np.mean(finals)) if finals else None,
        "standard error": float(np.std(finals, ddof=1) / len(finals) ** 0.5) if len(finals) > 1 else None,
        "unit": group[0]["unit"],
        "samples": samples,
        "updates": None if samples is None else samples // window_of(good[0]),
        "CPU µs per sample": min(times, default=None),
        # Unknown for a run that diverged.
        "bytes carried": next((r["carried_bytes"] for r in group if r["carried_bytes"] is not None), None),
        "runs": len(group),
        "problem": "; ".join(problems) or None,
    }
