"""`norewind diagnose`: how far each method is from the exact gradient."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any

import tyro

from norewind.names import CellName
from norewind.runs.settings import Settings, StreamSettings, option


def diagnose(
    stream: Annotated[StreamSettings, tyro.conf.arg(name="")],
    *,
    methods: str = "uoro,nobacktrack,bptt:5",
    cell: CellName = "elman",
    hidden: tuple[int, ...] = (8, 16, 32),
    samples: Annotated[float, option("N", "100")] = 100,
    keys: int = 100,
    repeats: int = 1,
    moving: Annotated[float | None, option("RATE", "frozen")] = None,
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
        moving: Train the parameters along the stream, with the exact gradient and Adam at this learning rate.
        readout: Also compare the parameters that do not reach the state, whose gradient is exact under every method.
        out: The folder for table.md, diagnosis.json and diagnosis.png.
    """
    from rich.console import Console
    from rich.progress import Progress

    import norewind
    from norewind.names import parse_methods

    try:
        chosen = parse_methods(methods)
        model, data = read(Settings(**vars(stream), cell=cell, method="rtrl"), int(min(samples, 1e9)))
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("compiling", total=None)
            report = norewind.diagnose(
                chosen,
                model,
                data,
                hidden=hidden,
                repeats=repeats,
                keys=keys,
                seed=stream.seed,
                optimizer=None if moving is None else norewind.adam(moving),
                readout=readout,
                report=lambda done, total, words: progress.update(bar, completed=done, total=total, description=words),
            )
    except ValueError as error:
        raise SystemExit(f"norewind diagnose: {error}") from None
    report.save(out)
    print(f"{report}\n\nTable, data and figure are in {out}.")


def read(settings: Settings, count: int) -> tuple[Any, tuple[Any, Any]]:
    """The function of a size and a number that makes a model for a stream, and the samples of the stream."""
    from dataclasses import replace

    import jax
    import numpy as np

    from norewind import checks
    from norewind.learners.steps import row_offsets, shift_columns
    from norewind.runs.build import cell_of, loss_of, open_stream

    checks.at_least_one("--samples", count)
    opened = open_stream(settings)
    with opened.stream:
        rows = opened.stream.take(count + opened.shape.horizon)
    assert rows is not None  # an empty source is an error
    # A sample is a row and the targets that come up to `horizon` rows later.
    steps = opened.shape.steps
    xs = rows.xs[: max(0, len(rows.xs) - steps[-1])]
    targets = rows.targets[: len(xs)].copy()
    if not opened.shape.symbols:
        shift_columns(rows.targets, row_offsets(steps, opened.shape.targets), targets)
    if not opened.shape.symbols and np.isnan(targets).all():
        # The first rows only tell the scale of a column.
        known = f"none of the first {len(targets)} samples has a known target that varies"
        raise ValueError(f"{known}: use more --samples, or other --targets.")

    @cache  # models of one size share their transition, and with it what is compiled
    def made(hidden):
        return cell_of(replace(settings, hidden=hidden), opened.shape)

    def model(hidden, number):
        params = made(hidden).init(jax.random.key(settings.seed + number))
        return made(hidden).transition, loss_of(settings, opened.shape), params, made(hidden).initial_state()

    return model, (xs, targets)
