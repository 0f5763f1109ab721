"""Progress of one run or of many: bars on a terminal, occasional lines elsewhere."""

import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Task, TextColumn
from rich.progress import Progress as Bars

from norewind.scoring.metrics import ANY_FORECASTS
from norewind.wording import counted

SECONDS_BETWEEN_LINES = 10
# The losses shown are moving averages over about this many samples.
SMOOTHED_OVER = 10_000
# The speed is measured over the chunks of this many seconds.
SPEED_SECONDS = 600


@dataclass
class RunProgress:
    """The progress of one run and its losses.

    Attributes:
        task: its bar, which also measures its speed.
        unit: the unit of its losses.
        simple: the names of simple forecasts to compare with, by their entries in a line of metrics.
        first: the number of samples before those that the losses are averaged over.
        last: the number of samples at the latest line of metrics.
        last_printed: the time of the last line printed about the run.
        losses: the losses of the run and of simple forecasts, all averaged over the same samples.
    """

    task: Task
    unit: str
    simple: dict[str, str]
    first: int
    last: int
    last_printed: float
    losses: dict[str, float] = field(default_factory=dict)

    def average(self, line: dict[str, Any]) -> None:
        """Add a line of metrics to the averages.

        Args:
            line: the line of metrics.
        """
        samples = line["samples"]
        new = {entry: line[entry] for entry in ("loss", *self.simple) if line.get(entry) is not None}
        if new.keys() != self.losses.keys():
            # Only numbers over the same samples can be compared.
            self.first, self.losses = self.last, new
        weight = min(1, (samples - self.last) / max(1, min(SMOOTHED_OVER, samples - self.first)))
        self.losses = {entry: loss + weight * (new[entry] - loss) for entry, loss in self.losses.items()}
        self.last = samples

    def describe(self) -> str:
        """Describe the progress, the speed and the losses."""
        samples, total = int(self.task.completed), self.task.total
        parts = [f"{samples / total:4.0%} of {counted(int(total), 'sample')}" if total else counted(samples, "sample")]
        if self.task.speed:
            parts.append(f"{self.task.speed:,.0f} samples/s")
        if self.task.time_remaining:
            parts.append(f"{timedelta(seconds=self.task.time_remaining)} left")
        if "loss" in self.losses:
            simple = [f"{name} {self.losses[entry]:.4f}" for entry, name in self.simple.items() if entry in self.losses]
            parts.append(f"{self.losses['loss']:.4f} {self.unit}" + (f" ({', '.join(simple)})" if simple else ""))
        return ", ".join(parts)


class Progress:
    """Progress on standard error. For several runs, every line names its run, and one bar counts the finished ones.

    Args:
        runs: the number of runs; None if it varies.
        quiet: print only warnings.
        out: the file to write to instead of standard error.
    """

    def __init__(self, runs: int | None = 1, *, quiet: bool = False, out: TextIO | None = None):
        self.quiet, self.many = quiet, runs != 1
        # Every line is written whole: a narrow terminal may wrap it, but nothing is cut off.
        self.console = Console(file=out or sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
        columns = TextColumn("{task.description}", markup=False), BarColumn(20), TextColumn("{task.fields[words]}")
        self.bars = Bars(
            *columns,
            console=self.console,
            # Predictions on standard output bypass the bars, as bytes.
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
            disable=quiet or not self.console.is_terminal,
            get_time=time.monotonic,
            speed_estimate_period=SPEED_SECONDS,
        )
        self.runs: dict[str, RunProgress] = {}
        self._all = self.bars.add_task("all runs", total=runs, words="") if runs and self.many else None

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_) -> None:
        self.bars.stop()

    def begin(
        self, name: str, unit: str, samples: int = 0, total: int | None = None, simple: dict[str, str] = ANY_FORECASTS
    ) -> None:
        """Show a run.

        Args:
            name: the name of the run.
            unit: the unit of its losses.
            samples: the number of samples that it has already learned from.
            total: the number of samples at its end, if known.
            simple: the names of simple forecasts to compare with, by their entries in a line of metrics.
        """
        self.bars.add_task(name, total=total, completed=samples, words="compiling")
        self.runs[name] = RunProgress(self.bars.tasks[-1], unit, simple, samples, samples, time.monotonic())
        if self.many and self.bars.disable:
            self.say(f"{name}: started")

    def advance(self, name: str, samples: int) -> None:
        """Show how far a run is.

        Args:
            name: the name of the run.
            samples: the total number of samples that it has learned from.
        """
        run, now = self.runs[name], time.monotonic()
        self.bars.update(run.task.id, completed=samples)
        if not self.bars.disable:
            self.bars.update(run.task.id, words=run.describe())
        elif not self.quiet and now - run.last_printed >= SECONDS_BETWEEN_LINES:
            run.last_printed = now
            self.say(f"{name}: {run.describe()}" if self.many else run.describe())

    def end(self, name: str, words: str, *, over: bool = True) -> None:
        """Show that a run has ended.

        Args:
            name: the name of the run.
            words: how it ended.
            over: whether it has ended for good. Otherwise it will begin again.
        """
        if name in self.runs:
            self.bars.remove_task(self.runs.pop(name).task.id)
        if self._all is not None and over:
            self.bars.advance(self._all)
        self.say(f"{name}: {words}")

    def warn(self, line: str) -> None:
        """Print a warning, even when quiet.

        Args:
            line: the warning.
        """
        self.console.print(line)

    def say(self, line: str) -> None:
        """Print a line unless quiet.

        Args:
            line: the text; a newline is added.
        """
        if not self.quiet:
            self.console.print(line)
