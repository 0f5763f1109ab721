"""Fleets from files with the command line: rows per second on one core and on two. Called by `benchmarks.fleet`.

Each case is trained with few rows and with three times as many; the difference excludes the cost of
starting. A run before them fills the cache of compiled programs.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Rows of the shorter file: as many as a fleet of networks sorts by key at a time.
ROWS = 131_072
# Factors for the number of rows. Nothing is learned from the first ten rows of a key, which are too few to
# standardise by, and the final checkpoint should hold the same keys in both runs.
LONGER = {"auto": 12}
GRU = ("--method", "uoro", "--hidden", "16")
RUNS = {
    1_000: {"private": GRU, "shared": (*GRU, "--share")},
    100_000: {
        "private": GRU,
        "private-resident": (*GRU, "--resident", "100000"),
        "private-shards": (*GRU, "--shards", "2"),
        "shared": (*GRU, "--share"),
        "auto": (),
    },
}


def measure_files(out: Path, *, again: bool, largest: int, rows: int = ROWS) -> None:
    """Measure the cases that have no record yet, and write their records.

    Args:
        out: the folder of the records.
        again: repeat cases whose record is of another commit.
        largest: skip cases with more keys.
        rows: the rows of the shorter file.
    """
    from benchmarks.fleet import measured
    from norewind.sweeps.record import versions, write_record

    done = measured(out, again=again)
    for keys, runs in RUNS.items():
        cases = [name for name in runs if keys <= largest and f"file-{keys}-{name}" not in done]
        if not cases:
            continue
        with tempfile.TemporaryDirectory(dir=".") as folder:
            for name in cases:
                one_core, count = not name.endswith("shards"), rows * LONGER.get(name, 1)
                files = [_written(Path(folder) / f"{number}.csv", number, keys) for number in (count, 3 * count)]
                turns = enumerate([files[0], *files])
                _, few, many = (
                    _run(file, runs[name], Path(folder) / f"{name}-{turn}", one_core) for turn, file in turns
                )
                seconds, cpu = (longer - shorter for longer, shorter in zip(many, few, strict=True))
                record = {
                    "keys": keys,
                    "way": name,
                    "rows": [count, 3 * count],
                    "rows_per_second": 2 * count / seconds,
                    "rows_per_cpu_second": 2 * count / cpu,
                    "start_seconds": few[0] - seconds / 2,
                }
                write_record(out, f"file-{keys}-{name}", {**record, **versions()})
                print(json.dumps(record), flush=True)


def _written(path: Path, rows: int, keys: int) -> Path:
    """Write rows of all keys in random order, with one number to forecast and two more."""
    if path.exists():
        return path
    draw = random.Random(0)
    with path.open("w") as file:
        file.write("sensor,power,wind,sun\n")
        for _ in range(rows):
            numbers = ",".join(f"{draw.gauss(0, 1):.3f}" for _ in range(3))
            file.write(f"s{draw.randrange(keys)},{numbers}\n")
    return path


def _run(file: Path, options: tuple[str, ...], out: Path, one_core: bool) -> tuple[float, float]:
    """Train, and return seconds of wall-clock time and of CPU time."""
    chosen = "--key", "sensor", "--targets", "power", "--quiet"
    command = [sys.executable, "-m", "norewind", "train", str(file), *chosen, *options, "--out", str(out)]
    cores = os.sched_getaffinity(0)
    if one_core:
        os.sched_setaffinity(0, {max(cores)})
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    finally:
        os.sched_setaffinity(0, cores)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu
