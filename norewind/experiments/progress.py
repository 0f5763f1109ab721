"""Progress of many runs: bars on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Protocol, TextIO

SECONDS_BETWEEN_LINES = 30


class Progress(Protocol):
    """What the runs report to."""

    def already_there(self, name: str) -> None:
        """A run was finished by an earlier call."""
        ...

    def begin(self, name: str, total: int) -> None:
        """A run starts."""
        ...

    def advance(self, name: str, done: int, bpc: float) -> None:
        """A run has processed so many characters and stands at this loss."""
        ...

    def end(self, name: str, recent: float | None, diverged_at: int | None) -> None:
        """A run is finished, and its record written."""
        ...

    def fail(self, name: str) -> None:
        """A run broke off."""
        ...


class Lines:
    """Plain lines, for logs."""

    def __init__(self, out: TextIO | None = None, interval: float = SECONDS_BETWEEN_LINES):
        """Lines go to standard error unless told otherwise."""
        self.out = out or sys.stderr
        self.interval = interval
        self.runs: dict[str, dict] = {}

    def __enter__(self):
        """Nothing to prepare."""
        return self

    def __exit__(self, *_):
        """Nothing to clean up."""

    def already_there(self, name: str) -> None:
        """Say that nothing is left to do."""
        self._print(f"{name}: finished before")

    def begin(self, name: str, total: int) -> None:
        """Say that it starts."""
        now = time.monotonic()
        self.runs[name] = {"total": total, "spoke": now, "first": None}
        self._print(f"{name}: starts")

    def advance(self, name: str, done: int, bpc: float) -> None:
        """Say where it stands, now and then."""
        run, now = self.runs[name], time.monotonic()
        if run["first"] is None:
            # The first report tells where a resumed run began; before it the loop is compiled.
            run["first"] = (now, done)
        if now - run["spoke"] < self.interval:
            return
        run["spoke"] = now
        began, start = run["first"]
        speed = (done - start) / max(now - began, 1e-9)
        left = (run["total"] - done) / speed if speed > 0 else float("inf")
        self._print(
            f"{name}: {done / run['total']:4.0%} of {run['total']:g} characters, {bpc:.4f} bpc, "
            f"{speed:,.0f} characters/s, {left:.0f} s left"
        )

    def end(self, name: str, recent: float | None, diverged_at: int | None) -> None:
        """Say how it ended."""
        self._print(f"{name}: finished, {final_words(recent, diverged_at)}")

    def fail(self, name: str) -> None:
        """Say that it broke off."""
        self._print(f"{name}: failed")

    def _print(self, line: str) -> None:
        print(line, file=self.out, flush=True)


def make_progress(runs: int):
    """Bars for so many runs when standard error is a terminal, otherwise lines. Use it with `with`."""
    if not sys.stderr.isatty():
        return Lines()
    from norewind.experiments.bars import Bars

    return Bars(runs)


def final_words(recent: float | None, diverged_at: int | None) -> str:
    """How a run ended, in a few words."""
    level = "no finite loss" if recent is None else f"{recent:.4f} bpc"
    return level if diverged_at is None else f"{level}, diverged at {diverged_at:,} characters"
