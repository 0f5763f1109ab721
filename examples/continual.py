"""Does a network lose its ability to learn on a stream of a million samples that keeps changing?

python -m examples.continual --out results/continual

Every 20,000 samples the stream becomes another random language of 16 symbols, in which the next symbol depends on the
last two: with probability 0.9 it is the one that a random table names, otherwise any. SnAp-1 trains a minimal GRU of 32
units, which is exact, with Adam at a constant rate. The first row restarts the network at every change, which only
someone who knows the changes can do.
"""

import time
from math import log2
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

from norewind import adam, cells, losses
from norewind.analysis.plasticity import dormant_units, effective_rank, weight_growth
from norewind.core import structure_of
from norewind.core.remedies import continual_backprop, l2_to_start
from norewind.core.run import Update
from norewind.estimators import snap1
from norewind.learners.online import init_online
from norewind.plotting.tables import markdown
from norewind.storage.files import write_atomically
from norewind.sweeps.record import read_records, versions, write_record

SYMBOLS, HIDDEN, RATE, KEEP = 16, 32, 3e-3, 0.9
TASK, TASKS, SEEDS, PROBE = 20_000, 50, 3, 1_000
CELL = cells.mingru(SYMBOLS, HIDDEN, SYMBOLS)
# The entropy of the next symbol, given the table.
FLOOR = -sum(p * log2(p) for p in [KEEP + (1 - KEEP) / SYMBOLS] + [(1 - KEEP) / SYMBOLS] * (SYMBOLS - 1))


def language(seed: int) -> np.ndarray:
    """The symbols of a whole stream."""
    symbols = np.zeros(TASK * TASKS + 1, np.int32)
    for task in range(TASKS):
        rng = np.random.default_rng([seed, task])
        table = rng.integers(0, SYMBOLS, (SYMBOLS, SYMBOLS))
        noise, kept = rng.integers(0, SYMBOLS, TASK), rng.random(TASK) < KEEP
        for t in range(TASK):
            at = 2 + task * TASK + t
            if at < len(symbols):
                symbols[at] = table[symbols[at - 2], symbols[at - 1]] if kept[t] else noise[t]
    return symbols


def remedies() -> dict[str, optax.GradientTransformation]:
    """The optimizers, by name."""
    row = np.arange(HIDDEN)
    units: Any = structure_of(CELL.transition).units
    return {
        "Adam, restarted at every change": adam(RATE),
        "Adam": adam(RATE),
        "Adam with L2 to the start": optax.chain(l2_to_start(1e-4), adam(RATE)),
        "continual backprop": continual_backprop(
            adam(RATE),
            fresh=CELL.init,
            feeds=units,
            reads=lambda params: {**dict.fromkeys(params), "readout": {"weight": row, "bias": None}},
            key=jax.random.key(0),
        ),
    }


def train(name: str, streams: np.ndarray) -> dict[str, Any]:
    """Train all seeds: bits per task and seed, and the instruments at the end."""
    optimizer = optax.with_extra_args_support(remedies()[name])
    update = Update(snap1(CELL.transition, losses.cross_entropy), optimizer)

    def begin(key):
        return init_online(update, CELL.init(key), CELL.initial_state(), key)

    def one_task(run, symbols):
        def body(run, pair):
            run, estimate, _ = update.step(run, *pair)
            return run, estimate.loss

        run, values = jax.lax.scan(body, run, (symbols[:-1], symbols[1:]))
        return run, jnp.mean(values) / losses.BIT

    step = jax.jit(jax.vmap(one_task))
    keys = jax.random.split(jax.random.key(1), SEEDS)
    runs = start = jax.vmap(begin)(keys)
    bits = []
    for task in range(TASKS):
        if name.endswith("change"):
            runs = jax.vmap(begin)(jax.vmap(lambda key, task=task: jax.random.fold_in(key, task))(keys))
        runs, values = step(runs, streams[:, task * TASK : (task + 1) * TASK + 1])
        bits.append(np.asarray(values).tolist())
    return {"bits": bits, "instruments": [instruments(runs, start, streams, seed) for seed in range(SEEDS)]}


def instruments(runs, start, streams: np.ndarray, seed: int) -> dict[str, float]:
    """Dormant units, effective rank and the growth of all weights of one seed, on the last samples."""
    params, first, state = (
        jax.tree.map(lambda leaf: leaf[seed], tree) for tree in (runs.params, start.params, runs.state)
    )

    def body(state, x):
        state, _ = CELL.transition(params, state, x)
        return state, state

    _, activations = jax.lax.scan(body, state, streams[seed, -PROBE:])
    whole = [{"all": jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])} for tree in (params, first)]
    return {
        "dormant": float(jnp.mean(dormant_units(activations))),
        "rank": effective_rank(activations),
        "growth": weight_growth(*whole)["['all']"],
    }


def table(out: Path) -> str:
    """Bits in the first and the last ten tasks, and the instruments, means over seeds, of the methods with a record."""
    rows, records = [], read_records(out)
    for name in (name for name in remedies() if name in records):
        bits, found = np.array(records[name]["bits"]), records[name]["instruments"]
        ends = [f"{mean(part):.3f} ± {stdev(part):.3f}" for part in (bits[:10].mean(axis=0), bits[-10:].mean(axis=0))]
        dormant, rank, growth = (mean(one[what] for one in found) for what in ("dormant", "rank", "growth"))
        rows.append([name, *ends, f"{100 * dormant:.0f} %", f"{rank:.1f}", f"{growth:.1f}"])
    header = ["method", "bits, tasks 1–10", "bits, tasks 41–50", "dormant", "effective rank", "weights to initial ones"]
    return markdown(header, rows)


def main(out: Path = Path("runs/continual")) -> None:
    """Train what has no record yet, and write the table.

    Args:
        out: the folder of the records and the table.
    """
    streams = np.stack([language(seed) for seed in range(SEEDS)])
    for name in remedies():
        if name in read_records(out):
            continue
        began = time.process_time()
        found = train(name, streams)
        settings = {"samples": TASK * TASKS, "hidden": HIDDEN, "rate": RATE, "seeds": SEEDS, "floor": FLOOR}
        seconds = round(time.process_time() - began, 1)
        write_record(out, name, {"settings": settings, **found, "cpu_seconds": seconds, **versions()})
        print(name, np.mean(found["bits"], axis=1).round(3).tolist(), seconds, flush=True)
    write_atomically(out / "table.md", table(out).encode())
    print(table(out))


if __name__ == "__main__":
    tyro.cli(main)
