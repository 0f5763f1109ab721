"""Influence balancing: UORO against truncated BPTT, from settings to records."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

import norewind
from norewind.experiments.records import load, save, versions
from norewind.tasks import influence_balancing

WINDOWS = (1, 10, 100, 200)
RATES = (1e-3, 3e-4, 1e-4)
POINTS = 120


@dataclass(frozen=True, kw_only=True)
class InfluenceSetting:
    """One run of influence balancing. Truncated BPTT has no noise: a single run tells all."""

    method: Literal["uoro", "bptt"]
    window: int
    rate: float
    steps: int
    seed: int
    n: int = 23
    minus: int = 13
    theta: float = 0.5

    @property
    def slug(self) -> str:
        """A name for its file."""
        task = f"influence-{self.n}-{self.minus}"
        return f"{task}_{self.method}{self.window}_rate{self.rate:g}_{self.steps}_seed{self.seed}"


def influence_settings(
    *, seeds: int, steps: int, rates: Sequence[float] = RATES, windows: Sequence[int] = WINDOWS
) -> Iterator[InfluenceSetting]:
    """All runs of the figure: UORO with every seed, and truncated BPTT once for every T."""
    for rate in rates:
        for seed in range(seeds):
            yield InfluenceSetting(method="uoro", window=1, rate=rate, steps=steps, seed=seed)
    for rate, window in product(rates, windows):
        yield InfluenceSetting(method="bptt", window=window, rate=rate, steps=steps, seed=0)


def run_influence(settings: Sequence[InfluenceSetting], out: Path, say: Callable[[str], None] = print) -> None:
    """Make the records of all settings that have none yet, in double precision, the seeds of a curve at once."""

    def path(setting):
        return out / "runs" / f"{setting.slug}.json"

    missing = [setting for setting in settings if (load(path(setting)) or {}).get("setting") != asdict(setting)]
    say(f"influence balancing: {len(settings) - len(missing)} runs finished before, {len(missing)} to do")
    curves: dict[tuple, list[InfluenceSetting]] = {}
    for setting in missing:
        curves.setdefault((setting.method, setting.window, setting.rate, setting.steps), []).append(setting)
    for (method, window, rate, _), group in curves.items():
        records = train_influence(group)
        for setting, record in zip(group, records, strict=True):
            save(path(setting), record)
        final = ", ".join(f"{record['theta']:.4g}" for record in records[:3])
        more = ", ..." if len(records) > 3 else ""
        say(f"influence balancing, {method} {window}, rate {rate:g}: theta {final}{more}")


def train_influence(group: Sequence[InfluenceSetting]) -> list[dict[str, Any]]:
    """The records of settings that differ in their seed only."""
    began = time.perf_counter()
    first = group[0]
    with jax.enable_x64(True):
        losses, thetas = _trajectories(first, jnp.array([setting.seed for setting in group]))
    seconds = (time.perf_counter() - began) / len(group)
    blocks = losses.shape[1]
    ends = np.unique(np.geomspace(1, blocks, POINTS).round().astype(int))
    starts = np.concatenate([[0], ends[:-1]])
    return [
        {
            "setting": asdict(setting),
            **versions(),
            "seconds": round(seconds, 2),
            "theta": _number(theta[-1]),
            "loss": _number(loss[-1]),
            "target": influence_balancing(first.n, first.minus).limit,
            "time": [int(end) * first.window for end in ends],
            "losses": [_number(loss[a:b].mean()) for a, b in zip(starts, ends, strict=True)],
            "thetas": [_number(theta[end - 1]) for end in ends],
        }
        for setting, loss, theta in zip(group, losses, thetas, strict=True)
    ]


def _trajectories(setting: InfluenceSetting, seeds: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """The mean loss of each block and the θ after it, one row per seed."""
    task = influence_balancing(setting.n, setting.minus)
    model = (task.transition, task.loss)
    shape = (setting.steps,)
    if setting.window > 1:
        model, shape = norewind.window(*model), (setting.steps // setting.window, setting.window)
    estimator = norewind.uoro(*model) if setting.method == "uoro" else norewind.bptt(*model)
    learner = norewind.online(estimator, optax.sgd(norewind.inverse_sqrt(setting.rate)))

    def step(run, x):
        run, estimate = learner.step(run, x, jnp.ones_like(x))
        return run, (estimate.loss / setting.window, run.params)

    @jax.jit
    @jax.vmap
    def trajectory(seed):
        run = learner.init(task.init(setting.theta), task.initial_state(), jax.random.key(seed))
        return jax.lax.scan(step, run, jnp.zeros(shape))[1]

    losses, thetas = trajectory(seeds)
    return np.asarray(losses), np.asarray(thetas)


def _number(value: float) -> float | None:
    """A number that JSON can hold, with enough digits for a figure."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
