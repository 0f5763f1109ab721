"""Fleets: rows per second on one core, bytes per key, seconds per checkpoint. `python -m benchmarks.fleet`.

Writes a record per case to results/fleet/records.jsonl. Cases with a record are skipped; with --again, only cases
with a record of the current commit, so that an interrupted run can be continued. Takes about ten minutes on two
idle cores. For files and two cores, see fleet_files.py.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.timing import use_one_core

OUT = Path("results/fleet")
# Rows of each key in one call.
ROWS = 16
METHODS = ("uoro", "bptt", "snap1")


class Case(NamedTuple):
    """A fleet to measure.

    Attributes:
        hidden: the number of hidden units.
        keys: the number of keys.
        way: `"private"` or `"shared"` parameters, or `"single"` for one stream without a fleet.
        method: the method, by name.
    """

    hidden: int
    keys: int
    way: str
    method: str = "uoro"

    @property
    def name(self) -> str:
        method = "" if self.method == "uoro" else f"-{self.method}"
        return f"gru{self.hidden}-{self.keys}-{self.way}{method}"


CASES = [
    *(Case(hidden, 1, "single") for hidden in (16, 64)),
    *(Case(hidden, keys, way) for hidden in (16, 64) for way in ("private", "shared") for keys in (1, 1_000, 100_000)),
    *(Case(16, keys, way, method) for method in METHODS[1:] for keys, way in ((1, "single"), (1_000, "shared"))),
]
# Of 100,000 keys, the number that is visited in turn, and the number in memory. A key takes 210 kB or 54 kB.
PARTS = {(64, "private"): (6_000, 2_000), (64, "shared"): (10_000, 10_000)}


def measure(case: Case) -> dict:
    import jax
    import numpy as np

    import norewind

    cell = norewind.cells.gru(3, case.hidden, 1, symbols=False)
    estimator = getattr(norewind.estimators, case.method)(cell.transition, norewind.losses.known_squared_error)
    learner = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(1e-3, 0.02)))
    start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    rng = np.random.default_rng(0)
    if case.way == "single":
        xs = rng.normal(size=(4_000, 3)).astype(np.float32)
        seconds = _best(lambda: jax.block_until_ready(learner.scan(start, xs, xs[:, :1])), 10)
        return {"rows_per_second": 4_000 / seconds, "bytes_per_key": None}
    looked_at, limit = PARTS.get((case.hidden, case.way), (case.keys, case.keys))
    looked_at, limit = min(case.keys, looked_at), min(case.keys, limit)
    fleet = norewind.fleets.Fleet(learner, start, share=case.way == "shared", resident=max(limit, 512))
    names = np.array([b"sensor %d" % key for key in range(case.keys)], object)
    run = fleet.init()

    def learn(first: int, keys: int) -> float:
        """Seconds per row for some keys in turn. As in a large file, a chunk has several rows of each key."""
        nonlocal run
        chosen = np.tile(names[first : first + keys], ROWS if keys > 1 else 4_096)
        xs = rng.normal(size=(len(chosen), 3)).astype(np.float32)
        began = time.process_time()
        run, _, _ = fleet.scan(run, norewind.fleets.Keyed(chosen, xs), xs[:, :1])
        return (time.process_time() - began) / len(chosen)

    # If not all keys fit in memory, a block is half as many keys as fit, so that every key is read from disk.
    block = looked_at if looked_at <= limit else limit // 2
    learn(0, min(block, 1_000))  # compiles
    blocks = [learn(first, block) for first in range(0, looked_at, block)]  # new keys
    rounds = 5 if looked_at <= 1_000 else 3
    passes = [[learn(first, block) for first in range(0, looked_at, block)] for _ in range(rounds)]
    return {
        "looked_at": looked_at,
        "rows_per_second": 1 / min(np.mean(blocks) for blocks in passes),
        "rows_per_second_of_new_keys": 1 / np.mean(blocks),
        "bytes_per_key": fleet.slots.dtype.itemsize,
        "resident": fleet.keys,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        **(_checkpoints(fleet) if looked_at <= limit else {}),
    }


def _checkpoints(fleet) -> dict:
    """Seconds to write all keys, and then one key in a hundred."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        fleet.slots._folder = Path(folder)
        seconds = {}
        for name, every in (("all", 1), ("hundredth", 100)):
            fleet.slots._changed[: fleet.keys : every] = True
            began, cpu = time.perf_counter(), time.process_time()
            fleet.slots.write_keys(every, 0)
            seconds[f"checkpoint_{name}"] = time.perf_counter() - began
            seconds[f"checkpoint_{name}_cpu"] = time.process_time() - cpu
        seconds["stored_bytes"] = fleet.slots.store.size
        fleet.slots.close()
    return seconds


def measured(out: Path, *, again: bool) -> set[str]:
    """The names of the cases that have a record.

    Args:
        out: the folder of the records.
        again: count only records of the current commit.
    """
    from norewind.sweeps.record import read_records, versions

    commit = versions()["commit"]
    return {name for name, record in read_records(out).items() if not again or record["commit"] == commit}


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
    done = measured(OUT, again=options.again)
    for case in CASES:
        if case.keys > options.largest or case.name in done:
            continue
        # One process per case, so that none inherits the memory of another.
        child = os.fork()
        if not child:
            use_one_core()
            from norewind.sweeps.record import versions, write_record

            record = {**case._asdict(), "rows": ROWS, **measure(case)}
            write_record(OUT, case.name, {**record, **versions()})
            print(json.dumps(record), flush=True)
            os._exit(0)
        os.waitpid(child, 0)

    from benchmarks.fleet_files import measure_files

    measure_files(OUT, again=options.again, largest=options.largest)


if __name__ == "__main__":
    main()
