"""Measuring CPU time on one core: the best of several rounds, with the compared cases interleaved."""

import os
import time
from collections.abc import Callable
from typing import NamedTuple

ROUNDS = 10


class Case(NamedTuple):
    """Something to measure.

    Attributes:
        name: the name of the case.
        run: does the work, and returns when it is finished.
        units: the units of work in one call (mostly characters).
    """

    name: str
    run: Callable[[], None]
    units: int


def use_one_core() -> None:
    """Restrict this process to one core. Call it before importing JAX and PyTorch, which start a thread per core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["OMP_NUM_THREADS"] = "1"


def measure(cases: list[Case], clock=time.process_time, rounds: int = ROUNDS) -> list[dict]:
    """Measure cases in turn. The first call of each, which compiles, does not count.

    Args:
        cases: the cases to compare.
        clock: returns seconds.
        rounds: the number of rounds.

    Returns:
        A row per case: its name, the best microseconds per unit, and the times of all rounds.
    """
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
