"""Influence balancing: UORO against truncated BPTT, from settings to records."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from norewind.learner import Online, online
from norewind.names import parse_method
from norewind.optimizers import inverse_sqrt
from norewind.run import NonFiniteError, Run
from norewind.runs.fit import Hooks, Intervals, fit
from norewind.runs.record import Record, record_path, records_of, versions, write_record
from norewind.streams import Samples, Stream
from norewind.tasks import influence_balancing

SAMPLES = 200_000
SEEDS = 10
POINTS = 120


@dataclass(frozen=True, kw_only=True)
class Balancing:
    """One run of influence balancing. Truncated BPTT has no noise: a single run tells all."""

    method: str
    rate: float
    seed: int = 0
    samples: int = SAMPLES
    n: int = 23
    minus: int = 13
    theta: float = 0.5

    @property
    def name(self) -> str:
        size = "" if (self.n, self.minus, self.theta) == (23, 13, 0.5) else f"-{self.n}-{self.minus}-{self.theta:g}"
        method = self.method.replace(":", "")
        return f"influence{size}-{method}-rate{self.rate:g}-{self.samples}-seed{self.seed}"


def influence_plan(
    *, seeds: int = SEEDS, rates: Sequence[float] = (1e-3, 3e-4, 1e-4), windows: Sequence[int] = (1, 10, 100, 200)
) -> list[Balancing]:
    """All runs of the figure: UORO with every seed, and truncated BPTT once for every window."""
    uoro = [Balancing(method="uoro", rate=rate, seed=seed) for rate in rates for seed in range(seeds)]
    return uoro + [Balancing(method=f"bptt:{window}", rate=rate) for rate, window in product(rates, windows)]


def influence_records(plan: Sequence[Balancing], out: Path) -> dict[str, Record]:
    return records_of(plan, out, "influence")


def run_influence(plan: Sequence[Balancing], out: Path, say: Callable[[str], None] = print) -> None:
    """Make the runs of a plan that have no record in a folder yet."""
    finished = influence_records(plan, out)
    missing = [run for run in plan if run.name not in finished]
    say(f"influence balancing: {len(finished)} runs were finished before, {len(missing)} to do")
    for (method, rate), group in groupby(missing, lambda run: (run.method, run.rate)):
        began, thetas, runs = time.perf_counter(), [], list(group)
        for run, record in zip(runs, train_influence(runs), strict=True):
            write_record(record_path(out, run.name), record)
            thetas.append(record["theta"])
        words = ", ".join(f"{theta:.4g}" for theta in thetas[:3]) + (", ..." if len(thetas) > 3 else "")
        say(f"influence balancing, {method}, rate {rate:g}: θ = {words} ({time.perf_counter() - began:.1f} s)")


class ConstantTarget(Stream):
    """The stream of the task: no input, and always 1 as the target."""

    def take(self, count: int, patience: float | None = None) -> Samples:
        return Samples(np.zeros(count), np.ones(count))

    def position(self) -> dict[str, Any]:
        return {}


def train_influence(group: Sequence[Balancing]) -> Iterator[Record]:
    """The records of runs that differ in their seed only, in double precision; the learner is compiled once."""
    first, made_with = group[0], versions()
    task, method = influence_balancing(first.n, first.minus), parse_method(first.method)
    window, samples = method.window, first.samples // method.window * method.window

    def transition(params, state, x):
        # θ is part of the output, so that it can be seen along the way.
        state, output = task.transition(params, state, x)
        return state, (output, params)

    with jax.enable_x64(True):
        estimator = method.make(transition, lambda output, target: task.loss(output[0], target), np.zeros(()))
        learner = online(estimator, optax.sgd(inverse_sqrt(first.rate)))
        seen: list[tuple[np.ndarray, np.ndarray]] = []
        look = Hooks(predictions=lambda first, samples, outputs: seen.append(outputs))
        for run in group:
            began = time.perf_counter()
            seen.clear()
            start = learner.init(task.init(run.theta), task.initial_state(), jax.random.key(run.seed))
            end, problem = fit_or_fail(ConstantTarget(), learner, start, window, samples, samples, look)
            nothing = [(np.full(window, np.nan), np.full(window, end.params))]
            outputs, thetas = (np.concatenate(parts) for parts in zip(*(seen or nothing), strict=True))
            # Outputs are made before an update: what follows a sample is the θ of the next one.
            course = _course((outputs - 1) ** 2 / 2, np.append(thetas[1:], end.params), window)
            seconds = round(time.perf_counter() - began, 2)
            facts = {"seconds": seconds, "problem": problem, "target": task.limit}
            yield {"influence": asdict(run), **made_with, **facts, **course}


def fit_or_fail(
    stream: Stream, learner: Online, start: Run, window: int, samples: int, every: int, hooks: Hooks
) -> tuple[Run, str | None]:
    """Train with a line of metrics `every` so many samples: the last run, and the problem if it was not finite."""
    intervals = Intervals(metrics_every=every, checkpoint_every=None)
    try:
        fitted = fit(
            stream, learner, start, window=window, samples=samples, intervals=intervals, watch=False, hooks=hooks
        )
        return fitted.run, None
    except NonFiniteError as error:
        return error.run, f"not finite after {int(error.run.samples):,} samples"


def _course(losses: np.ndarray, thetas: np.ndarray, window: int) -> dict[str, Any]:
    """The end of a run, and its course at logarithmically spaced times, with enough digits for a figure."""

    def number(value: Any) -> float | None:
        return float(f"{value:.6g}") if np.isfinite(value) else None

    losses, thetas = losses.reshape(-1, window).mean(axis=1), thetas[window - 1 :: window]
    ends = np.unique(np.geomspace(1, len(losses), POINTS).round().astype(int))
    return {
        "theta": number(thetas[-1]),
        "loss": number(losses[-1]),
        "time": [int(end) * window for end in ends],
        "losses": [number(losses[a:b].mean()) for a, b in pairwise([0, *ends])],
        "thetas": [number(thetas[end - 1]) for end in ends],
    }
