"""CPU time on one core, best of several rounds, everything that is compared interleaved."""

import os
import time
from collections.abc import Callable
from typing import NamedTuple

ROUNDS = 10


class Case(NamedTuple):
    """Something to measure: `run()` does `units` units of work (characters, mostly) and waits until it is done."""

    name: str
    run: Callable[[], None]
    units: int


def use_one_core() -> None:
    """Before JAX and PyTorch are imported: they make one thread per core that they see."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["OMP_NUM_THREADS"] = "1"


def measure(cases: list[Case], clock=time.process_time, rounds: int = ROUNDS) -> list[dict]:
    """Microseconds per unit of every case. The first call of each (compilation) does not count."""
    for case in cases:
        case.run()
    print(f"measuring {', '.join(case.name for case in cases)}", flush=True)
    seconds: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            began = clock()
            case.run()
            seconds[case.name].append(clock() - began)
    rows = []
    for case in cases:
        microseconds = [value / case.units * 1e6 for value in seconds[case.name]]
        rows.append({"case": case.name, "us": min(microseconds), "rounds": [round(value, 3) for value in microseconds]})
    print("measured", ", ".join(f"{row['us']:.1f}" for row in rows), "µs", flush=True)
    return rows
