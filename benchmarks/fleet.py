"""Fleets measured: rows a second on one core, bytes a key, seconds a checkpoint. `python -m benchmarks.fleet`.

Writes results/fleet/SIZE-KEYS-WAY.json, one record per case; those that are there are kept unless --again is given.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.timing import use_one_core

OUT = Path("results/fleet")
ROWS = 16
"""Rows of each key in one call."""
CASES = [
    (hidden, keys, way)
    for hidden in (16, 64)
    for way in ("single", "private", "shared")
    for keys in ((1,) if way == "single" else (1, 1_000, 100_000))
]
RESIDENT = {64: 10_000}
"""Private GRU-64 takes 200 kB a key: of 100,000 keys, so many are in memory, and the others on disk."""


def measure(hidden: int, keys: int, way: str, rounds: int = 3) -> dict:
    import jax
    import numpy as np

    import norewind

    cell = norewind.cells.gru(3, hidden, 1, symbols=False)
    estimator = norewind.uoro(cell.transition, norewind.losses.known_squared_error)
    learner = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(1e-3, 0.02)))
    start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    rng = np.random.default_rng(0)
    if way == "single":
        xs = rng.normal(size=(4_000, 3)).astype(np.float32)
        seconds = _best(lambda: jax.block_until_ready(learner.scan(start, xs, xs[:, :1])), 5)
        return {"rows_per_second": 4_000 / seconds, "bytes_per_key": None}
    limit = RESIDENT.get(hidden) if way == "private" and keys > 10_000 else None
    fleet = norewind.fleet(learner, start, share=way == "shared", resident=limit or max(keys, 512))
    rows = ROWS if keys > 1 else 4_096
    names = np.array([b"sensor %d" % key for key in range(keys)], object)
    # Rows of all keys in turn; a chunk has several of each, as those of a large file have.
    block = min(keys, (limit or keys) // 2 if limit else keys)
    run = fleet.init()

    def learn(first: int) -> None:
        nonlocal run
        chosen = np.tile(names[first : first + block], rows)
        chosen = chosen[: len(chosen) // fleet.window * fleet.window]
        xs = rng.normal(size=(len(chosen), 3)).astype(np.float32)
        began = time.process_time()
        run, _ = fleet.scan(run, norewind.Keyed(chosen, xs), xs[:, :1])
        times.append((time.process_time() - began) / len(chosen))

    times: list[float] = []
    small, block = block, min(block, 1_000)
    learn(0)  # compiles
    block = small
    for round in range(rounds if keys < 10_000 else 1):
        learn(round * block % max(1, keys - block + 1))  # new keys
        times.clear()
        learn(round * block % max(1, keys - block + 1))
    checkpoints = _checkpoints(fleet) if limit is None else {}
    return {
        "rows_per_second": 1 / min(times),
        "bytes_per_key": fleet.slots.dtype.itemsize,
        "resident": fleet.keys,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        **checkpoints,
    }


def _checkpoints(fleet) -> dict:
    """Seconds to write all keys, and then the hundredth part of them."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        fleet.slots._folder = Path(folder)
        seconds = {}
        for name, every in (("all", 1), ("hundredth", 100)):
            fleet.slots._changed[: fleet.keys : every] = True
            began, cpu = time.perf_counter(), time.process_time()
            fleet.slots.settle(fleet.samples + every, 0)
            seconds[f"checkpoint_{name}"] = time.perf_counter() - began
            seconds[f"checkpoint_{name}_cpu"] = time.process_time() - cpu
        seconds["stored_bytes"] = fleet.slots.store.size
        fleet.slots.close()
    return seconds


def _best(call, rounds: int) -> float:
    call()
    times = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--largest", type=int, default=100_000, help="leave out cases with more keys")
    options = parser.parse_args()
    use_one_core()
    for hidden, keys, way in CASES:
        path = OUT / f"gru{hidden}-{keys}-{way}.json"
        if keys > options.largest or (path.exists() and not options.again):
            continue
        # A process each: what one took is not in another's memory.
        child = os.fork()
        if not child:
            from norewind.runs.record import versions, write_record

            record = {"hidden": hidden, "keys": keys, "way": way, "rows": ROWS, **measure(hidden, keys, way)}
            write_record(path, {**record, **versions()})
            print(json.dumps(record), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
