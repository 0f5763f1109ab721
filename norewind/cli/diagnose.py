"""`norewind diagnose`: how far each method is from the exact gradient."""

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from norewind.names import CellName


@dataclass(frozen=True)
class Stream:
    """What to read, as for `norewind train`."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """A file, or a built-in task (anbn, brackets)."""

    format: Literal["auto", "bytes", "text", "csv", "jsonl"] = "auto"
    """What the source holds. auto decides by the file name (.csv, .jsonl, .ndjson) and takes anything else as bytes."""

    samples: int = 100
    """How many samples to read."""

    seed: int = 0
    """Seed of the text of a task, of the noise, and of the weights of the first model."""

    alphabet_size: int = 256
    """text: the largest number of different symbols."""

    inputs: tuple[str, ...] = ()
    """csv, jsonl: the columns that the model sees; by default all numeric columns of the first row."""

    targets: tuple[str, ...] = ()
    """csv, jsonl: the columns to forecast; by default the inputs."""

    horizon: int = 1
    """csv, jsonl: how many rows ahead to forecast."""

    loss: Literal["squared", "gaussian"] = "squared"
    """csv, jsonl: the squared error, or the negative log likelihood of a Gaussian."""

    parameters: tuple[int, ...] = ()
    """anbn, brackets: the parameters of the task; by default the paper's."""


def diagnose(
    stream: Annotated[Stream, tyro.conf.arg(name="")],
    *,
    methods: str = "uoro,nobacktrack,bptt:5",
    cell: CellName = "elman",
    hidden: tuple[int, ...] = (8, 16, 32),
    keys: int = 100,
    repeats: int = 1,
    moving: Annotated[float | None, tyro.conf.arg(metavar="RATE", help_behavior_hint="(default: frozen)")] = None,
    readout: bool = False,
    out: Path = Path("results/diagnose"),
) -> None:
    """Measure bias, variance and cosine to the exact gradient, against time and against the size of the model.

    Args:
        stream: see below.
        methods: separated by commas, with options after a colon, e.g. uoro,uoro:window=4,rank=8,bptt:16.
        cell: the recurrent cell.
        hidden: the numbers of hidden units to measure.
        keys: how often to draw each method's noise.
        repeats: how many models of each size to draw. With several, the findings are means over them.
        moving: let the parameters move, by the exact gradient and Adam at this rate.
        readout: also compare the parameters that do not reach the state, whose gradient is exact under every method.
        out: the folder for table.md, diagnosis.json and diagnosis.png.
    """
    from norewind.cli.endings import friendly

    with friendly("diagnose"):
        import norewind
        from norewind.names import parse_methods
        from norewind.runs.settings import Settings

        try:
            chosen = parse_methods(methods)
            model, data = read(Settings(**asdict(stream), cell=cell))
            with Bar() as bar:
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
                    report=bar,
                )
        except ValueError as error:
            raise SystemExit(f"norewind diagnose: {error}") from None
        report.save(out)
    print(f"{report}\n\nTable, data and figure are in {out}.")


def read(settings: Any) -> tuple[Any, tuple[Any, Any]]:
    """The function of a size and a number that makes a model for a stream, and the samples of the stream."""
    from contextlib import closing
    from dataclasses import replace

    import jax
    import numpy as np

    from norewind.runs.build import cell_of, loss_of, open_stream

    if settings.samples < 1:
        raise ValueError(f"--samples must be at least 1, but it is {settings.samples:g}.")
    opened = open_stream(settings)
    with closing(opened.stream):
        samples = opened.stream.take(int(settings.samples))
    if samples is None:
        raise ValueError(f"{settings.source} is empty.")
    if not opened.shape.symbols and np.isnan(samples.targets).all():
        raise ValueError(
            f"none of the first {len(samples.targets)} samples has a known target (the first rows only tell the scale "
            "of a column): use more --samples."
        )

    @cache  # models of one size share their transition, and with it what is compiled
    def made(hidden):
        return cell_of(replace(settings, hidden=hidden), opened.shape)

    def model(hidden, number):
        params = made(hidden).init(jax.random.key(settings.seed + number))
        return made(hidden).transition, loss_of(settings, opened.shape), params, made(hidden).initial_state()

    return model, (samples.xs, samples.targets)


class Bar:
    """A progress bar on a terminal, nothing elsewhere. Called as the `report` of `diagnose`."""

    def __enter__(self) -> "Bar":
        from rich.console import Console
        from rich.progress import Progress

        self.progress = Progress(console=Console(stderr=True), transient=True)
        self.task = self.progress.add_task("compiling", total=None)
        self.progress.start()
        return self

    def __exit__(self, *_) -> None:
        self.progress.stop()

    def __call__(self, done: int, total: int, words: str) -> None:
        self.progress.update(self.task, completed=done, total=total, description=words)
