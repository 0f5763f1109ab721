"""Measure and report: `python -m benchmarks [SECTION ...]`, all of them by default; `report` alone only writes.

Every section is a process of its own on one core, so that one can be measured again
without the others. Raw numbers go to results/bench/<JAX version>/<section>.json; the
tables and the figure are made from what is there.
"""

import argparse
import json
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
    """One section, in this process."""
    # Threads that wait for one another cost CPU time of their own, and one core is enough for a small model.
    if name != "two_cores":
        use_one_core()
    from norewind.runs.record import versions

    record = {
        "section": name,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "versions": {**versions(), **{library: _version(library) for library in ("optax", "braintrace", "torch")}},
    }
    began = time.perf_counter()
    rows = ",\n".join(json.dumps(row) for row in SECTIONS[name]())  # a line each, so that a diff can be read
    record["seconds"] = round(time.perf_counter() - began, 1)
    path = OUT / f"jax-{version('jax')}" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{json.dumps(record)[:-1]}, "rows": [\n{rows}\n]}}\n')


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
