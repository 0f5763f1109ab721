"""A learning curve that grows while `fit` trains in a notebook. Elsewhere, nothing here imports IPython or draws."""

import base64
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

# Between two drawings; longer where drawing would take more than a tenth of the time.
SECONDS = 1.0
# Points that are kept; beyond it, every second one is.
MOST = 1_000


def notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` where this process is the kernel of a notebook, else None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


@contextmanager
def live_plot(hooks: Any, unit: str) -> Iterator[Any]:
    """The hooks of `fit`, which in a notebook also draw every line of metrics, unless `hooks.live` is False."""
    display = notebook_display() if hooks.live else None
    if display is None:
        yield hooks
        return
    plot = LivePlot(display, unit)

    def on_metrics(line: dict[str, Any]) -> None:
        hooks.metrics(line)
        plot.see(line)

    try:
        yield replace(hooks, metrics=on_metrics)
    finally:
        plot.draw()


class LivePlot:
    """One picture in the output of a cell, drawn again as lines of metrics come in."""

    def __init__(self, display: Callable[..., Any], unit: str, clock: Callable[[], float] = time.monotonic):
        self.display, self.unit, self.clock = display, unit, clock
        self.lines: list[dict[str, Any]] = []
        self.handle: Any = None
        self._drawn, self._next = 0, clock()

    def see(self, line: dict[str, Any]) -> None:
        if len(self.lines) >= MOST:
            del self.lines[1::2]
        self.lines.append(line)
        if self.clock() >= self._next:
            self.draw()

    def draw(self) -> None:
        """Show what has come, if it is not shown yet."""
        if not self.lines or self._drawn == self.lines[-1]["samples"]:
            return
        from norewind.instruments.figures import as_png, curves_figure

        began = self.clock()
        content = as_png(curves_figure([("model", self.lines)], self.unit))
        picture = {"image/png": base64.b64encode(content).decode(), "text/plain": f"{len(self.lines)} points"}
        if self.handle is None:
            self.handle = self.display(picture, raw=True, display_id=True)
        else:
            self.handle.update(picture, raw=True)
        now, self._drawn = self.clock(), self.lines[-1]["samples"]
        self._next = now + max(SECONDS, 10 * (now - began))
