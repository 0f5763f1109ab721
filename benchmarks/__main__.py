"""Measure sections and write the report: `python -m benchmarks [SECTION ...]`, by default all sections.

`python -m benchmarks report` only writes the report. Every section runs in a separate
process on one core, so that it can be measured again without the others. Raw numbers go
to results/bench/records.jsonl, with one record per JAX version and section; the tables
and the figure are made from these records.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.sections import SECTIONS
from benchmarks.timing import use_one_core

OUT = Path("results/bench")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help=", ".join((*SECTIONS, "report")))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in arguments.sections:
        if name not in (*SECTIONS, "report"):
            parser.error(f"there is no section {name!r}: choose from {', '.join((*SECTIONS, 'report'))}.")
        if arguments.one:
            measure_section(name)
        elif name != "report":
            print(f"== {name}: {SECTIONS[name].__doc__}", flush=True)
            subprocess.run([sys.executable, "-m", "benchmarks", "--one", name], check=True)
    if not arguments.one:
        from benchmarks.report import write_report

        write_report(OUT)


def measure_section(name: str) -> None:
    """Measure one section in this process, and write its record."""
    # Threads that wait for one another consume CPU time, and one core is enough for a small model.
    if name != "two_cores":
        use_one_core()
    from norewind.sweeps.record import versions, write_record

    record = {
        "section": name,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "versions": {**versions(), **{library: _version(library) for library in ("optax", "braintrace", "torch")}},
    }
    began = time.perf_counter()
    rows = list(SECTIONS[name]())
    record |= {"seconds": round(time.perf_counter() - began, 1), "rows": rows}
    write_record(OUT, f"jax-{version('jax')}/{name}", record)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return named[1] if named else platform.processor()


def _version(library: str) -> str | None:
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
