"""One line about a run: live on a terminal, now and then elsewhere."""

import sys
import time
from typing import TextIO

LIVE_SECONDS = 0.2
PLAIN_SECONDS = 10


class ProgressLine:
    """Samples, speed, recent loss and the time left, on standard error."""

    def __init__(self, unit: str, start: int, total: int | None, quiet: bool = False, out: TextIO | None = None):
        """A run that begins at sample `start` and goes on to `total`, if that is known."""
        self.out = out or sys.stderr
        self.unit, self.total, self.quiet = unit, total, quiet
        self.live = self.out.isatty()
        self.first: tuple[float, int] | None = None
        self.spoke = time.monotonic()
        self.done, self.loss = start, None

    def chunk(self, samples: int, loss: float) -> None:
        """Some more samples were learned from, with this mean loss."""
        now = time.monotonic()
        if self.first is None:
            # The first chunk waits for the compiler, so the clock starts after it.
            self.first = now, samples
        weight = min(1, (samples - self.done) / 10_000)
        self.loss = loss if self.loss is None else self.loss + weight * (loss - self.loss)
        self.done = samples
        if not self.quiet and now - self.spoke >= (LIVE_SECONDS if self.live else PLAIN_SECONDS):
            self.spoke = now
            self._show(self.words(now))

    def words(self, now: float) -> str:
        """Where the run stands."""
        parts = [f"{self.done:,} samples"]
        if self.total:
            parts[0] = f"{self.done / self.total:4.0%} of {self.total:,} samples"
        began, start = self.first or (now, self.done)
        if now > began and self.done > start:
            speed = (self.done - start) / (now - began)
            parts.append(f"{speed:,.0f} a second")
            if self.total:
                parts.append(f"{_duration((self.total - self.done) / speed)} left")
        if self.loss is not None:
            parts.append(f"{self.loss:.4f} {self.unit}")
        return ", ".join(parts)

    def say(self, line: str) -> None:
        """A line of its own, above the live one."""
        if not self.quiet:
            self._clear()
            print(line, file=self.out, flush=True)

    def close(self) -> None:
        """Leave the terminal clean."""
        self._clear()

    def _show(self, words: str) -> None:
        if self.live:
            self.out.write(f"\r\x1b[2K{words}")
            self.out.flush()
        else:
            print(words, file=self.out, flush=True)

    def _clear(self) -> None:
        if self.live and not self.quiet:
            self.out.write("\r\x1b[2K")
            self.out.flush()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
