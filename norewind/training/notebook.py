"""A learning curve that grows while `fit` trains in a notebook. Elsewhere, nothing is drawn or imported."""

import base64
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from norewind.training.hooks import Hooks

# The maximum number of points. When it is reached, every second one is dropped.
MAX_LINES = 1_000


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` if this process is the kernel of a notebook, else None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


@contextmanager
def live_plot(hooks: Hooks, unit: str, seconds: float | None = 1.0) -> Iterator[Hooks]:
    """Provide the hooks of `fit`, which in a notebook also draw the learning curve while it grows.

    Args:
        hooks: the hooks to extend.
        unit: the unit of the losses.
        seconds: the time between two drawings; None to draw nothing.
    """
    display = notebook_display()
    if display is None or seconds is None:
        yield hooks
        return
    plot = LivePlot(display, unit, seconds)
    try:
        yield hooks.adding(metrics=plot.add_line)
    finally:
        plot.draw()


class LivePlot:
    """One picture in the output of a cell, redrawn as lines of metrics arrive.

    Args:
        display: IPython's `display`.
        unit: the unit of the losses.
        seconds: the time between two drawings; longer if drawing would take more than a tenth of the time.
        clock: returns the time in seconds.
    """

    def __init__(
        self, display: Callable[..., Any], unit: str, seconds: float = 1.0, clock: Callable[[], float] = time.monotonic
    ):
        self.unit = unit
        self.seconds = seconds
        self.clock = clock
        self.lines: list[dict[str, Any]] = []
        self._show = partial(display, display_id=True)
        self._drawn = 0
        self._next = clock()

    def add_line(self, line: dict[str, Any]) -> None:
        """Add a line of metrics, and redraw the picture if it is time.

        Args:
            line: the line of metrics.
        """
        if len(self.lines) >= MAX_LINES:
            del self.lines[1::2]
        self.lines.append(line)
        if self.clock() >= self._next:
            self.draw()

    def draw(self) -> None:
        """Draw the curve, unless the picture is up to date."""
        if not self.lines or self._drawn == self.lines[-1]["samples"]:
            return
        from norewind.plotting.figures import curves_figure, rendered

        began = self.clock()
        content = rendered(curves_figure([("model", self.lines)], self.unit))
        picture = {"image/png": base64.b64encode(content).decode(), "text/plain": f"{len(self.lines)} points"}
        # The first call returns a handle that can replace the picture.
        if handle := self._show(picture, raw=True):
            self._show = handle.update
        now, self._drawn = self.clock(), self.lines[-1]["samples"]
        self._next = now + max(self.seconds, 10 * (now - began))
