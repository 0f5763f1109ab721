"""Seeds one process each, or vmapped in one? CPU time per character and seed, on one core.

    taskset -c 0 python benchmarks/seeds.py

A process per seed costs what one seed alone costs. `vmap` runs three seeds in one
compiled loop over a stacked run.
"""

import time
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np

from norewind.experiments.settings import TextSetting
from norewind.experiments.train import start

SEEDS, CHUNK, ROUNDS = 3, 32_000, 4


def chunks(setting):
    for pair in islice(setting.text().pairs(setting.seed, CHUNK), ROUNDS):
        yield [x if setting.memory == 1 else x.reshape(-1, setting.memory) for x in pair]


def microseconds(scan, run, data, seeds):
    best = float("inf")
    for xs, targets in data:
        began = time.process_time()
        run, losses = scan(run, xs, targets)
        jax.block_until_ready(losses)
        best = min(best, time.process_time() - began)
    return best / CHUNK / seeds * 1e6


def main():
    print("cell method memory   alone   vmapped over 3 seeds   (µs per character and seed)")
    for cell in ("gru", "lstm"):
        for method, memory in (("uoro", 1), ("uoro", 2), ("uoro", 16), ("bptt", 1), ("bptt", 2), ("bptt", 16)):
            settings = [
                TextSetting(
                    task="anbn", task_arguments=(1, 32), cell=cell, method=method, memory=memory, characters=10**7,
                    alpha=0.03, seed=seed,
                )
                for seed in range(SEEDS)
            ]  # fmt: skip
            learner, run = start(settings[0])
            alone = microseconds(learner.scan, run, chunks(settings[0]), 1)
            runs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[start(setting)[1] for setting in settings])
            of_all_seeds = zip(*map(chunks, settings), strict=True)
            stacked = ([np.stack(part) for part in zip(*pairs, strict=True)] for pairs in of_all_seeds)
            together = microseconds(jax.jit(jax.vmap(learner.scan)), runs, stacked, SEEDS)
            print(f"{cell:4} {method:6} {memory:6} {alone:7.1f} {together:10.1f}", flush=True)


if __name__ == "__main__":
    main()
