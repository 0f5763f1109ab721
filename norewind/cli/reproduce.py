"""`norewind reproduce`: the paper's experiments, and those on long memory."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from norewind.cli.processes import HERE, Processes
from norewind.runs.settings import option


def reproduce(
    what: Annotated[Literal["influence", "brackets", "anbn", "all", "memory"], tyro.conf.Positional],
    *,
    out: Annotated[Path | None, option("FOLDER", "results/paper, results/quick or results/memory")] = None,
    quick: bool = False,
    seeds: Annotated[int | None, option("N", "anbn 5, brackets 3, influence 10, memory 2")] = None,
    samples: Annotated[float | None, option("N", "1e7; memory 1e6 and 2e6")] = None,
    rates: tuple[float, ...] = (1e-3, 3e-4, 1e-4),
    windows: tuple[int, ...] = (1, 10, 100, 200),
    controls: bool = True,
    report_only: bool = False,
    processes: Annotated[Processes, tyro.conf.arg(name="")] = HERE,
) -> None:
    """Run the paper's experiments and write their figures, table, records and page.

    Finished runs are kept: repeat the command to continue an interrupted one.

    Args:
        what: One experiment of the paper, or all of them; or memory, which is not from the paper.
        out: The folder to write to.
        quick: Run influence balancing in full, and runs on text that are too short to draw conclusions (two minutes).
        seeds: The number of runs per curve and per cell of the table.
        samples: The length of each run on text; can be written as 1e7.
        rates: Learning rates of influence balancing, one for each column of the figure.
        windows: Truncation lengths of influence balancing.
        controls: Also run what could explain a difference from the paper (rho, precision, length).
        report_only: Train nothing; write figures, table and page from existing records.
        processes: See below.
    """
    if samples is not None and not samples >= 100:
        raise SystemExit(f"norewind reproduce: --samples must be at least 100, but it is {samples:g}.")
    for name, count in (("seeds", seeds), ("jobs", processes.jobs)):
        if count is not None and count < 1:
            raise SystemExit(f"norewind reproduce: --{name} must be at least 1, but it is {count}.")
    if what == "memory":
        from norewind.paper.memory import reproduce_memory

        length = int(samples) if samples else (20_000 if quick else None)
        folder = out or Path("results/quick/memory" if quick else "results/memory")
        options = {"jobs": processes.jobs, "ray": processes.ray, "report_only": report_only}
        print(reproduce_memory(folder, samples=length, seeds=seeds or 2, **options))
        return
    from norewind.paper.balancing import SEEDS, influence_plan
    from norewind.paper.plans import text_plan
    from norewind.paper.report import reproduce as run

    length = None if samples is None else int(samples)
    plan = text_plan(what, quick=quick, seeds=seeds, samples=length, controls=controls)
    influence = (
        [] if what in ("anbn", "brackets") else influence_plan(seeds=seeds or SEEDS, rates=rates, windows=windows)
    )
    folder = out or Path("results/quick" if quick else "results/paper")
    run(plan, influence, folder, jobs=processes.jobs, ray=processes.ray, report_only=report_only)
