"""The paper's experiments, and runs on long memory, which are not from the paper.

python -m examples.paper all            # or influence, brackets, anbn, memory, clock
python -m examples.paper all --quick    # influence balancing in full, the rest too short to draw conclusions
python -m examples.paper copying        # KF-RTRL at its published size: hours; can be interrupted at any time
"""

from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import tyro

from norewind.cli.common import THIS_MACHINE, Processes, check_range, command_line
from norewind.training.settings import option

Experiment = Literal["influence", "brackets", "anbn", "all", "memory", "clock", "copying"]
PROGRAM = "python -m examples.paper"


def study(
    what: Annotated[Experiment, tyro.conf.Positional],
    *,
    out: Annotated[Path | None, option("FOLDER", "results/paper, results/quick or results/memory")] = None,
    quick: bool = False,
    seeds: Annotated[int | None, option("N", "anbn 5, brackets 3, influence 10, memory 2")] = None,
    samples: Annotated[float | None, option("N", "1e7; memory 1e6 and 2e6")] = None,
    rates: tuple[float, ...] = (1e-3, 3e-4, 1e-4),
    windows: tuple[int, ...] = (1, 10, 100, 200),
    cells: tuple[Literal["rnn", "gru"], ...] = ("rnn", "gru"),
    units: int = 128,
    controls: bool = True,
    report_only: bool = False,
    processes: Annotated[Processes, tyro.conf.arg(name="")] = THIS_MACHINE,
) -> None:
    """Run the paper's experiments and write their figures, table, records and page.

    Finished runs are kept: repeat the command to continue an interrupted one.

    Args:
        what: One experiment of the paper, or all of them; or memory, which is not from the paper; or clock, two
            readings of the paper's learning rate; or copying, KF-RTRL on growing sequences at its published size.
        out: The folder to write to.
        quick: Run influence balancing in full, but text only briefly, too short for conclusions (a few minutes).
        seeds: The number of runs per curve and per cell of the table.
        samples: The length of each run on text; can be written as 1e7.
        rates: Learning rates of influence balancing, one for each column of the figure, and of copying.
        windows: Truncation lengths of influence balancing.
        cells: The cells of copying.
        units: The number of hidden units of copying.
        controls: Also run controls that could explain a difference from the paper (rho, precision, length).
        report_only: Train nothing; write figures, table and page from existing records.
        processes: See below.
    """
    check_range("--samples", samples, 100)
    check_range("--seeds", seeds, 1)
    check_range("--jobs", processes.jobs, 1)
    length = None if samples is None else int(samples)
    options = {**vars(processes), "report_only": report_only}
    if what == "memory":
        from examples.paper.memory import reproduce_memory

        length = length or (20_000 if quick else None)
        folder = out or Path("results/quick/memory" if quick else "results/memory")
        print(reproduce_memory(folder, samples=length, seeds=seeds or 2, **options))
        return
    if what == "clock":
        from examples.paper.clock import reproduce_clock

        print(reproduce_clock(out or Path("results/clock")))
        return
    if what == "copying":
        from examples.paper.batched_copying import CopyingRun, reproduce_copying

        folder = out or Path("results/quick/copying" if quick else "results/copying")
        size = CopyingRun(hidden=8, streams=2, samples=2_000) if quick else CopyingRun(hidden=units)
        size = size._replace(samples=length or size.samples)
        kinds = product(range(seeds or 1), cells, rates)
        print(reproduce_copying(folder, [size._replace(seed=s, cell=cell, rate=rate) for s, cell, rate in kinds]))
        return
    from examples.paper.balancing import SEEDS, influence_plan
    from examples.paper.report import reproduce
    from examples.paper.text_runs import text_plan

    plan = text_plan(what, quick=quick, seeds=seeds, samples=length, controls=controls)
    texts_only = what in ("anbn", "brackets")
    influence = {} if texts_only else influence_plan(seeds=seeds or SEEDS, rates=rates, windows=windows)
    folder = out or Path("results/quick" if quick else "results/paper")
    reproduce(plan, influence, folder, **options)


def main() -> None:
    with command_line(PROGRAM, mistakes=(ValueError,)):
        tyro.cli(study, prog=PROGRAM)


if __name__ == "__main__":
    main()
