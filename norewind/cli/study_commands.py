"""`norewind compare`, `diagnose` and `generate`: comparisons of methods, and texts to compare them on."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import tyro

from norewind.cli.common import THIS_MACHINE, Processes, check_range, progress_bar
from norewind.cli.terminal import drop_output
from norewind.training.registry import CellName, TaskName
from norewind.training.settings import Settings, SettingsError, StreamSettings, check_scopes, option

COMPARE_DEFAULTS = Settings(samples=1e5)
CHUNK = 100_000


def compare(
    settings: Annotated[Settings, tyro.conf.arg(name="")] = COMPARE_DEFAULTS,
    *,
    methods: str = "uoro,uoro:window=16,bptt:16,readout_only",
    seeds: int = 1,
    rates: tuple[float, ...] = (),
    out: Path = Path("results/compare"),
    processes: Annotated[Processes, tyro.conf.arg(name="")] = THIS_MACHINE,
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
        seeds: The number of runs per method, with seeds starting at --seed. Several give means and standard errors.
        rates: Learning rates to try in place of --rate; each method is shown at its best.
        out: The folder for comparison.md, .csv and .png, and for the records of the runs.
        processes: See below.
        quiet: Show no progress.
    """
    if settings.method != COMPARE_DEFAULTS.method:
        raise SettingsError("name the methods with --methods, not with --method.")
    from norewind.analysis.compare import compare as run
    from norewind.training.registry import split_methods

    chosen, shared = split_methods(methods), settings.with_format()
    result = run(chosen, shared, seeds=seeds, rates=rates or None, out=out, quiet=quiet, **vars(processes))
    print(f"{result}\n\nTable, figure and records are in {out}.")


def diagnose(
    stream: Annotated[StreamSettings, tyro.conf.arg(name="")],
    *,
    methods: str = "uoro,nobacktrack,bptt:5",
    cell: CellName = "elman",
    hidden: tuple[int, ...] = (8, 16, 32),
    samples: Annotated[float, option("N", "100")] = 100,
    keys: int = 100,
    repeats: int = 1,
    moving: Annotated[tuple[float, ...], option("RATE", "frozen")] = (),
    readout: bool = False,
    out: Path = Path("results/diagnose"),
) -> None:
    """Measure each method's bias, variance and cosine to the exact gradient, along a stream and by model size.

    Args:
        stream: See below.
        methods: The methods, separated by commas, with options after a colon: uoro,uoro:window=4,rank=8,bptt:16.
        cell: The recurrent cell.
        hidden: The numbers of hidden units to measure.
        samples: The number of samples to read; can be written as 1e3.
        keys: The number of times to draw each method's noise.
        repeats: The number of random models of each size. With several, the results are means over them.
        moving: Train the parameters along the stream, with the exact gradient and Adam at this learning rate, or at
            each of several.
        readout: Also compare the parameters that do not reach the state, whose gradient is exact under every method.
        out: The folder for table.md, diagnosis.json and diagnosis.png.
    """
    import norewind
    from norewind.training.registry import parse_method, split_methods

    chosen = [parse_method(method) for method in split_methods(methods)]
    settings = Settings(**vars(stream), cell=cell, method="rtrl")
    check_scopes(settings, command="diagnose")
    model, data = models_and_samples(settings, int(min(samples, 1e9)))
    with progress_bar("compiling") as update:
        report = norewind.diagnose(
            chosen,
            model,
            data,
            hidden=hidden,
            repeats=repeats,
            keys=keys,
            seed=stream.seed,
            rates=moving or None,
            readout=readout,
            report=lambda done, total, task: update(completed=done, total=total, description=task),
        )
    report.save(out)
    print(f"{report}\n\nTable, data and figure are in {out}.")


def models_and_samples(settings: Settings, count: int) -> tuple[Any, tuple[Any, Any]]:
    """Read the samples of a stream, and make models for it.

    Args:
        settings: the settings of the stream and the cell.
        count: the number of samples.

    Returns:
        A function from a number of hidden units and a number to a model, and the samples.

    Raises:
        ValueError: no sample has a known target.
    """
    import jax
    import numpy as np

    from norewind.core import checks
    from norewind.training.build import cell_of, loss_of
    from norewind.training.open_stream import open_stream

    checks.check_at_least_one("--samples", count)
    opened = open_stream(settings)
    with opened.stream:
        rows = opened.stream.take(count + opened.shape.horizon)
    assert rows is not None  # an empty source is an error
    # A sample is a row and the targets that arrive up to `horizon` rows later.
    steps = opened.shape.steps
    xs = rows.xs[: max(0, len(rows.xs) - steps[-1])]
    targets = rows.targets[: len(xs)].copy()
    if not opened.shape.symbols:
        width = opened.shape.targets
        for index, step in enumerate(steps):
            block = slice(index * width, (index + 1) * width)
            targets[:, block] = rows.targets[step : step + len(xs), block]
    if not opened.shape.symbols and np.isnan(targets).all():
        # The first rows only determine the scale of a column.
        known = f"none of the first {len(targets)} samples has a known target that varies"
        raise ValueError(f"{known}: use more --samples, or other --targets.")

    @cache  # models of one size share their transition, and thus compiled programs
    def cell(hidden):
        return cell_of(replace(settings, hidden=hidden), opened.shape)

    def model(hidden, number):
        params = cell(hidden).init(jax.random.key(settings.seed + number))
        return cell(hidden).transition, loss_of(settings, opened.shape), params, cell(hidden).initial_state()

    return model, (xs, targets)


def generate(
    name: Annotated[TaskName, tyro.conf.Positional, tyro.conf.arg(name="task")],
    *,
    samples: float = 1e6,
    seed: int = 0,
    parameters: Annotated[tuple[int, ...], option("INT ...", "the paper's")] = (),
) -> None:
    """Write the text of a task to standard output.

    Args:
        name: The task, aⁿbⁿ or distant brackets.
        samples: The number of characters to write; can be written as 1e6.
        seed: The seed of the random text.
        parameters: The parameters of the task: k l for anbn (the paper's are 1 32), s k a for brackets (1 5 10).
    """
    from norewind.training.registry import task

    check_range("--samples", samples, 0)
    check_range("--seed", seed, 0)
    try:
        text = task(name, parameters)
    except TypeError as error:
        raise SettingsError(str(error)) from None
    try:
        for start, chunk in zip(range(0, int(samples), CHUNK), text.chunks(seed, CHUNK), strict=False):
            sys.stdout.write(text.decode(chunk[: int(samples) - start]))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (head, for example).
        drop_output()
