"""SK-RTRL's tables of chaotic and real series, with our estimators.

python -m examples.sketched_rtrl --data FOLDER            # laser.txt and sunspot.txt are in the folder
python -m examples.sketched_rtrl --data FOLDER --quick    # a tenth of the samples and one seed
"""

from pathlib import Path
from typing import Annotated

import tyro

from norewind.cli.common import command_line
from norewind.training.settings import option

PROGRAM = "python -m examples.sketched_rtrl"
QUICK_SAMPLES = 1_500


def study(
    *,
    data: Path,
    out: Annotated[Path | None, option("FOLDER", "results/sketched-rtrl, or results/quick/sketched-rtrl")] = None,
    quick: bool = False,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    methods: Annotated[tuple[str, ...] | None, option("NAME", "all methods of the tables")] = None,
    report_only: bool = False,
) -> None:
    """Train a tanh network of 64 units on five series with every method, and write the tables.

    Finished runs are kept: repeat the command to continue an interrupted one. Methods can be trained by several
    commands at the same time.

    Args:
        data: The folder with the real series: laser.txt (Santa Fe, set A) and sunspot.txt (WDC-SILSO, monthly).
        out: The folder of records and tables.
        quick: A tenth of the samples and one seed, too short for conclusions.
        seeds: The seeds. Cosines are measured with seed 0 only.
        methods: Only these methods.
        report_only: Train nothing; write the tables from existing records.
    """
    from examples.sketched_rtrl.report import report
    from examples.sketched_rtrl.runs import METHODS, SAMPLES, table_plan, train_table_run
    from norewind.sweeps.record import read_records, versions, write_record

    samples = QUICK_SAMPLES if quick else SAMPLES
    folder = out or Path("results/quick/sketched-rtrl" if quick else "results/sketched-rtrl")
    if not report_only:
        for name, run in table_plan(methods or METHODS, seeds[:1] if quick else seeds, samples).items():
            if name not in read_records(folder):
                write_record(folder, name, train_table_run(data, run) | versions())
    print(report(folder, samples))


def main() -> None:
    with command_line(PROGRAM, mistakes=(ValueError,)):
        tyro.cli(study, prog=PROGRAM)


if __name__ == "__main__":
    main()
