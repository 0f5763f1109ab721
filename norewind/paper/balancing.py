"""Influence balancing: UORO against truncated BPTT, from settings to records."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product, repeat
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

from norewind.core.optimizers import inverse_sqrt
from norewind.core.run import NonFiniteError, Run
from norewind.learners.online import Online, online
from norewind.paper.text_runs import method_words
from norewind.plotting.figures import LINES, legend, new_figure, reference_line
from norewind.plotting.tables import as_range, markdown
from norewind.scoring.metrics import digits
from norewind.sweeps.curves import losses
from norewind.sweeps.record import Record
from norewind.tasks import influence_balancing
from norewind.training.fit import Hooks, Intervals, fit
from norewind.training.registry import parse_method
from norewind.training.windows import StreamLike

SAMPLES = 200_000
SEEDS = 10
POINTS = 120
# Influence balancing starts from a loss of about 8: a run below this is converging to the solution.
CONVERGED_LOSS = 0.1
BLUE = "#08306b"
# BPTT on influence balancing, shorter windows darker.
SHADES = ("#662506", "#cc4c02", "#fe9929", "#e0b030", "#8c6d31", "#b15928")


@dataclass(frozen=True, kw_only=True)
class InfluenceRun:
    """The settings of one run of influence balancing. Truncated BPTT has no noise, so it needs only one seed.

    Args:
        method: the method, by name.
        rate: the learning rate.
        seed: the seed of the noise.
        samples: the number of samples.
        n: the number of units.
        minus: the number of units with a minus sign.
        theta: the initial parameter.
    """

    method: str
    rate: float
    seed: int = 0
    samples: int = SAMPLES
    n: int = 23
    minus: int = 13
    theta: float = 0.5

    @property
    def name(self) -> str:
        method = self.method.replace(":", "")
        return f"influence-{method}-rate{self.rate:g}-{self.samples}-seed{self.seed}"


def influence_plan(
    *, seeds: int = SEEDS, rates: Sequence[float] = (1e-3, 3e-4, 1e-4), windows: Sequence[int] = (1, 10, 100, 200)
) -> dict[str, InfluenceRun]:
    """Plan the runs of the figure: UORO with every seed, and truncated BPTT once for every window.

    Args:
        seeds: the number of seeds of UORO.
        rates: the learning rates.
        windows: the windows of truncated BPTT.

    Returns:
        The runs by name.
    """
    uoro = [InfluenceRun(method="uoro", rate=rate, seed=seed) for rate in rates for seed in range(seeds)]
    bptt = [InfluenceRun(method=f"bptt:{window}", rate=rate) for rate, window in product(rates, windows)]
    return {run.name: run for run in uoro + bptt}


def train_influence(run: InfluenceRun, folder: Path) -> Record:
    """Train one run in double precision, without checkpoints.

    Args:
        run: the settings of the run.
        folder: ignored; nothing is written.

    Returns:
        The record of the run.
    """
    began, seen = time.perf_counter(), []
    task, method = influence_balancing(run.n, run.minus), parse_method(run.method)
    window, samples = method.window, run.samples // method.window * method.window

    def transition(params, state, x):
        # θ is part of the output, so that it can be recorded along the way.
        state, output = task.transition(params, state, x)
        return state, (output, params)

    with jax.enable_x64(True):
        estimator = method.make(transition, lambda output, target: task.loss(output[0], target), np.zeros(()))
        learner = online(estimator, optax.sgd(inverse_sqrt(run.rate)))
        start = learner.init(task.init(run.theta), task.initial_state(), jax.random.key(run.seed))
        hooks = Hooks(predictions=lambda first, samples, outputs: seen.append(outputs))
        stream = repeat((0.0, 1.0))  # the input is empty, and the target is always 1
        end, problem = fit_or_fail(stream, learner, start, hooks, every=samples, window=window, samples=samples)
    nothing = [(np.full(window, np.nan), np.full(window, end.params))]
    outputs, thetas = (np.concatenate(parts) for parts in zip(*(seen or nothing), strict=True))
    # Outputs are computed before the update, so the θ after a sample is the one in the next output.
    course = _course((outputs - 1) ** 2 / 2, np.append(thetas[1:], end.params), window)
    facts = {"seconds": round(time.perf_counter() - began, 2), "problem": problem, "target": task.limit}
    return {"influence": asdict(run), **facts, **course}


def fit_or_fail(
    stream: StreamLike, learner: Online, start: Run, hooks: Hooks, *, every: int, **options: Any
) -> tuple[Run, str | None]:
    """Train until the end, even if the loss explodes, or until the first number that is not finite.

    Args:
        stream: the samples.
        learner: the learner.
        start: the run to start from.
        hooks: functions that `fit` calls along the way.
        every: the number of samples between two lines of metrics.
        options: `window` and `samples` of `fit`.

    Returns:
        The last finite run, and a description of the problem; None if there was none.
    """
    intervals = Intervals(metrics_every=every, checkpoint_every=None)
    try:
        return fit(stream, learner, start, intervals=intervals, watch=False, hooks=hooks, **options).run, None
    except NonFiniteError as error:
        return error.run, f"not finite after {int(error.run.samples):,} samples"


def _course(losses: np.ndarray, thetas: np.ndarray, window: int) -> dict[str, Any]:
    """The result of a run, and its course at logarithmically spaced times, with enough digits for a figure."""
    losses, thetas = losses.reshape(-1, window).mean(axis=1), thetas[window - 1 :: window]
    ends = np.unique(np.geomspace(1, len(losses), POINTS).round().astype(int))
    return {
        "theta": digits(thetas[-1]),
        "loss": digits(losses[-1]),
        "time": [int(end) * window for end in ends],
        "losses": [digits(losses[a:b].mean()) for a, b in pairwise([0, *ends])],
        "thetas": [digits(thetas[end - 1]) for end in ends],
    }


def influence_curves(records: Sequence[Record]) -> dict[str, dict[float, list[Record]]]:
    """Records of influence balancing by method (UORO first, then by window) and by rate (the same rates for all)."""
    runs = [record["influence"] for record in records]
    methods = sorted({run["method"] for run in runs}, key=lambda method: int(method.partition(":")[2] or 0))
    rates = sorted({run["rate"] for run in runs}, reverse=True)
    curves: dict[str, dict[float, list[Record]]] = {method: {rate: [] for rate in rates} for method in methods}
    for run, record in zip(runs, records, strict=True):
        curves[run["method"]][run["rate"]].append(record)
    return curves


def influence_figure(records: Sequence[Record]) -> Figure:
    """Draw influence balancing: the loss above and θ below, one column per learning rate."""
    methods = influence_curves(records)
    rates = list(next(iter(methods.values())))
    figure, axes = new_figure(2, len(rates), panel=(3.8, 3.1), sharex=True, sharey="row")
    for column, rate in enumerate(rates):
        seeds = methods.get("uoro", {}).get(rate, [])
        truncated = [(name, run) for name, curves in methods.items() if name != "uoro" for run in curves[rate]]
        for ax, entry in zip(axes[:, column], ("losses", "thetas"), strict=True):
            for record in seeds:
                ax.plot(record["time"], losses(record, entry), color=BLUE, lw=0.5, alpha=0.35)
            if seeds:
                label = f"UORO: median of {len(seeds)} seeds (thin: each)" if len(seeds) > 1 else "UORO, one seed"
                shortest = min(len(record["time"]) for record in seeds)
                median = np.median([losses(record, entry)[:shortest] for record in seeds], axis=0)
                ax.plot(seeds[0]["time"][:shortest], median, color=BLUE, lw=1.8, label=label)
            for number, (method, record) in enumerate(truncated):
                style = {"color": SHADES[number % len(SHADES)], "linestyle": LINES[(number + 1) % len(LINES)]}
                ax.plot(record["time"], losses(record, entry), label=method_words(method), lw=1.8, **style)
        title = f"η = {rate:g} / (1 + √t)"
        axes[0, column].set(xscale="log", xlim=(5, None), yscale="log", ylim=(1e-13, 1e13), title=title)
        axes[1, column].set_yscale("symlog", linthresh=1, linscale=1.2)
        axes[1, column].set(ylim=(-1e4, 1e4), xlabel="sample")
        target = records[0]["target"]
        reference_line(axes[1, column], target, f"θ* = {target:.4f}" if column == len(rates) - 1 else "")
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("θ")
    first = records[0]["influence"]
    figure.suptitle(f"Influence balancing, {first['n']} units, {first['minus']} minus")
    legend(figure, axes[0])
    return figure


def influence_table(runs: Sequence[Record]) -> str:
    """A table of θ and the loss at the end of influence balancing over all seeds, with a column per learning rate."""

    def cell(runs: Sequence[Record]) -> str:
        if not runs:
            return ""
        losses = sorted(float("inf") if run["loss"] is None else run["loss"] for run in runs)
        thetas = sorted(run["theta"] for run in runs)
        converged = sum(loss < CONVERGED_LOSS for loss in losses)
        return (
            f"θ {as_range(thetas[0], thetas[-1], '.5g')}, loss {as_range(losses[0], losses[-1], '.2g')} "
            f"({converged} of {len(runs)} below {CONVERGED_LOSS})"
        )

    methods = influence_curves(runs)
    rates = [f"η = {rate:g}" for rate in next(iter(methods.values()))]
    rows = [[method_words(method), *map(cell, curves.values())] for method, curves in methods.items()]
    return markdown([f"after {runs[0]['influence']['samples']:,} samples", *rates], rows)


def influence_values(runs: Sequence[Record]) -> dict[str, Any]:
    """The values for report.md that are about influence balancing."""
    first = runs[0]["influence"]
    task = influence_balancing(first["n"], first["minus"])
    last = task.last_wrong_window()
    windows = sorted({1, 10, 100, last, last + 1, 200} - {0})
    return {
        "task": task,
        "last_wrong": str(last),
        "first_right": last + 1,
        "block_influences": ", ".join(f"T = {window}: {float(task.block_influence(window)):.4g}" for window in windows),
        "influence_table": influence_table(runs),
    }
