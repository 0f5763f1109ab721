"""Forecasts of rows: microseconds per row, and the errors on ETTh2 and Exchange by DSOF's protocol (ICLR 2025).

    python -m benchmarks.rows [ETTh2.csv] [exchange_rate.txt.gz]

All columns are inputs and targets, standardised by the mean and the deviation of the
first rows. At every row, each of the next 48 rows is forecast. Errors are means over the
columns, the steps 1 to H, and the rows after about the first quarter.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.timing import Case, measure, use_one_core

HORIZONS = (1, 24, 48)
BUDGETS = {"without networks": 0, "with networks": 100}
MODELS = ("without networks", {"budget": 6.0}), ("by default", {})
ROWS, SINGLE = 2_000, 400
CHUNK = 1_000


class Protocol(NamedTuple):
    """The numbers of rows to read, to standardise by, and not to score."""

    rows: int | None
    first: int
    unscored: int


def read(path: Path) -> tuple[np.ndarray, Protocol]:
    """The columns of a file, standardised, and its protocol."""
    if "ETT" in path.name:
        table = np.genfromtxt(path, delimiter=",", skip_header=1)[:, 1:]
        protocol = Protocol(14_400, 2_880, 3_600)
    else:
        table = np.genfromtxt(path, delimiter=",")
        protocol = Protocol(None, len(table) // 5, len(table) // 4)
    table = table[: protocol.rows]
    first = table[: protocol.first]
    return ((table - first.mean(axis=0)) / first.std(axis=0)).astype(np.float32), protocol


def learner_of(columns: int, steps: tuple[int, ...], budget: float):
    """The learner that `norewind train` builds for such rows, and its run.

    Args:
        columns: the number of columns.
        steps: the steps to forecast.
        budget: the microseconds that a row may take.
    """
    from norewind.training import auto
    from norewind.training.open_stream import StreamShape

    return auto.series(StreamShape(columns, columns, False, columns, steps, tuple(range(columns))), False, budget, 0)


def errors_of(path: Path, budget: float) -> tuple[list[float], float]:
    """Learn from a file.

    Args:
        path: the file.
        budget: the microseconds that a row may take.

    Returns:
        The mean squared error for each of the horizons, and the microseconds of CPU time per row.
    """
    xs, protocol = read(path)
    steps = tuple(range(1, HORIZONS[-1] + 1))
    learner, run = learner_of(xs.shape[1], steps, budget)
    targets = np.tile(xs, len(steps))
    squares, seconds = np.zeros(len(steps)), []
    for start in range(0, len(xs), CHUNK):
        chunk = slice(start, start + CHUNK)
        began = time.process_time()
        run, _, (_, due) = learner.scan(run, xs[chunk], targets[chunk], outputs=True)
        seconds.append((time.process_time() - began) / len(due))
        scored = slice(max(0, protocol.unscored - start), None)
        errors = (due - targets[chunk])[scored].reshape(-1, len(steps), xs.shape[1])
        squares += np.sum(errors.astype(np.float64) ** 2, axis=(0, 2))
    by_step = squares / ((len(xs) - protocol.unscored) * xs.shape[1])
    return [float(by_step[:horizon].mean()) for horizon in HORIZONS], 1e6 * min(seconds)


def cases() -> list[Case]:
    """The cases to measure: chunks and single rows of random walks, and models in Python, with and without networks."""
    made = []
    for columns, horizon in ((1, 1), (7, 48)):
        walk = np.random.default_rng(0).normal(size=(ROWS, columns)).cumsum(axis=0)
        xs = (walk / walk.std(axis=0)).astype(np.float32)
        targets = np.tile(xs, horizon)
        for name, budget in BUDGETS.items():
            learner, run = learner_of(columns, tuple(range(1, horizon + 1)), budget)
            name = f"{columns} columns, {horizon} steps, {name}"
            made.append(Case(name, _scanning(learner, run, xs, targets, CHUNK), ROWS))
            made.append(Case(f"{name}, row by row", _scanning(learner, run, xs[:200], targets[:200], 1), 200))
    return [*made, *(Case(f"predict_one + learn_one, {name}", _pairs(**budget), SINGLE) for name, budget in MODELS)]


def _scanning(learner, run, xs, targets, rows):
    """A function that continues to learn at every call, since `scan` uses up its run."""
    runs = [run]

    def scan():
        for start in range(0, len(xs), rows):
            runs[0], _, _ = learner.scan(runs[0], xs[start : start + rows], targets[start : start + rows], outputs=True)

    return scan


def _pairs(**settings: float):
    """A function that forecasts from rows one at a time, and learns from each, with a model in Python."""
    import norewind

    draw = np.random.default_rng(0)
    model, columns = norewind.Forecaster(targets="a", inputs=["a", "b"], **settings), ("a", "b")

    def predict_and_learn():
        for values in draw.normal(size=(SINGLE, 2)).tolist():
            row = dict(zip(columns, values, strict=True))
            model.predict_one(row)
            model.learn_one(row)

    return predict_and_learn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rows", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files
    use_one_core()
    for row in measure(cases(), rounds=5):
        print(f"{row['case']:>50} {row['us']:8.1f} µs per row")
    for path in files:
        for name, budget in BUDGETS.items():
            found, microseconds = errors_of(path, budget)
            numbers = " / ".join(f"{value:.4f}" for value in found)
            print(f"{path.name}, {name}: {numbers} for steps 1 to {HORIZONS}, {microseconds:.0f} µs per row")


if __name__ == "__main__":
    main()
