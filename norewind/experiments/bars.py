"""Progress of many runs on a terminal: a bar each, with speed, time left and current loss."""

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from norewind.experiments.progress import final_words


class Status(ProgressColumn):
    """Speed and current loss of a run, or how many of all runs are finished."""

    def render(self, task: Task) -> Text:
        """The words beside a bar."""
        if "bpc" not in task.fields:
            return Text(f"{task.completed:.0f} of {task.total:.0f} finished")
        speed = f"{task.speed:,.0f} characters/s" if task.speed else "compiling"
        return Text(f"{speed}  {task.fields['bpc']}")


class Left(TimeRemainingColumn):
    """The time left of a run; the runs differ too much to tell it for all of them."""

    def render(self, task: Task) -> Text:
        """The time left, or nothing."""
        return super().render(task) if "bpc" in task.fields else Text("")


class Bars:
    """One bar per run that is under way, and one for all of them."""

    def __init__(self, runs: int, console: Console | None = None):
        """Bars go to standard error unless told otherwise."""
        self.rich = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            Status(),
            Left(),
            console=console or Console(stderr=True),
            speed_estimate_period=60,
        )
        self.overall = self.rich.add_task("all runs", total=runs)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self):
        """Start drawing."""
        self.rich.start()
        return self

    def __exit__(self, *_):
        """Leave the last state on the screen."""
        self.rich.stop()

    def already_there(self, name: str) -> None:
        """Count a run that was finished before."""
        self.rich.advance(self.overall)

    def begin(self, name: str, total: int) -> None:
        """Draw a new bar."""
        self.tasks[name] = self.rich.add_task(name, total=total, bpc="")

    def advance(self, name: str, done: int, bpc: float) -> None:
        """Move it."""
        self.rich.update(self.tasks[name], completed=done, bpc=f"{bpc:.4f} bpc")

    def end(self, name: str, recent: float | None, diverged_at: int | None) -> None:
        """Replace it by a line."""
        self._close(name, final_words(recent, diverged_at))

    def fail(self, name: str) -> None:
        """Replace it by a line that says so."""
        self._close(name, "failed")

    def _close(self, name: str, words: str) -> None:
        self.rich.remove_task(self.tasks.pop(name))
        self.rich.advance(self.overall)
        self.rich.console.print(f"{name}: {words}", highlight=False)
