"""Divergence: a run that has lost what it knew, or is about to."""

from typing import Any

PATIENCE = 5
"""So many lines of metrics in a row must be bad; one may be an odd stretch of the stream."""
LEARNED = 0.9
"""Below this share of the level a run has learned something that it can lose."""
CARRY_LIMIT = 1e6
"""Healthy runs were seen up to about a thousandth of this (an influence of 10⁶, which is about the norm's square)."""


class Diverged(ArithmeticError):
    """A run blew up. The last good checkpoint is kept."""


class Watch:
    """Looks at every line of metrics.

    A run counts as diverged when its carry is beyond all bounds, or when its loss
    has been above the level of knowing nothing for several lines in a row, although
    it had been well below before.
    """

    def __init__(self, entries: dict[str, Any] | None = None):
        """Unsuspicious, or as it was when `entries` were saved."""
        entries = entries or {}
        self.good: int = entries.get("good", 0)
        self.bad: int = entries.get("bad", 0)

    @property
    def healthy(self) -> bool:
        """Whether the newest line was fine: only then a checkpoint is worth keeping as a good one."""
        return self.bad == 0

    def see(self, line: dict[str, Any]) -> None:
        """Raise Diverged if this line of metrics is one too many."""
        if line["carry"] is None or line["carry"] > CARRY_LIMIT:
            size = "not finite" if line["carry"] is None else f"{line['carry']:g}"
            raise Diverged(f"by sample {line['samples']} the carry has grown beyond all bounds (its norm is {size}).")
        loss, level = line["loss"], line.get("level")
        if loss is None or level is None:
            return
        if self.good < PATIENCE:
            self.good = self.good + 1 if loss < level - (1 - LEARNED) * abs(level) else 0
            return
        self.bad = self.bad + 1 if loss > level else 0
        if self.bad >= PATIENCE:
            raise Diverged(
                f"at sample {line['samples']} the loss ({loss:.4g}) has been above the level of knowing nothing "
                f"({level:.4g}) for {self.bad} lines of metrics in a row, after it had been well below."
            )

    def entries(self) -> dict[str, Any]:
        """What to save."""
        return {"good": self.good, "bad": self.bad}
