"""UORO, truncated BPTT, RTRL and simple baselines on real text and real time series.

python examples/real_data --out results/real-data
"""

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from fetch import fetched
from report import report
from trials import STREAMS, Stream, name_of, plan, record_in, run_one

from norewind.training.settings import Settings


def main() -> None:
    options = parse_options()
    sources = {stream.name: fetched(stream.item, options.cache) for stream in STREAMS}
    # Seed by seed, so that what there is when somebody stops it is already worth reporting.
    trials = [
        (stream, settings, options.out / "runs" / f"{stream.name}_{name_of(settings)}.json")
        for seed, stream in product(range(options.seeds), STREAMS)
        for settings in plan(stream, seed, options.samples)
    ]
    if not options.no_run:
        run_all(trials, sources, options)
    records = {stream.name: [] for stream in STREAMS}
    for stream, settings, path in trials:
        record = record_in(path, settings)
        if record is not None:
            records[stream.name].append(record)
    print(report(records, sources, options.out))


def run_all(trials: list[tuple[Stream, Settings, Path]], sources: dict[str, Path], options: argparse.Namespace) -> None:
    """Every run that has no record yet."""
    began = time.perf_counter()
    # The runs with another seed are the same program: it is compiled once and kept.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(options.cache / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    # Fresh processes, since JAX does not survive a fork.
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(run_one, sources[stream.name], settings, path) for stream, settings, path in trials]
        for done, (job, (_, _, path)) in enumerate(zip(jobs, trials, strict=True), 1):
            record = job.result()
            minutes = (time.perf_counter() - began) / 60
            end = record["diverged"] or f"{record['curve'][-1][1]:.4f} lately"
            print(f"{done:3d}/{len(jobs)}  {minutes:5.1f} min  {path.stem}: {end}", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="UORO, truncated BPTT, RTRL and simple baselines on real text and real time series.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/real-data"), help="folder of records, tables, figures")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), help="folder of the data that was fetched")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--samples", type=float, help="no more than so many of each stream")
    parser.add_argument("--no-run", action="store_true", help="report on the records that are there")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    return parser.parse_args()


if __name__ == "__main__":
    main()
