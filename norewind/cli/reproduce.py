"""`norewind reproduce`: the paper's experiments."""

from pathlib import Path
from typing import Annotated, Literal

import tyro


def reproduce(
    what: Annotated[Literal["influence", "brackets", "anbn", "all"], tyro.conf.Positional],
    *,
    out: Path = Path("results/paper"),
    quick: bool = False,
    seeds: int | None = None,
    characters: float | None = None,
    controls: bool = True,
    jobs: int | None = None,
) -> None:
    """Run the paper's experiments and write their figures, table, records and page.

    Finished runs are kept: an interrupted call goes on when it is repeated.

    Args:
        what: one experiment, or all of them.
        out: the folder to write to.
        quick: a small version of everything, in a few minutes.
        seeds: runs per curve and per cell of the table.
        characters: length of each run on text (1e7 is understood).
        controls: also run what could explain a difference to the paper (rho, precision, length).
        jobs: how many runs to make at the same time; by default one per core.
    """
    from norewind.experiments.reproduce import run_experiments

    run_experiments(
        what,
        out=out,
        quick=quick,
        seeds=seeds,
        characters=None if characters is None else int(characters),
        controls=controls,
        jobs=jobs,
    )
