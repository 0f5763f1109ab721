"""The default of norewind, single methods, and other forecasters and compressors on eight real streams.

python -m examples.real_data --out results/real-data            # everything
python -m examples.real_data baselines runs report --out ...    # some of it
"""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from norewind.cli.common import THIS_MACHINE, Processes, command_line
from norewind.training.settings import option

PROGRAM = "python -m examples.real_data"
Step = Literal["baselines", "runs", "seeds", "compress", "report"]


def study(
    steps: Annotated[tuple[Step, ...], tyro.conf.Positional] = ("baselines", "runs", "seeds", "compress", "report"),
    *,
    out: Path = Path("runs/real-data"),
    cache: Path = Path("runs/cache"),
    samples: Annotated[float | None, option("N", "those of the study")] = None,
    processes: Annotated[Processes, tyro.conf.arg(name="")] = THIS_MACHINE,
) -> None:
    """Compare the default of norewind, single methods, and other forecasters and compressors on eight real streams.

    baselines: other forecasters and compressors. runs: auto, and single methods with five rates and then three seeds.
    seeds: auto with twenty seeds, also on disturbed streams. compress: the texts, compressed with auto and decompressed
    again. report: tables and the figure.

    Finished work is kept: repeat the command to continue an interrupted one.

    Args:
        steps: The parts of the study to run, always in the order of the default.
        out: The folder of records, tables and the figure.
        cache: The folder of downloaded data.
        samples: At most this many samples of each stream.
        processes: See below.
    """
    from examples.real_data import fetch
    from examples.real_data.baselines import find_baselines
    from examples.real_data.coded import compress_texts
    from examples.real_data.disturb import write_copies
    from examples.real_data.plan import STREAMS, first_plan, second_plan, seeds_plan
    from examples.real_data.report import report
    from norewind.sweeps.sweep import sweep

    if set(steps) != {"report"}:
        for item in (*(stream.item for stream in STREAMS), fetch.WATER_WITH_OUTAGES):
            fetch.fetched(item, cache)
    if "baselines" in steps:
        find_baselines(cache, out, samples, processes.jobs)
    if "runs" in steps:
        found = sweep(first_plan(cache, samples), out, **vars(processes))
        sweep(second_plan(cache, found, samples), out, **vars(processes))
    if "seeds" in steps:
        for stream in STREAMS:
            if not stream.is_text:
                rows = int(stream.settings.samples or 0)
                write_copies(cache / stream.item.file, stream.settings.inputs, rows)
        sweep(seeds_plan(cache, samples), out, **vars(processes))
    if "compress" in steps:
        compress_texts(cache, out, samples)
    if "report" in steps:
        print(report(cache, out, samples))


def main() -> None:
    with command_line(PROGRAM):
        tyro.cli(study, prog=PROGRAM)


if __name__ == "__main__":
    main()
