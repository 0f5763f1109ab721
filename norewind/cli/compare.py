"""`norewind compare`: methods side by side."""

from pathlib import Path
from typing import Annotated

import tyro

from norewind.cli.processes import HERE, Processes
from norewind.runs.settings import Settings

DEFAULTS = Settings(samples=1e5)


def compare(
    settings: Annotated[Settings, tyro.conf.arg(name="")] = DEFAULTS,
    *,
    methods: str = "uoro,uoro:window=16,bptt:16,readout_only",
    seeds: int = 1,
    out: Path = Path("results/compare"),
    processes: Annotated[Processes, tyro.conf.arg(name="")] = HERE,
    quiet: bool = False,
) -> None:
    """Train several methods on the same stream from the same initial parameters, and show one table and figure.

    The source and all other options are those of `norewind train`, except that --methods
    replaces --method. Finished runs are kept in the folder: repeat the command to continue
    an interrupted one.

        norewind compare anbn --methods uoro,rtrl,bptt:16 --hidden 16 --seeds 3
        norewind compare sensors.csv --targets power --methods uoro:window=4,rank=8,bptt:4

    Args:
        settings: See below.
        methods: The methods, separated by commas, with options after a colon: auto,uoro:window=4,rank=8,rtrl,bptt:16.
        seeds: The number of runs per method, with seeds from --seed on. Several give means and standard errors.
        out: The folder for comparison.md, .csv and .png, and for the records of the runs.
        processes: See below.
        quiet: Show no progress.
    """
    if settings.method != DEFAULTS.method:
        raise SystemExit("norewind compare: name the methods with --methods, not with --method.")
    from norewind.instruments.compare import compare as run
    from norewind.names import split_methods
    from norewind.runs.sweep import SweepError

    try:
        result = run(
            split_methods(methods),
            settings.settled(),
            seeds=seeds,
            out=out,
            jobs=processes.jobs,
            ray=processes.ray,
            quiet=quiet,
        )
    except (SweepError, ValueError) as error:
        raise SystemExit(f"norewind compare: {error}") from None
    print(f"{result}\n\nTable, figure and records are in {out}.")
