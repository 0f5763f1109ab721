"""Streaming actor-critics in the T-maze, by estimator: does the gradient reach back to the sign?

python -m examples.maze --out results/maze

A GRU of 32 units is trained by ObGD (κ = 3) with λ = 0.9 and γ = 0.98, every estimator with the same settings, in a
maze with a corridor of five steps. Without memory, half of the episodes succeed.
"""

import time
from pathlib import Path
from statistics import mean, stdev

import jax
import numpy as np
import tyro

from norewind import bptt, cells, losses, online, td, uoro
from norewind.core import obgd
from norewind.estimators import readout_only, snap1
from norewind.plotting.tables import markdown
from norewind.storage.files import write_atomically
from norewind.sweeps.record import read_records, versions, write_record
from norewind.tasks import TMaze, act, init_actor

MAZE, HIDDEN, ACTIONS, PARTS, SEEDS = TMaze(length=5), 32, 100_000, 10, 3
DECAY, DISCOUNT = 0.9, 0.98
METHODS = {
    "snap1": snap1,
    "uoro": uoro,
    "bptt, one step": bptt,
    "readout_only": readout_only,
}


def successes(name: str) -> list[list[float]]:
    """The fraction of successful episodes in each tenth of the actions, for each seed."""
    cell = cells.gru(MAZE.inputs, HIDDEN, 1 + MAZE.actions, symbols=False)
    estimator = METHODS[name](cell.transition, losses.actor_critic(0.01))
    learner = online(td(estimator, decay=DECAY), obgd(kappa=3.0))
    keys = jax.random.split(jax.random.key(0), 3 * SEEDS).reshape(SEEDS, 3)
    fresh = [learner.init(cell.init(own[0]), cell.initial_state(), own[1]) for own in keys]
    started = [init_actor(MAZE, run, own[2]) for run, own in zip(fresh, keys, strict=True)]
    acting = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *started)
    part = jax.jit(jax.vmap(lambda one: act(learner, MAZE, one, ACTIONS // PARTS, discount=DISCOUNT)))
    fractions = []
    for _ in range(PARTS):
        acting, rewards, ended = part(acting)
        won = np.sum(np.asarray(rewards) == 4, axis=1) / np.maximum(1, np.sum(np.asarray(ended), axis=1))
        fractions.append(won.tolist())
    return fractions


def table(out: Path) -> str:
    """The fraction of successful episodes in the first and in the last tenth, ± the standard deviation over seeds."""
    records, rows = read_records(out), []
    for name in METHODS:
        found = records[name]["successes"]
        rows.append([name, *(f"{mean(found[part]):.2f} ± {stdev(found[part]):.2f}" for part in (0, 4, -1))])
    return markdown(["estimator", "first tenth", "fifth tenth", "last tenth"], rows)


def main(out: Path = Path("runs/maze")) -> None:
    """Train what has no record yet, and write the table.

    Args:
        out: the folder of the records and the table.
    """
    for name in METHODS:
        if name in read_records(out):
            continue
        began = time.process_time()
        found = successes(name)
        settings = {"actions": ACTIONS, "hidden": HIDDEN, "seeds": SEEDS, "length": MAZE.length, "decay": DECAY}
        seconds = round(time.process_time() - began, 1)
        write_record(out, name, {"settings": settings, "successes": found, "cpu_seconds": seconds, **versions()})
        print(name, np.mean(found, axis=1).round(2).tolist(), seconds, flush=True)
    write_atomically(out / "table.md", table(out).encode())
    print(table(out))


if __name__ == "__main__":
    tyro.cli(main)
