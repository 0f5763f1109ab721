"""Comparing methods: each is trained on the same stream from the same parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import optax

from norewind.analysis.own_models import RATES, Methods, OwnTraining, Subject, methods_of, train_own
from norewind.core import checks
from norewind.core.optimizers import adam
from norewind.core.trees import Tree
from norewind.plotting.tables import comma_separated, markdown, markdown_as_html, sparkline
from norewind.sweeps.record import (
    Record,
    final_loss,
    group_by,
    interval_ends,
    loss_curve,
    versions,
    window_of,
    write_record,
)
from norewind.sweeps.sweep import sweep
from norewind.training import registry
from norewind.training.open_stream import open_stream
from norewind.training.scopes import without_effect
from norewind.training.settings import Settings, SettingsError, check_scopes
from norewind.wording import counted

# The final loss is the mean over this last share of the stream.
FINAL_SHARE = 0.1
# The default number of points of a curve.
CURVE_POINTS = 100
# The most samples between two points.
MAX_INTERVAL = 10_000
# By default, divergence is detected only if points are at least this many samples apart.
MIN_DETECTION_INTERVAL = 1_000


def compare(
    methods: Methods,
    settings: Settings | Subject | Callable[[int], Subject],
    stream: tuple[Tree, Tree] | Callable[[int], tuple[Tree, Tree]] | None = None,
    *,
    seeds: int = 1,
    rates: Sequence[float] | None = None,
    optimizer: Callable[[Any], optax.GradientTransformation] = adam,
    out: Path | str | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    quiet: bool = True,
) -> "Comparison":
    """Train every method on the same stream from the same initial parameters.

    A method that does not support the model, or whose run diverges, stays in the result with the reason. With several
    `rates`, every method is trained at all of them, and its row shows the one with the lowest final loss.

    Your own model is trained in this process. All rates and seeds of a method are computed side by side
    (`jax.vmap`; one after the other if the model is large), and the CPU time per sample is that of one of them.

    Args:
        methods: the names of the methods, e.g. `["uoro", "bptt:16"]`. For your own model also a dict of functions
            `(transition, loss) -> Estimator`.
        settings: the settings of all runs, except for the method. The source can be a task or a file. Or your own
            model: (transition, loss, params, state), or a function of the seed that returns them.
        stream: for your own model, (xs, targets) with one entry per sample, or a function of the seed that returns
            them.
        seeds: the number of runs per method, with seeds counted up from `settings.seed` (from 0 for your own model). A
            seed determines the weights, the noise, and the text of a task.
        rates: the learning rates to try; by default that of the settings, or 1e-2, 3e-3 and 1e-3 for your own model.
        optimizer: for your own model, makes an optax optimizer for a learning rate (constant, or that of the first
            sample).
        out: the folder for records, table and figure; by default nothing is kept.
        jobs: the number of runs to train at the same time; by default one per core.
        ray: a Ray cluster to train in; "auto" for a running one, or else a new one on this machine.
        quiet: show no progress.

    Returns:
        The records of all runs, which can be printed, drawn and saved.

    Raises:
        SettingsError: there are no methods, an argument has the wrong type, or the source is standard input.
        ValueError: the stream of your own model is missing or too short.

    >>> settings = Settings("anbn", hidden=4, samples=400, metrics_every=20)
    >>> result = compare(["uoro", "lstm97"], settings)
    >>> [(row["method"], row["updates"], (row["problem"] or "")[:14]) for row in result.rows()]
    [('uoro', 400, ''), ('lstm97', None, 'rejected: meth')]
    """
    _check_arguments(methods, settings, seeds)
    if not isinstance(settings, Settings):
        return _compare_own(methods, settings, stream, range(seeds), rates or RATES, optimizer, out)
    chosen = [method.name if isinstance(method, registry.Method) else method for method in methods]
    chosen = [name if name == registry.AUTO else registry.parse_method(name).name for name in chosen]
    _check_scopes(settings, chosen)
    # Files are taken as complete: the last line counts even without a newline.
    settings = settings if settings.kind == "task" else replace(settings, final=True)
    settings = _with_interval(settings)
    plan = {}
    for method, rate in product(chosen, rates or (settings.rate,)):
        own = _only_effective(replace(settings, method=method, rate=rate))
        name = method.replace(":", "-") + (f"_rate{rate:g}" if rates else "")
        for seed in range(settings.seed, settings.seed + seeds):
            plan[f"{name}_seed{seed}"] = replace(own, seed=seed)
    with TemporaryDirectory() as scratch:
        result = Comparison(settings, sweep(plan, scratch if out is None else out, jobs=jobs, ray=ray, quiet=quiet))
    if out is not None:
        result.save(out)
    return result


def _check_arguments(methods: Any, settings: Any, seeds: int) -> None:
    """Check the arguments of `compare` that have several forms."""
    checks.check_at_least_one("compare: seeds", seeds)
    is_model = callable(settings) or (isinstance(settings, tuple) and len(settings) == 4)
    if not isinstance(settings, Settings) and not is_model:
        raise SettingsError(
            f"compare: the second argument must be settings, not a {type(settings).__name__}: "
            'compare(["uoro", "bptt:16"], Settings("anbn")), or your own model: '
            "compare(methods, (transition, loss, params, state), (xs, targets))."
        )
    if isinstance(methods, str | Settings) or not isinstance(methods, Sequence | Mapping):
        raise SettingsError('compare: methods must be a list of names, such as ["uoro", "bptt:16"].')
    if not methods:
        raise SettingsError("compare: name at least one method.")
    if isinstance(settings, Settings) and isinstance(methods, Mapping):
        raise SettingsError("compare: a dict of your own estimators needs your own model in place of settings.")
    if isinstance(settings, Settings) and settings.source == "-":
        raise SettingsError("compare: standard input can only be read once. Use a file or a task.")


def _with_interval(settings: Settings) -> Settings:
    """Return the settings with an interval between points, chosen by the length of the stream unless it is set.

    The stream is opened in any case, so that a source that cannot be read raises one error, not one per run.
    """
    with open_stream(settings).stream as source:
        if settings.metrics_every is not None:
            return settings
        most = CURVE_POINTS * MAX_INTERVAL
        most = int(min(settings.samples or most, most))
        length = 0
        while length < most and (taken := source.take(most - length)) is not None:
            length += len(taken.xs)
    every = max(1, length // CURVE_POINTS)
    # The means of short intervals vary too much to detect divergence.
    stop = settings.stop_if_diverged and every >= MIN_DETECTION_INTERVAL
    return replace(settings, metrics_every=every, stop_if_diverged=stop)


def _compare_own(
    methods: Methods, model: Any, stream: Any, seeds: range, rates: Sequence[float], optimizer: Callable, out: Any
) -> "Comparison":
    """Compare methods on the user's own model, in this process; see `compare`."""
    if stream is None:
        raise SettingsError("compare: your own model needs a stream: compare(methods, model, (xs, targets)).")
    training = OwnTraining(cast(Any, model), stream, seeds, rates, optimizer)
    result = Comparison(training, train_own(methods_of(methods), training, CURVE_POINTS))
    if out is not None:
        for name, record in result.records.items():
            write_record(Path(out), name, {**record, **versions()})
        result.save(out)
    return result


def _check_scopes(settings: Settings, methods: Sequence[str]) -> None:
    """Reject settings that have no effect with any of the methods."""
    unused = [set(without_effect(replace(settings, method=method))) for method in methods]
    check_scopes(replace(settings, method=methods[0]), set.intersection(*unused), command="compare")


def _only_effective(settings: Settings) -> Settings:
    """Return settings in which those that have no effect with this method have their defaults."""
    return replace(settings, **{name: getattr(Settings(), name) for name in without_effect(settings)})


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`. It prints as a Markdown table.

    Attributes:
        settings: the settings that the runs share; for your own model, what they share in their place.
        records: the records of all runs, by name.
    """

    settings: Settings | OwnTraining
    records: Mapping[str, Record]

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        curves = [[name, sparkline(loss_curve(group[0]))] for name, group in self.methods().items()]
        return markdown_as_html(f"{self.table()}\n\n{markdown(['method', 'loss along the stream'], curves)}")

    def methods(self) -> dict[str, list[Record]]:
        """Return the records of each method at its best rate, in the order in which the methods were named."""
        every = group_by(lambda record: record["settings"]["method"], self.records.values())
        return {method: _at_best_rate(group) for method, group in every.items()}

    @property
    def rates(self) -> list[float]:
        """The learning rates that were tried, by the methods to which rates matter."""
        every = group_by(lambda record: record["settings"]["method"], self.records.values())
        return max(
            (list(group_by(lambda record: record["settings"]["rate"], group)) for group in every.values()), key=len
        )

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
        if len(self.rates) > 1:
            header.insert(1, "rate")
            lines = [[name, f"{row['rate']:g}", *rest] for row, (name, *rest) in zip(rows, lines, strict=True)]
        return markdown(header, lines) + "\n" + self.note()

    def note(self) -> str:
        """Return sentences about the shared settings, the reference losses, and methods that make fewer updates."""
        settings = self.settings
        records = list(self.records.values())
        levels = self.levels()
        seeds = len({record["settings"]["seed"] for record in records})
        samples = max((record["samples"] for record in records), default=0)
        windows = {method: window_of(group[0]) for method, group in self.methods().items()}
        fewer = [f"{method} makes one update per {window} samples" for method, window in windows.items() if window > 1]
        finals = [row["final loss"] for row in self.rows() if row["final loss"] is not None]
        final = f"the mean over the last tenth{''.join(f', {name} {value:.4f}' for name, value in levels.items())}."
        if isinstance(settings, Settings):
            model = f"{settings.source}, {settings.cell} of {settings.hidden}, {settings.optimizer} at "
            rate = "the best of the rates" if len(self.rates) > 1 else f"{self.rates[0]:g}"
            model += f"{rate} / (1 + {settings.alpha:g} √t)"
        else:
            model = f"your own model, each method at the best of {counted(len(self.rates), 'rate')}"
        text = f"{model}, {counted(samples, 'sample')}, {counted(seeds, 'seed')}; final: {final}"
        text += f" {'; '.join(fewer)}." if fewer else ""
        if finals and levels.get("persistence", np.inf) < min(finals):
            text += " Warning: the last value was a better forecast than all of these methods."
        return text

    def levels(self) -> dict[str, float]:
        """Return reference losses: the floor and the memoryless loss of a task, or the final baselines of a file."""
        if isinstance(self.settings, OwnTraining):
            return {}
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


def _at_best_rate(group: Sequence[Record]) -> list[Record]:
    """The records at the rate with the lowest final loss; a rate at which a run fails comes after all others."""
    by_rate = group_by(lambda record: record["settings"]["rate"], group)

    def loss(records):
        failed = sum(record["problem"] is not None for record in records)
        finals = [final_loss(record, FINAL_SHARE) for record in records if record["problem"] is None]
        return failed, float(np.nan_to_num(np.mean(finals), nan=np.inf)) if finals else np.inf

    return min(by_rate.values(), key=loss)


def _row(method: str, group: Sequence[Record]) -> dict:
    good = [record for record in group if record["problem"] is None]
    finals = [loss for record in good if not isnan(loss := final_loss(record, FINAL_SHARE))]
    times = [record["microseconds"] for record in good if record["microseconds"] is not None]
    problems = dict.fromkeys(record["problem"] for record in group if record["problem"] is not None)
    samples = good[0]["samples"] if good else None
    return {
        "method": method,
        "rate": group[0]["settings"]["rate"],
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
