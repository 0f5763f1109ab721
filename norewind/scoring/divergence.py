"""Detection of divergence from the lines of metrics."""

from typing import Any

import msgspec

from norewind.errors import Diverged
from norewind.scoring.tally import Number
from norewind.streams.position import Count

# The number of bad lines in a row that count as divergence. A single one may be an unusual part of the stream.
PATIENCE_LINES = 5
# Below this fraction of the baseline, a run has learned something that it can lose.
LEARNED_FRACTION = 0.9
# Healthy runs stay below a thousandth of this (an influence of 10⁶, which is about the square of the norm).
CARRY_LIMIT = 1e6
# The number of samples that the detector of divergence averages: the mean of fewer says little.
DETECTION_SAMPLES = 10_000


class DivergenceDetector(msgspec.Struct, forbid_unknown_fields=True):
    """Checks every line of metrics, and raises `Diverged`.

    A run has diverged when the norm of its carry exceeds `CARRY_LIMIT`, or when its
    loss has been above the baseline for `PATIENCE_LINES` lines in a row after it had been well
    below.
    """

    good: Count = 0
    bad: Count = 0
    waiting: tuple[Count, Number, Number] = (0, 0.0, 0.0)
    seen: Count = 0

    @property
    def healthy(self) -> bool:
        """Whether the latest line was fine. Only then is a checkpoint worth keeping."""
        return self.bad == 0

    def check(self, line: dict[str, Any], averaged_over: int = 0) -> None:
        """Check a line of metrics.

        Args:
            line: its entries by name, as in metrics.jsonl.
            averaged_over: check the mean of the lines over at least this many samples instead.

        Raises:
            Diverged: the run has diverged.
        """
        samples = line["samples"]
        if line["carry"] is None or line["carry"] > CARRY_LIMIT:
            size = "not finite" if line["carry"] is None else f"{line['carry']:g}"
            raise Diverged(f"at sample {samples} the norm of the carry is {size}, above {CARRY_LIMIT:g}.", samples)
        loss, baseline = line["loss"], line.get("baseline")
        if loss is None or baseline is None:
            return
        count, self.seen = samples - self.seen, samples
        samples_waiting, losses, baselines = self.waiting
        self.waiting = samples_waiting + count, losses + count * loss, baselines + count * baseline
        if self.waiting[0] < averaged_over:
            return
        if averaged_over:
            loss, baseline = self.waiting[1] / self.waiting[0], self.waiting[2] / self.waiting[0]
        self.waiting = (0, 0.0, 0.0)
        if self.good < PATIENCE_LINES:
            self.good = self.good + 1 if loss < baseline - (1 - LEARNED_FRACTION) * abs(baseline) else 0
            return
        self.bad = self.bad + 1 if loss > baseline else 0
        if self.bad >= PATIENCE_LINES:
            reason = f"at sample {samples} the loss ({loss:.4g}) has been above the baseline ({baseline:.4g})"
            raise Diverged(f"{reason} for {self.bad} lines of metrics in a row, after it had been well below.", samples)
