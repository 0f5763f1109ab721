"""`norewind reproduce`: the paper's experiments."""

from pathlib import Path
from typing import Annotated, Literal

import tyro


def reproduce(
    what: Annotated[Literal["influence", "brackets", "anbn", "all"], tyro.conf.Positional],
    *,
    out: Path | None = None,
    quick: bool = False,
    seeds: int | None = None,
    characters: float | None = None,
    rates: tuple[float, ...] = (1e-3, 3e-4, 1e-4),
    windows: tuple[int, ...] = (1, 10, 100, 200),
    controls: bool = True,
    run: bool = True,
    jobs: int | None = None,
) -> None:
    """Run the paper's experiments and write their figures, table, records and page.

    Finished runs are kept: an interrupted call goes on when it is repeated.

    Args:
        what: one experiment, or all of them.
        out: the folder to write to; by default results/paper, or results/quick with --quick.
        quick: a small version of everything, in a few minutes.
        seeds: runs per curve and per cell of the table (3 and, for influence balancing, 10).
        characters: length of each run on text (1e7 is understood).
        rates: learning rates of influence balancing, each for a column of the figure.
        windows: truncation lengths of influence balancing.
        controls: also run what could explain a difference to the paper (rho, precision, length).
        run: --no-run only draws and writes again from the records that are there.
        jobs: how many runs to make at the same time; by default one per core.
    """
    from norewind.experiments.reproduce import run_experiments

    run_experiments(
        what,
        out=out or Path("results/quick" if quick else "results/paper"),
        quick=quick,
        seeds=seeds,
        characters=None if characters is None else int(characters),
        rates=rates,
        windows=windows,
        controls=controls,
        run=run,
        jobs=jobs,
    )
