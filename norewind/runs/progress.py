"""Progress of one run or of many: bars on a terminal, occasional lines elsewhere."""

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from norewind.runs.metrics import counted

SECONDS_BETWEEN_LINES = 10
# The loss shown is a moving average over about this many samples.
SMOOTHED_OVER = 10_000


@dataclass
class Line:
    """The progress of one run."""

    unit: str
    total: int | None
    samples: int
    start: int = 0
    loss: float | None = None
    first: tuple[float, int] | None = None
    spoke: float = field(default_factory=time.monotonic)
    beside: dict[str, float] = field(default_factory=dict)

    def words(self, now: float) -> str:
        parts = [counted(self.samples, "sample")]
        if self.total:
            parts[0] = f"{self.samples / self.total:4.0%} of {counted(self.total, 'sample')}"
        began, start = self.first or (now, self.samples)
        if now > began and self.samples > start:
            speed = (self.samples - start) / (now - began)
            parts.append(f"{speed:,.0f} samples/s")
            if self.total:
                parts.append(f"{duration((self.total - self.samples) / speed)} left")
        if self.loss is not None:
            parts.append(f"{self.loss:.4f} {self.unit}")
            if self.beside:
                parts[-1] += f" ({', '.join(f'{name} {value:.4f}' for name, value in self.beside.items())})"
        return ", ".join(parts)


class Progress:
    """Progress on standard error, or `out`. Of several runs, every line names its run, and there is a bar for all.

    `runs` is None if they come and go.
    """

    def __init__(self, runs: int | None = 1, *, quiet: bool = False, out: TextIO | None = None):
        self.quiet, self.many = quiet, runs != 1
        # Every line is written whole: a narrow terminal may wrap it, but nothing is cut off.
        self.console = Console(file=out or sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.lines: dict[str, Line] = {}
        self.bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._all: TaskID | None = None
        if self.console.is_terminal and not quiet:
            shown = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[words]}"),
            )
            # Predictions on standard output go around the bars, as bytes.
            self.bars = Bars(*shown, console=self.console, redirect_stdout=False, redirect_stderr=False, transient=True)
            if runs and self.many:
                self._all = self.bars.add_task("all runs", total=runs, words="")

    def __enter__(self) -> "Progress":
        if self.bars:
            self.bars.start()
        return self

    def __exit__(self, *_) -> None:
        if self.bars:
            self.bars.stop()

    def begin(self, name: str, unit: str, samples: int = 0, total: int | None = None) -> None:
        self.lines[name] = Line(unit, total, samples, samples)
        if self.bars:
            self._tasks[name] = self.bars.add_task(name, total=total, completed=samples, words="compiling")
        elif self.many:
            self.say(f"{name}: started")

    def advance(self, name: str, samples: int, loss: float) -> None:
        """A run has learned from this many samples in total, the newest with this mean loss."""
        line, now = self.lines[name], time.monotonic()
        # The first chunk waits for the compiler, so the clock starts after it.
        line.first = line.first or (now, samples)
        weight = (samples - line.samples) / max(1, min(SMOOTHED_OVER, samples - line.start))
        line.loss = loss if line.loss is None else line.loss + min(1, weight) * (loss - line.loss)
        line.samples = samples
        if self.bars:
            self.bars.update(self._tasks[name], completed=samples, words=line.words(now))
        elif not self.quiet and now - line.spoke >= SECONDS_BETWEEN_LINES:
            line.spoke = now
            self.say(f"{name}: {line.words(now)}" if self.many else line.words(now))

    def compare(self, name: str, beside: dict[str, float | None]) -> None:
        """Show the losses of simple forecasts next to the loss."""
        self.lines[name].beside = {words: value for words, value in beside.items() if value is not None}

    def end(self, name: str, words: str, *, over: bool = True) -> None:
        """A run has ended, and is `over` unless it begins again."""
        self.lines.pop(name, None)
        if self.bars and name in self._tasks:
            self.bars.remove_task(self._tasks.pop(name))
        if self.bars and self._all is not None and over:
            self.bars.advance(self._all)
        self.say(f"{name}: {words}")

    def warn(self, line: str) -> None:
        """Print a warning, even when quiet."""
        self.console.print(line)

    def say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(line)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as in 1:02:03 or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
