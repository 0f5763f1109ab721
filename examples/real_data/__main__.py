"""The default of norewind, single methods, and other forecasters and compressors on eight real streams.

    python examples/real_data --out results/real-data            # everything
    python examples/real_data baselines runs report --out ...    # some of it

`baselines`: other forecasters and compressors. `runs`: auto, and single methods with five
rates and then three seeds. `seeds`: auto with twenty seeds, also on disturbed streams.
`compress`: the texts, compressed with auto and decompressed again. `report`: tables and
the figure. Finished work is kept, so each step may be interrupted and started again.
"""

import argparse
import os
from pathlib import Path

import fetch
from baselines import find_baselines
from coded import compress_texts
from disturb import write_copies
from plan import STREAMS, first_plan, second_plan, seeds_plan
from report import report

from norewind.sweeps.sweep import sweep

STEPS = ("baselines", "runs", "seeds", "compress", "report")


def main() -> None:
    options = parse_options()
    steps, cache, out, samples = options.steps or STEPS, options.cache, options.out, options.samples
    if set(steps) != {"report"}:
        for item in (*(stream.item for stream in STREAMS), fetch.WATER_WITH_OUTAGES):
            fetch.fetched(item, cache)
    # Runs that differ only in their seed are the same program, which is compiled once and kept.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    if "baselines" in steps:
        find_baselines(cache, out, samples, options.jobs)
    if "runs" in steps:
        found = sweep(first_plan(cache, samples), out, jobs=options.jobs, ray=options.ray)
        sweep(second_plan(cache, found, samples), out, jobs=options.jobs, ray=options.ray)
    if "seeds" in steps:
        for stream in STREAMS:
            if not stream.is_text:
                rows = int(stream.settings.samples or 0)
                write_copies(cache / stream.item.file, stream.settings.inputs, rows)
        sweep(seeds_plan(cache, samples), out, jobs=options.jobs, ray=options.ray)
    if "compress" in steps:
        compress_texts(cache, out, samples)
    if "report" in steps:
        print(report(cache, out, samples))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/real_data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], help="the steps to run (default: all)")
    parser.add_argument("--out", type=Path, default=Path("runs/real-data"), help="folder of records, tables, figures")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), help="folder of downloaded data")
    parser.add_argument("--samples", type=float, help="at most this many samples of each stream")
    parser.add_argument("--jobs", type=int, help="runs at the same time (default: one per core)")
    parser.add_argument("--ray", help="a Ray cluster to train in, or auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
