"""One process per seed, or several seeds with `vmap` in one process? CPU time per sample and seed, on one core.

    taskset -c 0 python benchmarks/seeds.py

A process per seed costs as much per sample as one seed. `vmap` runs three seeds in one
compiled loop over a stacked run.
"""

import time
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np

from norewind.training import registry
from norewind.training.build import build
from norewind.training.open_stream import StreamShape
from norewind.training.settings import Settings

SEEDS, CHUNK, ROUNDS = 3, 32_000, 4


def chunks(settings, window):
    for pair in islice(registry.task("anbn").pairs(settings.seed, CHUNK), ROUNDS):
        yield [x if window == 1 else x.reshape(-1, window) for x in pair]


def microseconds(scan, run, data, seeds):
    best = float("inf")
    for xs, targets in data:
        began = time.process_time()
        run, losses = scan(run, xs, targets)
        jax.block_until_ready(losses)
        best = min(best, time.process_time() - began)
    return best / CHUNK / seeds * 1e6


def main():
    print("cell method           alone   vmapped over 3 seeds   (µs per sample and seed)")
    for cell in ("gru", "lstm"):
        for method in ("uoro", "uoro:window=2", "uoro:window=16", "bptt", "bptt:2", "bptt:16"):
            settings = [Settings("anbn", cell=cell, method=method, alpha=0.03, seed=seed) for seed in range(SEEDS)]
            built = [build(one, StreamShape(3, 3, True)) for one in settings]
            learner, window = built[0].learner, built[0].window
            alone = microseconds(learner.scan, built[0].run, chunks(settings[0], window), 1)
            runs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one.run for one in built])
            of_all_seeds = zip(*(chunks(one, window) for one in settings), strict=True)
            stacked = ([np.stack(part) for part in zip(*pairs, strict=True)] for pairs in of_all_seeds)
            together = microseconds(jax.jit(jax.vmap(learner.scan)), runs, stacked, SEEDS)
            print(f"{cell:4} {method:15} {alone:7.1f} {together:10.1f}", flush=True)


if __name__ == "__main__":
    main()
