"""Influence balancing: UORO against truncated BPTT, from settings to records."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product, repeat
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax

from examples.paper.influence import InfluenceBalancing
from norewind.core.optimizers import inverse_sqrt
from norewind.core.run import NonFiniteError, Run
from norewind.learners.online import OnlineLearner, online
from norewind.sweeps.record import Record
from norewind.training.fit import StreamLike, fit
from norewind.training.hooks import Hooks, Intervals
from norewind.training.registry import parse_method
from norewind.wording import digits

SAMPLES = 200_000
SEEDS = 10
POINTS = 120


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
        clock: whether the learning rate of an update is that of the samples `"before"` it, or `"through"` it: for a
            window of T samples, the first update is then 1 + √T times smaller.
    """

    method: str
    rate: float
    seed: int = 0
    samples: int = SAMPLES
    n: int = 23
    minus: int = 13
    theta: float = 0.5
    clock: Literal["before", "through"] = "before"

    @property
    def name(self) -> str:
        size = "" if (self.n, self.minus, self.theta) == (23, 13, 0.5) else f"-{self.n}-{self.minus}-{self.theta:g}"
        method = self.method.replace(":", "")
        clock = "" if self.clock == "before" else f"-{self.clock}"
        return f"influence{size}-{method}-rate{self.rate:g}-{self.samples}-seed{self.seed}{clock}"


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
    task, method = InfluenceBalancing(run.n, run.minus), parse_method(run.method)
    window, samples = method.window, run.samples // method.window * method.window

    def transition(params, state, x):
        # θ is part of the output, so that it can be recorded along the way.
        state, output = task.transition(params, state, x)
        return state, (output, params)

    with jax.enable_x64(True):
        estimator = method.make(transition, lambda output, target: task.loss(output[0], target), np.zeros(()))
        schedule, offset = inverse_sqrt(run.rate), window if run.clock == "through" else 0
        learner = online(estimator, optax.sgd(lambda count: schedule(count + offset)))
        start = learner.init(task.init(run.theta), task.initial_state(), jax.random.key(run.seed))
        hooks = Hooks(outputs=lambda first, samples, outputs: seen.append(outputs))
        stream = repeat((0.0, 1.0))  # the input is empty, and the target is always 1
        end, problem = fit_or_fail(stream, learner, start, hooks, every=samples, window=window, samples=samples)
    nothing = [(np.full(window, np.nan), np.full(window, end.params))]
    outputs, thetas = (np.concatenate(parts) for parts in zip(*(seen or nothing), strict=True))
    # Outputs are computed before the update, so the θ after a sample is the one in the next output.
    course = _course((outputs - 1) ** 2 / 2, np.append(thetas[1:], end.params), window)
    facts = {"seconds": round(time.perf_counter() - began, 2), "problem": problem, "target": task.limit}
    return {"influence": asdict(run), **facts, **course}


def fit_or_fail(
    stream: StreamLike, learner: OnlineLearner, start: Run, hooks: Hooks, *, every: int, **options: Any
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
        return fit(
            stream, learner, start, intervals=intervals, stop_if_diverged=False, hooks=hooks, **options
        ).run, None
    except NonFiniteError as error:
        return error.run, f"not finite after {int(error.run.samples):,} samples"


def _course(losses: np.ndarray, thetas: np.ndarray, window: int) -> dict[str, Any]:
    """The result of a run, and its course at logarithmically spaced times, with enough digits for a figure."""
    losses, thetas = losses.reshape(-1, window).mean(axis=1), thetas[window - 1 :: window]
    ends = np.unique(np.geomspace(1, len(losses), POINTS).round().astype(int))
    return {
        "theta": digits(float(thetas[-1])),
        "loss": digits(float(losses[-1])),
        "time": [int(end) * window for end in ends],
        "losses": [digits(float(losses[a:b].mean())) for a, b in pairwise([0, *ends])],
        "thetas": [digits(float(thetas[end - 1])) for end in ends],
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
