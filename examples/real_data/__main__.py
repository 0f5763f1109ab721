"""UORO, truncated BPTT, RTRL and simple baselines on real text and real time series.

python examples/real_data --out results/real-data
"""

import argparse
import os
from pathlib import Path

from fetch import fetched
from plan import STREAMS, plan
from report import report

from norewind.runs.sweep import records, sweep


def main() -> None:
    options = parse_options()
    runs = plan(options.cache, options.seeds, options.samples)
    if options.report_only:
        found = records(runs, options.out)
    else:
        for stream in STREAMS:
            fetched(stream.item, options.cache)
        # Runs with another seed are the same program: it is compiled once and kept.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(options.cache / "compiled"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        found = sweep(runs, options.out, jobs=options.jobs)
    if not found:
        raise SystemExit(f"There are no records of this plan in {options.out / 'runs'}.")
    print(report(found, options.cache, options.out))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="UORO, truncated BPTT, RTRL and simple baselines on real text and real time series.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/real-data"), help="folder of records, tables, figures")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), help="folder of the data that was fetched")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--samples", type=float, help="at most this many samples of each stream")
    parser.add_argument(
        "--report-only", action="store_true", help="train nothing, report on the records that are there"
    )
    parser.add_argument("--jobs", type=int, default=None, help="runs to train at the same time (None: one per core)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
